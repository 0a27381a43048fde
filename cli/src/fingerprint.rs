//! A fingerprint of a model's weights: which model a probe was trained for.

use sha2::{Digest, Sha256};
use trail_runtime::model::{Model, Tensor};

/// Samples of each matrix, and bytes of a sample: a model of any size takes milliseconds.
const SAMPLES: usize = 16;
const SAMPLE_BYTES: usize = 64;

/// Returns 32 hexadecimal digits that depend on the model's shapes, storage types and weights: all
/// norms of the layers, and samples of every matrix. Weights that were quantized in another way are
/// another model: their activations differ.
pub fn fingerprint(model: &Model) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{:?}", model.config.architecture));
    let weights = &model.weights;
    for layer in &weights.layers {
        for norm in [&layer.attention_norm, &layer.mlp_norm] {
            norm.iter().for_each(|value| hash.update(value.to_le_bytes()));
        }
        layer.matrices().for_each(|matrix| sample(&mut hash, matrix));
    }
    sample(&mut hash, &weights.embed);
    sample(&mut hash, &weights.lm_head);
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Hashes the shape and some bytes of a matrix.
fn sample(hash: &mut Sha256, matrix: &Tensor) {
    hash.update(format!("{} {} {}", matrix.dtype, matrix.rows, matrix.cols));
    let bytes = matrix.bytes();
    let last = bytes.len().saturating_sub(SAMPLE_BYTES);
    for sample in 0..SAMPLES {
        let first = last * sample / (SAMPLES - 1);
        hash.update(&bytes[first..bytes.len().min(first + SAMPLE_BYTES)]);
    }
}

#[cfg(test)]
mod tests {
    use trail_runtime::model::Dtype;

    use super::*;

    #[test]
    fn other_weights_and_other_types_are_other_models() {
        let of = |dtype, seed| {
            fingerprint(&Model::random("tiny", dtype, seed).expect("a shape of the tests"))
        };
        let first = of(Dtype::Bf16, 1);
        assert_eq!(first.len(), 32);
        assert_eq!(first, of(Dtype::Bf16, 1));
        assert!(first != of(Dtype::Bf16, 2) && first != of(Dtype::F32, 1));
    }
}

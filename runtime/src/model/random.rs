//! Models of real shapes with random weights, for benchmarks and tests.

use std::sync::Arc;

use memmap2::MmapMut;
use trail_base::{Memory, Rng};

use super::{
    Architecture, Dtype, LayerWeights, Model, ModelConfig, RopeConfig, RopeScaling, Storage,
    Tensor, Weights,
};

/// Standard deviation of the projections' weights.
const DEVIATION: f32 = 0.02;
/// Number of values drawn from one seed: the unit of parallel generation.
const PIECE: usize = 1 << 20;
/// Names of the shapes of [`Model::random`].
const SHAPES: [&str; 4] = ["tiny", "demo", "llama3.2-1b", "llama3-8b"];

impl ModelConfig {
    /// Returns the configuration of a named shape; the error lists the names.
    pub fn named(shape: &str) -> Result<ModelConfig, String> {
        named_config(shape)
            .ok_or_else(|| format!("unknown shape {shape:?}: one of {}", SHAPES.join(", ")))
    }
}

impl Model {
    /// Creates a model of a named shape with random weights, determined by `seed`.
    pub fn random(shape: &str, dtype: Dtype, seed: u64) -> Result<Model, String> {
        Model::random_of(ModelConfig::named(shape)?, dtype, seed)
    }

    /// Creates a model of `config` with random weights, determined by `seed`.
    pub fn random_of(config: ModelConfig, dtype: Dtype, seed: u64) -> Result<Model, String> {
        let shapes = tensor_shapes(&config);
        let len: usize = shapes.iter().map(|(rows, cols)| rows * cols).sum();
        let storage = random_storage(len, dtype, seed)?;
        let mut shapes = shapes.into_iter();
        let mut offset = 0;
        let mut next = || {
            let (rows, cols) = shapes.next()?;
            let tensor = Tensor::new(dtype, rows, cols, storage.clone(), offset)?;
            offset += tensor.bytes().len();
            Some(tensor)
        };
        let mut norms = Rng::new(seed ^ 0x6e6f_726d); // Apart from the pieces' seeds.
        let mut norm =
            || (0..config.hidden_size).map(|_| 1.0 + 0.1 * norms.fast_normal()).collect();
        let weights = (|| {
            let embed = next()?;
            let mut layers = Vec::with_capacity(config.num_layers);
            for _ in 0..config.num_layers {
                layers.push(LayerWeights {
                    attention_norm: norm(),
                    q: next()?,
                    k: next()?,
                    v: next()?,
                    o: next()?,
                    mlp_norm: norm(),
                    gate: next()?,
                    up: next()?,
                    down: next()?,
                });
            }
            let lm_head = if config.tie_word_embeddings { embed.clone() } else { next()? };
            Some(Weights { embed, layers, norm: norm(), lm_head, mapped_bytes: 0 })
        })();
        let weights = weights.ok_or("the tensors exceed their storage")?;
        Ok(Model { config, weights })
    }
}

/// Shapes `[rows, cols]` of all matrices, in the order of [`Weights`].
fn tensor_shapes(config: &ModelConfig) -> Vec<(usize, usize)> {
    let (hidden, inner, vocab) = (config.hidden_size, config.intermediate_size, config.vocab_size);
    let (q, kv) = (config.q_size(), config.kv_size());
    let layer = [
        (q, hidden),
        (kv, hidden),
        (kv, hidden),
        (hidden, q),
        (inner, hidden),
        (inner, hidden),
        (hidden, inner),
    ];
    let mut shapes = vec![(vocab, hidden)];
    shapes.extend(std::iter::repeat_n(layer, config.num_layers).flatten());
    if !config.tie_word_embeddings {
        shapes.push((vocab, hidden));
    }
    shapes
}

/// Generates `len` random values of `dtype` on all cores.
fn random_storage(len: usize, dtype: Dtype, seed: u64) -> Result<Storage, String> {
    let bytes = len * dtype.bytes();
    if let Some(memory) = Memory::read().filter(|memory| bytes as u64 > memory.available_bytes) {
        return Err(format!(
            "random weights of this shape need {} MiB, {} MiB of memory are available: choose a \
             smaller shape or dtype",
            bytes >> 20,
            memory.available_bytes >> 20
        ));
    }
    let mut map = MmapMut::map_anon(bytes.max(1))
        .map_err(|error| format!("cannot allocate {bytes} bytes: {error}"))?;
    // `madvise` is a hint: without huge pages the weights are only read more slowly.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    let pieces = std::sync::Mutex::new(map[..bytes].chunks_mut(PIECE * dtype.bytes()).enumerate());
    let next = || pieces.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
    let threads = trail_base::available_threads();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((index, piece)) = next() {
                    fill(piece, dtype, &mut Rng::new(seed.wrapping_add(index as u64)));
                }
            });
        }
    });
    Ok(Arc::new(map))
}

/// Fills `bytes` with values of `dtype`.
fn fill(bytes: &mut [u8], dtype: Dtype, rng: &mut Rng) {
    let mut draw = || DEVIATION * rng.fast_normal();
    match dtype {
        Dtype::F32 => bytes.as_chunks_mut().0.iter_mut().for_each(|b| *b = draw().to_le_bytes()),
        Dtype::F16 => {
            let halves = bytes.as_chunks_mut().0.iter_mut();
            halves.for_each(|b| *b = half::f16::from_f32(draw()).to_le_bytes());
        }
        Dtype::Bf16 => {
            let halves = bytes.as_chunks_mut().0.iter_mut();
            halves.for_each(|b| *b = half::bf16::from_f32(draw()).to_le_bytes());
        }
    }
}

fn named_config(shape: &str) -> Option<ModelConfig> {
    let llama3 = ModelConfig {
        architecture: Architecture::Llama,
        hidden_size: 4096,
        intermediate_size: 14336,
        num_layers: 32,
        num_heads: 32,
        num_kv_heads: 8,
        head_dim: 128,
        vocab_size: 128_256,
        max_context: 8192,
        rms_norm_eps: 1e-5,
        rope: RopeConfig { theta: 500_000.0, scaling: RopeScaling::None },
        windows: vec![None; 32],
        tie_word_embeddings: false,
        bos_token: Some(128_000),
        eos_tokens: vec![128_001, 128_008, 128_009],
    };
    let small = ModelConfig {
        hidden_size: 256,
        intermediate_size: 704,
        num_layers: 6,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 64,
        vocab_size: 1024,
        max_context: 2048,
        rope: RopeConfig { theta: 10_000.0, scaling: RopeScaling::None },
        windows: vec![None; 6],
        tie_word_embeddings: true,
        bos_token: None,
        eos_tokens: vec![0],
        ..llama3.clone()
    };
    match shape {
        "llama3-8b" => Some(llama3),
        "llama3.2-1b" => Some(ModelConfig {
            hidden_size: 2048,
            intermediate_size: 8192,
            num_layers: 16,
            head_dim: 64,
            max_context: 131_072,
            rope: RopeConfig {
                theta: 500_000.0,
                scaling: RopeScaling::Llama3 {
                    factor: 32.0,
                    low_freq_factor: 1.0,
                    high_freq_factor: 4.0,
                    original_context: 8192.0,
                },
            },
            windows: vec![None; 16],
            tie_word_embeddings: true,
            ..llama3
        }),
        "demo" => Some(small),
        "tiny" => Some(ModelConfig {
            hidden_size: 64,
            intermediate_size: 96,
            num_layers: 2,
            head_dim: 16,
            vocab_size: 256,
            max_context: 512,
            windows: vec![None; 2],
            ..small
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_shape_exists_and_others_do_not() {
        assert!(SHAPES.iter().all(|shape| named_config(shape).is_some()));
        let error = Model::random("llama9", Dtype::Bf16, 0).unwrap_err();
        assert!(error.contains("llama3.2-1b"), "{error}");
    }

    #[test]
    fn weights_have_the_deviation_and_follow_the_seed() {
        let model = Model::random("demo", Dtype::F32, 7).unwrap();
        let bytes = model.weights.layers[0].gate.bytes();
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        let n = values.len() as f32;
        let mean = values.iter().sum::<f32>() / n;
        let deviation = (values.iter().map(|v| v * v).sum::<f32>() / n).sqrt();
        assert!(mean.abs() < 1e-3 && (deviation / DEVIATION - 1.0).abs() < 0.02);
        let other = Model::random("demo", Dtype::F32, 7).unwrap();
        assert_eq!(other.weights.layers[0].gate.bytes(), bytes);
        let other = Model::random("demo", Dtype::F32, 8).unwrap();
        assert_ne!(other.weights.layers[0].gate.bytes(), bytes);
    }
}

//! Named shapes, for benchmarks and tests.

use super::{Activation, Architecture, ModelConfig, RopeConfig, RopePairing, RopeScaling};

/// A name and the configuration that it names.
type Shape = (&'static str, fn() -> ModelConfig);

const SHAPES: [Shape; 4] =
    [("tiny", tiny), ("demo", demo), ("llama3.2-1b", llama3_2_1b), ("llama3-8b", llama3_8b)];

impl ModelConfig {
    /// Returns the configuration of a named shape; the error lists the names.
    pub fn named(shape: &str) -> Result<ModelConfig, String> {
        match SHAPES.iter().find(|(name, _)| *name == shape) {
            Some((_, config)) => Ok(config()),
            None => {
                let names = SHAPES.map(|(name, _)| name).join(", ");
                Err(format!("unknown shape {shape:?}: one of {names}"))
            }
        }
    }
}

/// A Llama with `num_layers` layers and heads of `head_dim`, and Llama 3 8B's other constants.
fn llama(num_layers: usize, head_dim: usize) -> ModelConfig {
    ModelConfig {
        architecture: Architecture::Llama,
        hidden_size: 4096,
        intermediate_size: 14336,
        num_layers,
        num_heads: 32,
        num_kv_heads: 8,
        head_dim,
        vocab_size: 128_256,
        max_context: 8192,
        rms_norm_eps: 1e-5,
        rope: RopeConfig { theta: 500_000.0, scaling: RopeScaling::None },
        rope_factors: None,
        local_rope: None,
        layers_without_rope: Vec::new(),
        rope_pairing: RopePairing::Halves,
        attention_scale: None,
        embedding_scale: 1.0,
        activation: Activation::Silu,
        windows: vec![None; num_layers],
        tie_word_embeddings: false,
        bos_token: Some(128_000),
        eos_tokens: vec![128_001, 128_008, 128_009],
    }
}

fn llama3_8b() -> ModelConfig {
    llama(32, 128)
}

fn llama3_2_1b() -> ModelConfig {
    let scaling = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192.0,
    };
    ModelConfig {
        hidden_size: 2048,
        intermediate_size: 8192,
        max_context: 131_072,
        rope: RopeConfig { theta: 500_000.0, scaling },
        tie_word_embeddings: true,
        ..llama(16, 64)
    }
}

/// The bundled model's shape.
fn demo() -> ModelConfig {
    small(6, 64)
}

fn tiny() -> ModelConfig {
    ModelConfig {
        hidden_size: 64,
        intermediate_size: 96,
        vocab_size: 256,
        max_context: 512,
        ..small(2, 16)
    }
}

fn small(num_layers: usize, head_dim: usize) -> ModelConfig {
    ModelConfig {
        hidden_size: 256,
        intermediate_size: 704,
        num_heads: 4,
        num_kv_heads: 2,
        vocab_size: 1024,
        max_context: 2048,
        rope: RopeConfig { theta: 10_000.0, scaling: RopeScaling::None },
        tie_word_embeddings: true,
        bos_token: None,
        eos_tokens: vec![0],
        ..llama(num_layers, head_dim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_shape_exists_and_others_do_not() {
        assert!(SHAPES.iter().all(|(name, _)| ModelConfig::named(name).is_ok()));
        let error = ModelConfig::named("llama9").unwrap_err();
        assert!(error.contains("llama3.2-1b"), "{error}");
    }
}

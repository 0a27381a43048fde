//! Named shapes, for benchmarks and tests.

use super::{
    Activation, Architecture, DeltaNetConfig, MixtureConfig, ModelConfig, RopeConfig, RopePairing,
    RopeScaling, Yarn,
};

/// A name and the configuration that it names.
type Shape = (&'static str, fn() -> ModelConfig);

const SHAPES: [Shape; 11] = [
    ("tiny", tiny),
    ("tiny-hybrid", tiny_hybrid),
    ("demo", demo),
    ("llama3.2-1b", llama3_2_1b),
    ("llama3-8b", llama3_8b),
    ("qwen2.5-0.5b", qwen2_5_500m),
    ("qwen3-0.6b", qwen3_600m),
    ("gemma3-1b", gemma3_1b),
    ("qwen3.5-0.8b", qwen3_5_800m),
    ("qwen3-30b-a3b", qwen3_30b_a3b),
    ("gpt-oss-20b", gpt_oss_20b),
];

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
        mixture: None,
        delta_net: None,
        num_layers,
        num_heads: 32,
        num_kv_heads: 8,
        head_dim,
        rotary_dim: None,
        vocab_size: 128_256,
        max_context: 8192,
        rms_norm_eps: 1e-5,
        rope: RopeConfig { theta: 500_000.0, scaling: RopeScaling::None },
        rope_factors: None,
        long_rope: None,
        local_rope: None,
        layers_without_rope: Vec::new(),
        rope_pairing: RopePairing::Halves,
        attention_scale: None,
        embedding_scale: 1.0,
        residual_multiplier: 1.0,
        logits_scaling: 1.0,
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

fn qwen2_5_500m() -> ModelConfig {
    ModelConfig {
        architecture: Architecture::Qwen2,
        hidden_size: 896,
        intermediate_size: 4864,
        num_heads: 14,
        num_kv_heads: 2,
        vocab_size: 151_936,
        max_context: 32_768,
        rms_norm_eps: 1e-6,
        rope: RopeConfig { theta: 1_000_000.0, scaling: RopeScaling::None },
        tie_word_embeddings: true,
        bos_token: Some(151_643),
        eos_tokens: vec![151_645, 151_643],
        ..llama(24, 64)
    }
}

fn qwen3_600m() -> ModelConfig {
    ModelConfig {
        architecture: Architecture::Qwen3,
        hidden_size: 1024,
        intermediate_size: 3072,
        num_layers: 28,
        num_heads: 16,
        num_kv_heads: 8,
        head_dim: 128,
        max_context: 40_960,
        windows: vec![None; 28],
        ..qwen2_5_500m()
    }
}

fn qwen3_5_800m() -> ModelConfig {
    let num_layers = 24;
    let delta_net = DeltaNetConfig {
        layers: (0..num_layers).filter(|layer| layer % 4 != 3).collect(),
        key_heads: 16,
        value_heads: 16,
        key_dim: 128,
        value_dim: 128,
        taps: 4,
    };
    ModelConfig {
        architecture: Architecture::Qwen35,
        hidden_size: 1024,
        intermediate_size: 3584,
        delta_net: Some(delta_net),
        num_layers,
        num_heads: 8,
        num_kv_heads: 2,
        head_dim: 256,
        rotary_dim: Some(64),
        vocab_size: 248_320,
        max_context: 262_144,
        rope: RopeConfig { theta: 10_000_000.0, scaling: RopeScaling::None },
        bos_token: None,
        eos_tokens: vec![248_044],
        ..qwen2_5_500m()
    }
}

fn gemma3_1b() -> ModelConfig {
    let (num_layers, hidden_size) = (26, 1152_usize);
    ModelConfig {
        architecture: Architecture::Gemma3,
        hidden_size,
        intermediate_size: 6912,
        num_heads: 4,
        num_kv_heads: 1,
        vocab_size: 262_144,
        max_context: 32_768,
        rms_norm_eps: 1e-6,
        rope: RopeConfig { theta: 1_000_000.0, scaling: RopeScaling::None },
        local_rope: Some(RopeConfig { theta: 10_000.0, scaling: RopeScaling::None }),
        attention_scale: Some(1.0 / 16.0),
        embedding_scale: (hidden_size as f64).sqrt() as f32,
        activation: Activation::GeluTanh,
        // Five local layers, then a global one.
        windows: (1..=num_layers).map(|layer| (layer % 6 != 0).then_some(512)).collect(),
        tie_word_embeddings: true,
        bos_token: Some(2),
        eos_tokens: vec![1, 106],
        ..llama(num_layers, 256)
    }
}

fn qwen3_30b_a3b() -> ModelConfig {
    let mixture = MixtureConfig {
        num_experts: 128,
        experts_per_token: 8,
        expert_size: 768,
        shared_size: None,
        normalized: true,
        dense_layers: Vec::new(),
    };
    ModelConfig {
        architecture: Architecture::Qwen3Moe,
        hidden_size: 2048,
        intermediate_size: 6144,
        mixture: Some(mixture),
        num_layers: 48,
        num_heads: 32,
        num_kv_heads: 4,
        tie_word_embeddings: false,
        windows: vec![None; 48],
        ..qwen3_600m()
    }
}

fn gpt_oss_20b() -> ModelConfig {
    let (num_layers, factor) = (24, 32.0);
    let mixture = MixtureConfig {
        num_experts: 32,
        experts_per_token: 4,
        expert_size: 2880,
        shared_size: None,
        normalized: true,
        dense_layers: Vec::new(),
    };
    let yarn = Yarn {
        factor,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_context: 4096.0,
        truncate: false,
        attention_factor: Yarn::attention_factor_of(factor),
    };
    ModelConfig {
        architecture: Architecture::GptOss,
        hidden_size: 2880,
        intermediate_size: 2880,
        mixture: Some(mixture),
        num_heads: 64,
        vocab_size: 201_088,
        max_context: 131_072,
        rope: RopeConfig { theta: 150_000.0, scaling: RopeScaling::Yarn(yarn) },
        activation: Activation::SwigluOai,
        windows: (0..num_layers).map(|layer| (layer % 2 == 0).then_some(128)).collect(),
        bos_token: Some(199_998),
        eos_tokens: vec![200_002, 199_999],
        ..llama(num_layers, 64)
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

/// Gated delta nets around a layer with attention.
fn tiny_hybrid() -> ModelConfig {
    let delta_net = DeltaNetConfig {
        layers: vec![0, 2],
        key_heads: 2,
        value_heads: 4,
        key_dim: 8,
        value_dim: 16,
        taps: 4,
    };
    ModelConfig {
        architecture: Architecture::Qwen35,
        delta_net: Some(delta_net),
        num_layers: 3,
        rotary_dim: Some(8),
        windows: vec![None; 3],
        ..tiny()
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

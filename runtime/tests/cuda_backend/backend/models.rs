//! Small models with random weights, each with another feature.

use trail_runtime::model::{
    Architecture, Dtype, Model, ModelConfig, RopeConfig, RopePairing, RopeScaling,
};

/// Sizes that kernels and emulator are quick with: two layers, a vocabulary of a few blocks of the
/// sampler's.
pub(crate) fn config() -> ModelConfig {
    ModelConfig {
        hidden_size: 64,
        intermediate_size: 96,
        num_layers: 2,
        num_heads: 4,
        num_kv_heads: 1,
        head_dim: 64,
        vocab_size: 256,
        max_context: 256,
        windows: vec![None; 2],
        tie_word_embeddings: false,
        eos_tokens: Vec::new(),
        ..ModelConfig::named("demo").unwrap()
    }
}

/// Four query heads share a key head.
pub(crate) fn grouped() -> Model {
    Model::random_of(config(), Dtype::Bf16, 1).unwrap()
}

/// Wide heads that share nothing, a vocabulary and widths that need padding, one layer with a
/// window, f16 in the file.
pub(crate) fn windowed() -> Model {
    let config = ModelConfig {
        hidden_size: 72,
        intermediate_size: 104,
        num_heads: 2,
        num_kv_heads: 2,
        head_dim: 128,
        vocab_size: 261,
        windows: vec![Some(7), None],
        ..config()
    };
    Model::random_of(config, Dtype::F16, 2).unwrap()
}

/// Llama 3's stretched rotation, two heads of each kind, an output projection that is the
/// embedding, f32 in the file.
pub(crate) fn stretched() -> Model {
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 32.0,
    };
    let config = ModelConfig {
        num_kv_heads: 2,
        vocab_size: 300,
        tie_word_embeddings: true,
        rope: RopeConfig { theta: 500_000.0, scaling },
        ..config()
    };
    Model::random_of(config, Dtype::F32, 3).unwrap()
}

/// Biases of q, k and v; two key heads of 64.
pub(crate) fn biased() -> Model {
    let config = ModelConfig { architecture: Architecture::Qwen2, num_kv_heads: 2, ..config() };
    Model::random_of(config, Dtype::Bf16, 4).unwrap()
}

/// Norms of query and key heads, 128 wide; q and k in the row order of GGUF.
pub(crate) fn normed() -> Model {
    let config = ModelConfig {
        architecture: Architecture::Qwen3,
        num_heads: 2,
        head_dim: 128,
        rope_pairing: RopePairing::Adjacent,
        ..config()
    };
    Model::random_of(config, Dtype::F16, 5).unwrap()
}

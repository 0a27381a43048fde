//! Any bytes as a safetensors file: refused in one line, or a model whose every byte can be read.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use trail_runtime::model::{Archive, Model, ModelConfig};

/// Models so small that a whole file of each is within the fuzzer's reach: with one MLP, with
/// experts, and with experts in one tensor.
const CONFIGS: [&[u8]; 3] = [
    br#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 2,
    "intermediate_size": 1, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 1,
    "max_position_embeddings": 8, "tie_word_embeddings": true}"#,
    br#"{"architectures": ["Qwen2MoeForCausalLM"], "hidden_size": 2, "num_key_value_heads": 1,
    "intermediate_size": 1, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 1,
    "max_position_embeddings": 8, "tie_word_embeddings": true, "num_experts": 2,
    "num_experts_per_tok": 1, "moe_intermediate_size": 1, "shared_expert_intermediate_size": 1}"#,
    br#"{"architectures": ["GptOssForCausalLM"], "hidden_size": 32, "num_key_value_heads": 1,
    "head_dim": 2, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1,
    "vocab_size": 1, "max_position_embeddings": 8, "tie_word_embeddings": true,
    "num_local_experts": 1, "num_experts_per_tok": 1, "rope_scaling": {"rope_type": "yarn",
    "factor": 2.0, "truncate": false, "original_max_position_embeddings": 4}}"#,
];

fuzz_target!(|bytes: &[u8]| {
    for config in CONFIGS {
        let config = ModelConfig::from_json(Path::new("config.json"), config).expect("a config");
        let archive = Archive::from_storage(Path::new("m.safetensors"), Arc::new(bytes.to_vec()));
        match archive.and_then(|archive| Model::from_archive(config, archive)) {
            Ok(model) => {
                model.weights.layers[0].matrices().for_each(|matrix| drop(matrix.to_f32()));
            }
            Err(error) => assert_eq!(error.to_string().lines().count(), 1),
        }
    }
});

//! Any bytes as a safetensors file: refused in one line, or a model whose every byte can be read.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use trail_runtime::model::{Archive, Model, ModelConfig};

/// A model so small that a whole file of it is within the fuzzer's reach.
const CONFIG: &[u8] = br#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 2,
    "intermediate_size": 1, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 1,
    "max_position_embeddings": 8, "tie_word_embeddings": true}"#;

fuzz_target!(|bytes: &[u8]| {
    let config = ModelConfig::from_json(Path::new("config.json"), CONFIG).expect("a config");
    let archive = Archive::from_storage(Path::new("m.safetensors"), Arc::new(bytes.to_vec()));
    match archive.and_then(|archive| Model::from_archive(config, archive)) {
        Ok(model) => {
            model.weights.layers[0].matrices().for_each(|matrix| drop(matrix.to_f32()));
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
});

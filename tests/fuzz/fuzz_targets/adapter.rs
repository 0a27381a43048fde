//! Any bytes as an adapter: adapter_config.json up to the first zero byte, then the safetensors
//! file. Refused in one line, or an adapter of the model's shapes whose every byte can be read.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use trail_runtime::model::{Adapter, Archive, ModelConfig, Projection};

/// A model so small that a whole adapter of it is within the fuzzer's reach.
const CONFIG: &[u8] = br#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 2,
    "intermediate_size": 1, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 1,
    "max_position_embeddings": 8, "tie_word_embeddings": true}"#;

fuzz_target!(|bytes: &[u8]| {
    let model = ModelConfig::from_json(Path::new("config.json"), CONFIG).expect("a config");
    let json = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    let weights = bytes.get(json.len() + 1..).unwrap_or_default().to_vec();
    let archive = Archive::from_storage(Path::new("adapter_model.safetensors"), Arc::new(weights));
    let adapter = archive.and_then(|archive| {
        Adapter::from_archive(Path::new("adapter_config.json"), json, archive, &model)
    });
    match adapter {
        Ok(adapter) => {
            assert!(adapter.fits(&model) && (1..=256).contains(&adapter.rank()));
            for projection in Projection::ALL {
                let Some(factors) = adapter.factors(0, projection) else { continue };
                assert!(factors.scale.is_finite());
                assert_eq!(factors.a.to_f32().len() / factors.rank(), projection.shape(&model).1);
                assert_eq!(factors.b.to_f32().len() / factors.rank(), projection.shape(&model).0);
            }
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
});

//! Any bytes as a config.json: refused in one line, or a configuration that is safe to use.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use trail_runtime::model::ModelConfig;

fuzz_target!(|bytes: &[u8]| {
    match ModelConfig::from_json(Path::new("config.json"), bytes) {
        Ok(config) => {
            assert_eq!(config.windows.len(), config.num_layers);
            assert_eq!(config.num_heads % config.num_kv_heads, 0);
            assert!(config.inverse_frequencies().iter().all(|f| f.is_finite()));
            assert!(config.rope.attention_factor().is_finite());
            if let Some(mixture) = &config.mixture {
                assert!((1..=mixture.num_experts).contains(&mixture.experts_per_token));
                assert!(mixture.dense_layers.iter().all(|&layer| layer < config.num_layers));
            }
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
});

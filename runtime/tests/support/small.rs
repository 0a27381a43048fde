//! A small model as bytes, loaded whole or damaged.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trail_runtime::model::{Archive, LoadError, Model, ModelConfig};

/// The folder of a golden run.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("golden").join(name)
}

/// The content of `llama2-bf16`'s config.json and weights.
pub fn small_model() -> (Vec<u8>, Vec<u8>) {
    let read = |file: &str| fs::read(golden("llama2-bf16").join(file)).expect(file);
    (read("config.json"), read("model.safetensors"))
}

/// The model of a config.json and weights in memory.
pub fn load(config: &[u8], weights: &[u8]) -> Result<Model, LoadError> {
    let config = ModelConfig::from_json(Path::new("config.json"), config)?;
    let storage = Arc::new(weights.to_vec());
    Model::from_archive(config, Archive::from_storage(Path::new("m.safetensors"), storage)?)
}

/// Returns the error message, checked to be one line of bounded length with all its parts.
pub fn message(error: &LoadError) -> String {
    let message = error.to_string();
    assert!(message.lines().count() == 1 && message.len() < 1200, "{message:?}");
    for part in [": expected ", ", found ", "; "] {
        assert!(message.contains(part), "{part:?} in {message:?}");
    }
    message
}

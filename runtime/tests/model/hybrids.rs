//! Qwen3.5 with images: its text model is loaded.

use std::path::Path;

use safetensors::SafeTensors;
use serde_json::{Value, json};
use trail_runtime::model::ModelConfig;
use trail_runtime::reference::Reference;
use trail_test_support::small::{golden, load, message};

fn read(file: &str) -> Vec<u8> {
    std::fs::read(golden("qwen3_5-f32").join(file)).expect(file)
}

/// The config of the golden model within that of a model with images.
fn with_images() -> Value {
    let mut text: Value = serde_json::from_slice(&read("config.json")).expect("a config");
    text.as_object_mut().expect("an object").remove("architectures");
    json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "text_config": text, "vision_config": {"depth": 27, "hidden_size": 1152},
        "tie_word_embeddings": false, "image_token_id": 3,
    })
}

#[test]
fn the_text_model_of_a_checkpoint_with_images_is_loaded() {
    let (config, weights) = (read("config.json"), read("model.safetensors"));
    let plain = load(&config, &weights).expect("a model");
    let tensors = SafeTensors::deserialize(&weights).expect("safetensors").tensors();
    let renamed = tensors.iter().map(|(name, tensor)| {
        let name = name.replacen("model.", "model.language_model.", 1);
        (name, tensor.clone())
    });
    let of_images = [("model.visual.merger.weight".to_string(), tensors[0].1.clone())];
    let all = safetensors::serialize(renamed.chain(of_images), None).expect("safetensors");
    let found = load(with_images().to_string().as_bytes(), &all).expect("a model");
    assert_eq!(found.config, plain.config);
    let logits = |model| Reference::new(model).logits(&[5, 6, 7]);
    assert_eq!(logits(&found), logits(&plain));
}

#[test]
fn a_checkpoint_with_images_has_settings_of_its_text_model() {
    let mut config = with_images();
    config.as_object_mut().expect("an object").remove("text_config");
    let config = config.to_string();
    let error = ModelConfig::from_json(Path::new("config.json"), config.as_bytes());
    let error = message(&error.expect_err("a refusal"));
    assert!(error.contains("text_config: expected an object"), "{error}");
}

//! Different forms of config.json for the same model.

use std::path::Path;

use serde_json::{Value, json};
use trail_runtime::model::{Architecture, ModelConfig, RopeConfig, RopeScaling};

/// The smallest config, with the keys of `changes` set.
fn config(changes: Value) -> ModelConfig {
    let mut config = json!({
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 128,
    });
    let keys = config.as_object_mut().expect("an object");
    keys.extend(changes.as_object().expect("an object").clone());
    ModelConfig::from_json(Path::new("config.json"), config.to_string().as_bytes())
        .expect("a config")
}

#[test]
fn absent_and_null_keys_have_the_defaults_of_transformers() {
    let nulls = json!({
        "num_key_value_heads": null, "head_dim": null, "rope_scaling": null, "hidden_act": null,
        "quantization_config": null, "sliding_window": null, "eos_token_id": null,
        "torch_dtype": null, "architectures": null,
    });
    let (plain, nulls) = (config(json!({})), config(nulls));
    assert_eq!(plain, nulls);
    assert_eq!((plain.num_kv_heads, plain.head_dim, plain.rms_norm_eps), (4, 8, 1e-6));
    assert_eq!(plain.rope, RopeConfig { theta: 10_000.0, scaling: RopeScaling::None });
    assert_eq!((plain.bos_token, plain.eos_tokens.len()), (None, 0));
    assert!(!plain.tie_word_embeddings);
}

#[test]
fn rope_has_three_spellings() {
    let linear = RopeConfig { theta: 5e5, scaling: RopeScaling::Linear { factor: 2.0 } };
    for changes in [
        json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}}),
        json!({"rope_theta": 500_000, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}),
        json!({"rope_theta": 1, "rope_parameters": {"rope_theta": 5e5, "type": "linear", "factor": 2}}),
    ] {
        assert_eq!(config(changes.clone()).rope, linear, "{changes}");
    }
    for scaling in [json!({}), json!({"rope_type": "default"}), json!({"rope_theta": 1e4})] {
        let changes = json!({"rope_parameters": scaling});
        assert_eq!(config(changes).rope, config(json!({})).rope);
    }
}

#[test]
fn llama3s_trained_context_is_found_in_each_place() {
    let original = |outer: Value, inner: Value| {
        let mut scaling = json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
            "high_freq_factor": 4});
        scaling["original_max_position_embeddings"] = inner;
        let changes = json!({"rope_scaling": scaling, "original_max_position_embeddings": outer});
        match config(changes).rope.scaling {
            RopeScaling::Llama3 { original_context, .. } => original_context,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(original(json!(null), json!(64)), 64.0);
    assert_eq!(original(json!(32), json!(64)), 32.0);
    assert_eq!(original(json!(null), json!(null)), 128.0);
}

#[test]
fn families_have_their_windows() {
    let of = |family: &str| config(json!({"architectures": [family], "sliding_window": 16}));
    assert_eq!(of("LlamaForCausalLM").windows, [None; 2]);
    assert_eq!(of("MistralForCausalLM").windows, [Some(16); 2]);
    assert_eq!(of("MinistralForCausalLM").windows, [Some(16); 2]);
    assert_eq!(of("MinistralForCausalLM").architecture, Architecture::Ministral);
    // Without the key Mistral has its first model's; null is no window.
    let mistral = json!({"architectures": ["MistralForCausalLM"]});
    assert_eq!(config(mistral).windows, [Some(4096); 2]);
    let none = json!({"architectures": ["MistralForCausalLM"], "sliding_window": null});
    assert_eq!(config(none).windows, [None; 2]);
}

#[test]
fn special_tokens_are_one_or_several() {
    let of = |eos: Value| config(json!({"eos_token_id": eos, "bos_token_id": 1}));
    assert_eq!(of(json!(2)).eos_tokens, [2]);
    assert_eq!(of(json!([2, 3, 2])).eos_tokens, [2, 3]);
    assert_eq!(of(json!(2)).bos_token, Some(1));
}

//! Different forms of config.json for the same model.

use std::path::Path;

use serde_json::{Value, json};
use trail_runtime::model::{
    Activation, Architecture, LoadError, ModelConfig, RopeConfig, RopeScaling, families_table,
};

/// The smallest config, with the keys of `changes` set.
fn config(changes: Value) -> ModelConfig {
    read(&changes).expect("a config")
}

/// The same, or its refusal.
fn read(changes: &Value) -> Result<ModelConfig, LoadError> {
    let mut config = json!({
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 128,
    });
    let keys = config.as_object_mut().expect("an object");
    keys.extend(changes.as_object().expect("an object").clone());
    ModelConfig::from_json(Path::new("config.json"), config.to_string().as_bytes())
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

#[test]
fn qwen_has_windows_above_the_first_layers() {
    for (class, model_type) in [("Qwen2ForCausalLM", "qwen2"), ("Qwen3ForCausalLM", "qwen3")] {
        let of = |changes: Value| {
            let mut all = json!({"architectures": [class], "model_type": model_type,
                "num_key_value_heads": 2, "sliding_window": 16});
            all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            config(all).windows
        };
        assert_eq!(of(json!({})), [None; 2], "the window is not used");
        assert_eq!(of(json!({"use_sliding_window": true})), [None; 2], "28 layers without");
        let used = |key: &str, value: Value| of(json!({"use_sliding_window": true, key: value}));
        assert_eq!(used("max_window_layers", json!(0)), [Some(16); 2]);
        assert_eq!(used("max_window_layers", json!(1)), [None, Some(16)]);
        let types = json!(["sliding_attention", "full_attention"]);
        assert_eq!(used("layer_types", types), [Some(16), None]);
    }
    let qwen = |family: &str| {
        config(json!({"model_type": family, "num_attention_heads": 32, "hidden_size": 64}))
    };
    assert_eq!((qwen("qwen2").head_dim, qwen("qwen2").num_kv_heads), (2, 32));
    assert_eq!((qwen("qwen3").head_dim, qwen("qwen3").num_kv_heads), (128, 32));
}

#[test]
fn the_families_are_those_of_the_document() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/models.md");
    let text = std::fs::read_to_string(path).expect("docs/models.md");
    let (_, rest) = text.split_once("<!-- families -->\n").expect("the table's begin");
    let (found, _) = rest.split_once("<!-- /families -->").expect("the table's end");
    assert_eq!(found, families_table(), "docs/models.md should have:\n{}", families_table());
}

/// LongRoPE by the context, its lists by the rotated dimensions, and Granite's factors.
#[test]
fn phi_and_granite_have_factors() {
    let mut all = json!({"model_type": "phi3", "num_attention_heads": 2,
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 32, "rope_scaling": {"type": "su",
        "short_factor": [1, 2, 3, 4, 5, 6], "long_factor": [6, 5, 4, 3, 2, 1]}});
    let phi = config(all.clone());
    assert_eq!((phi.rotary_dim, phi.num_kv_heads), (Some(12), 2));
    let factors = phi.long_rope.as_ref().expect("factors");
    assert_eq!((factors.original_context, factors.short[0], factors.long[0]), (32.0, 1.0, 6.0));
    let expected = (1.0 + 4f64.ln() / 32f64.ln()).sqrt();
    assert_eq!(phi.rope.attention_factor(), expected);
    let plain = |config: &ModelConfig| {
        ModelConfig { long_rope: None, ..config.clone() }.inverse_frequencies()
    };
    let short = ModelConfig { max_context: 32, ..phi.clone() };
    assert_eq!(short.inverse_frequencies()[1], plain(&phi)[1] / 2.0);
    assert_eq!(phi.inverse_frequencies()[1], plain(&phi)[1] / 5.0);
    all["original_max_position_embeddings"] = json!(128);
    let phi = config(all.clone());
    assert_eq!(phi.inverse_frequencies()[1], plain(&phi)[1] / 2.0);
    assert_eq!(phi.rope.attention_factor(), 1.0);
    all["rope_scaling"]["type"] = json!("yarn");
    assert_eq!(config(all.clone()), phi);
    for (key, value) in
        [("short_factor", json!([1, 2])), ("short_factor", json!([0, 2, 3, 4, 5, 6]))]
    {
        let mut wrong = all.clone();
        wrong["rope_scaling"][key] = value;
        let error = read(&wrong).expect_err("refused").to_string();
        assert!(error.contains("6 factors from 1e-6 to 1e6"), "{error}");
    }
    all["partial_rotary_factor"] = json!(0.1);
    assert!(read(&all).expect_err("refused").to_string().contains("partial_rotary_factor"));
    let factors = json!({"residual_multiplier": 0.25, "logits_scaling": 8});
    let granite = config(json!({"model_type": "granite", "residual_multiplier": 0.25,
        "logits_scaling": 8}));
    assert_eq!((granite.residual_multiplier, granite.logits_scaling), (0.25, 8.0));
    assert_eq!((granite.attention_scale, granite.embedding_scale), (Some(1.0), 1.0));
    assert_eq!(config(factors).residual_multiplier, 1.0, "a key of another family");
    let dynamic = config(json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}));
    assert_eq!(dynamic.rope.scaling, RopeScaling::None);
}

#[test]
fn hybrids_have_gated_delta_nets_and_partial_rope() {
    let read = |changes: Value| {
        let mut all = json!({"model_type": "qwen3_5_text", "hidden_size": 32, "vocab_size": 64,
            "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
            "max_position_embeddings": 128});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        ModelConfig::from_json(Path::new("config.json"), all.to_string().as_bytes())
    };
    let of = |changes: Value| read(changes).expect("a config");
    let layers = |changes: Value| of(changes).delta_net.expect("gated delta nets").layers;
    let plain = of(json!({}));
    let net = plain.delta_net.as_ref().expect("gated delta nets");
    assert_eq!(
        (net.key_heads, net.value_heads, net.key_dim, net.value_dim, net.taps),
        (16, 32, 128, 128, 4)
    );
    assert_eq!((plain.head_dim, plain.rotary_dim, plain.num_kv_heads), (256, Some(64), 4));
    assert_eq!((plain.kv_layers(), plain.kv_layer(3)), (1, 0));
    assert_eq!(net.layers, [0, 1, 2]);
    assert_eq!(layers(json!({"full_attention_interval": 2})), [0, 2]);
    let types = json!(["full_attention", "linear_attention", "full_attention", "full_attention"]);
    assert_eq!(layers(json!({"layer_types": types})), [1]);
    for (changes, rotated) in [
        (json!({"partial_rotary_factor": 0.5}), Some(128)),
        (json!({"rope_parameters": {"partial_rotary_factor": 0.125}}), Some(32)),
        (json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}}), None),
    ] {
        assert_eq!(of(changes.clone()).rotary_dim, rotated, "{changes}");
    }
    for (changes, part) in [
        (json!({"layer_types": vec!["linear_attention"; 4]}), "full_attention"),
        (json!({"layer_types": vec!["sliding_attention"; 4]}), "linear_attention"),
        (json!({"linear_num_value_heads": 24}), "linear_num_key_heads (16)"),
        (json!({"partial_rotary_factor": 0.001}), "head_dim (256)"),
        (json!({"linear_conv_kernel_dim": 0}), "from 1 to"),
    ] {
        let error = read(changes.clone()).expect_err("a refusal").to_string();
        assert!(error.contains(part), "{changes}: {error}");
    }
}

#[test]
fn smollm3_has_layers_without_rope() {
    let of = |changes: Value| {
        let mut all = json!({"model_type": "smollm3", "num_hidden_layers": 8});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        config(all)
    };
    let plain = of(json!({}));
    assert_eq!(plain.layers_without_rope, [3, 7]);
    assert_eq!((plain.rope.theta, plain.num_kv_heads), (2e6, 4));
    assert!(
        plain.tie_word_embeddings && !of(json!({"tie_word_embeddings": false})).tie_word_embeddings
    );
    assert_eq!(of(json!({"no_rope_layer_interval": 3})).layers_without_rope, [2, 5]);
    let list = json!({"no_rope_layers": [0, 1, 1, 1, 1, 1, 0, 1, 0], "use_sliding_window": true,
        "sliding_window": 9});
    let listed = of(list);
    assert_eq!(listed.layers_without_rope, [0, 6]);
    let sliding = |layer: &usize| listed.windows[*layer] == Some(9);
    assert_eq!((0..8).filter(sliding).collect::<Vec<_>>(), [0, 6]);
}

#[test]
fn gemma3_has_local_and_global_layers() {
    let of = |changes: Value| {
        let mut all = json!({"model_type": "gemma3_text", "num_hidden_layers": 7});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        config(all)
    };
    let rope = |theta: f64| RopeConfig { theta, scaling: RopeScaling::None };
    let plain = of(json!({}));
    assert_eq!((plain.head_dim, plain.num_kv_heads), (256, 4));
    assert_eq!((plain.rope, plain.local_rope), (rope(1e6), Some(rope(1e4))));
    assert_eq!(
        plain.windows,
        [4096, 4096, 4096, 4096, 4096, 0, 4096].map(|w| (w > 0).then_some(w))
    );
    assert_eq!((plain.attention_scale, plain.embedding_scale), (Some(0.0625), 32_f32.sqrt()));
    assert_eq!((plain.activation, plain.tie_word_embeddings), (Activation::GeluTanh, true));
    let linear = RopeScaling::Linear { factor: 8.0 };
    for changes in [
        json!({"rope_theta": 5, "rope_local_base_freq": 3,
            "rope_scaling": {"rope_type": "linear", "factor": 8}}),
        json!({"rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 3}}}),
        json!({"rope_scaling": {"rope_type": "linear", "factor": 8},
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5},
            "sliding_attention": {"rope_theta": 3}}}),
    ] {
        let found = of(changes.clone());
        assert_eq!(found.rope, RopeConfig { theta: 5.0, scaling: linear }, "{changes}");
        assert_eq!(found.local_rope, Some(rope(3.0)), "{changes}");
    }
}

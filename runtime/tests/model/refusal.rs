//! Files that must not load: each error is one line that names the file and the item at fault.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use trail_runtime::model::{LoadError, Model};
use trail_test_support::small::{golden, load, message, small_model};

/// Creates an empty folder for this test run.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("refusal").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[track_caller]
fn assert_refused(result: Result<Model, LoadError>, parts: &[&str]) {
    let message = message(&result.expect_err("a refusal"));
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

/// Sets `key` in the small model's config; a dot addresses a nested object, which is created.
fn with_key(key: &str, value: &Value) -> Vec<u8> {
    let mut config: Value = serde_json::from_slice(&small_model().0).expect("config");
    match key.split_once('.') {
        None => config[key] = value.clone(),
        Some((object, inner)) => config[object] = json!({ inner: value }),
    }
    config.to_string().into_bytes()
}

#[test]
fn bad_values_name_their_key() {
    let table = [
        ("architectures", json!(["GPT2LMHeadModel"]), "MistralForCausalLM"),
        ("architectures", json!("llama"), "LlamaForCausalLM"),
        ("architectures", json!(["Gemma3ForConditionalGeneration"]), "images are not supported"),
        ("architectures", json!(["Gemma2ForCausalLM"]), "LlamaForCausalLM"),
        ("model_type", json!("mamba"), "qwen3_moe, found \"mamba\"; choose"),
        ("model_type", json!("smollm3"), "llama with LlamaForCausalLM, found \"smollm3\""),
        ("model_type", json!(7), "a string"),
        ("torch_dtype", json!("int8"), "bfloat16, float16 or float32, found \"int8\"; choose"),
        ("dtype", json!("float8_e4m3fn"), "bfloat16, float16 or float32"),
        ("attention_bias", json!(true), "false"),
        ("mlp_bias", json!(true), "bias"),
        ("quantization_config", json!({"bits": 4}), "GPTQ, AWQ"),
        ("attn_logit_softcapping", json!(50.0), "null"),
        ("final_logit_softcapping", json!(30.0), "null"),
        ("use_bidirectional_attention", json!(true), "false"),
        ("hidden_act", json!("gelu"), "silu"),
        ("hidden_act", json!(7), "a string"),
        ("hidden_size", json!(0), "from 1 to"),
        ("hidden_size", json!(-32), "found -32"),
        ("hidden_size", json!(u64::MAX), "from 1 to"),
        ("hidden_size", json!(34), "num_attention_heads (4)"),
        ("hidden_size", json!(12), "even head_dim"),
        ("hidden_size", json!(null), "found null"),
        ("intermediate_size", json!("48"), "a whole number"),
        ("num_hidden_layers", json!(100_000), "from 1 to 1024"),
        ("num_attention_heads", json!(1.5), "a whole number"),
        ("num_key_value_heads", json!(3), "a divisor of num_attention_heads (4)"),
        ("num_key_value_heads", json!(8), "from 1 to 4"),
        ("head_dim", json!(7), "an even number"),
        ("head_dim", json!(1 << 30), "from 1 to"),
        ("vocab_size", json!(1u64 << 40), "from 1 to"),
        ("max_position_embeddings", json!([]), "a whole number"),
        ("rms_norm_eps", json!(0), "1e-12"),
        ("rms_norm_eps", json!(1.5), "below 1"),
        ("rope_theta", json!(1e-300), "1e-12"),
        ("rope_theta", json!("big"), "a number from"),
        ("rope_scaling", json!("linear"), "an object"),
        ("rope_scaling.type", json!("yarn"), "rope_scaling.factor"),
        ("clip_qkv", json!(8.0), "null"),
        ("rope_scaling.rope_type", json!("longrope"), "rope_scaling.short_factor"),
        ("rope_scaling.type", json!("linear"), "rope_scaling.factor"),
        ("rope_scaling.rope_type", json!("llama3"), "no such key"),
        ("rope_scaling.high_freq_factor", json!(4), "rope_scaling.type"),
        ("rope_scaling.factor", json!(2), "rope_scaling.type"),
        ("rope_parameters.rope_type", json!("dynamic"), "rope_parameters.factor"),
        ("rope_parameters.rope_type", json!("mrope"), "found \"mrope\""),
        ("rope_parameters.full_attention", json!({"rope_type": "default"}), "rope_parameters.type"),
        ("partial_rotary_factor", json!(0.5), "1.0"),
        ("tie_word_embeddings", json!("yes"), "true or false"),
        ("bos_token_id", json!(64), "below 64"),
        ("eos_token_id", json!([2, -1]), "below 64"),
    ];
    let weights = small_model().1;
    for (key, value, part) in table {
        let key_part = key.split('.').next().unwrap();
        assert_refused(load(&with_key(key, &value), &weights), &["config.json", key_part, part]);
    }
}

/// As `bad_values_name_their_key`, in families of their own keys.
#[test]
fn bad_values_of_families_name_their_key() {
    let table = [
        ("qwen2-f32", "sliding_window", json!(0), "from 1"),
        ("qwen2-f32", "max_window_layers", json!(-1), "from 1"),
        ("qwen2-f32", "use_sliding_window", json!(1), "true or false"),
        ("qwen2-f32", "layer_types", json!(["linear_attention", "full_attention"]), "2 times"),
        ("qwen3-f32", "attention_bias", json!(true), "false"),
        ("smollm3-f32", "attention_bias", json!(true), "false"),
        ("smollm3-f32", "mlp_bias", json!(true), "false"),
        ("smollm3-f32", "no_rope_layers", json!([1]), "2 times 1"),
        ("smollm3-f32", "no_rope_layers", json!([1, 2]), "2 times 1"),
        ("smollm3-f32", "no_rope_layer_interval", json!(0), "from 1"),
        ("gemma3-f32", "architectures", json!(["Gemma3ForConditionalGeneration"]), "images"),
        ("gemma3-f32", "model_type", json!("gemma3"), "gemma3_text"),
        ("gemma3-f32", "hidden_activation", json!("gelu"), "\"gelu_pytorch_tanh\", found"),
        ("gemma3-f32", "attention_bias", json!(true), "false"),
        ("gemma3-f32", "attn_logit_softcapping", json!(50.0), "null"),
        ("gemma3-f32", "final_logit_softcapping", json!(30.0), "null"),
        ("gemma3-f32", "use_bidirectional_attention", json!(true), "false"),
        ("gemma3-f32", "query_pre_attn_scalar", json!(0), "1e-12"),
        ("gemma3-f32", "sliding_window", json!(null), "from 1"),
        ("gemma3-f32", "sliding_window_pattern", json!(0), "from 1"),
        ("gemma3-f32", "rope_local_base_freq", json!("big"), "a number from"),
        ("gemma3-f32", "rope_scaling", json!({"rope_type": "su"}), "no LongRoPE by layer"),
        ("gemma3-f32", "rope_scaling", json!({"rope_type": "yarn"}), "rope_scaling.factor"),
        ("mixtral-f32", "num_local_experts", json!(1 << 20), "from 1 to 4096"),
        ("mixtral-f32", "num_experts_per_tok", json!(6), "from 1 to 5"),
        ("olmoe-f32", "num_experts", json!(0), "from 1"),
        ("olmoe-f32", "clip_qkv", json!(8.0), "null"),
        ("qwen2_moe-f32", "shared_expert_intermediate_size", json!(null), "found null"),
        ("qwen3_moe-f32", "moe_intermediate_size", json!("8"), "a whole number"),
        ("qwen3_moe-f32", "norm_topk_prob", json!(1), "true or false"),
        ("qwen3_moe-f32", "mlp_only_layers", json!("1"), "a list of layers"),
        ("gpt_oss-f32", "rope_scaling", json!(null), "gpt-oss's YaRN"),
        ("gpt_oss-f32", "swiglu_limit", json!(6.0), "expected 7"),
        ("gpt_oss-f32", "swiglu_alpha", json!(1.0), "expected 1.702"),
        ("gpt_oss-f32", "quantization_config", json!({"quant_method": "fp8"}), "unquantized"),
        ("gemma3-f32", "rope_parameters", json!({"rope_theta": 1e4}), "or sliding_attention"),
        (
            "gemma3-f32",
            "rope_parameters",
            json!({"sliding_attention": {"rope_type": "dynamic"}}),
            "sliding_attention.factor",
        ),
    ];
    for (name, key, value, part) in table {
        let read = |file: &str| fs::read(golden(name).join(file)).expect(file);
        let mut config: Value = serde_json::from_slice(&read("config.json")).expect("config");
        config[key] = value;
        let result = load(config.to_string().as_bytes(), &read("model.safetensors"));
        assert_refused(result, &["config.json", key, part]);
    }
}

/// The weights of another family, under each family's config.
#[test]
fn weights_of_another_family_are_refused() {
    let read = |name: &str, file: &str| fs::read(golden(name).join(file)).expect(file);
    let missing = [
        ("qwen2-f32", "self_attn.q_proj.bias"),
        ("qwen3-f32", "self_attn.q_norm.weight"),
        ("gemma3-f32", "pre_feedforward_layernorm.weight"),
    ];
    for (name, part) in missing {
        let config = read(name, "config.json");
        let mut shape: Value = serde_json::from_slice(&small_model().0).expect("config");
        let family: Value = serde_json::from_slice(&config).expect("config");
        for key in ["architectures", "model_type", "query_pre_attn_scalar", "sliding_window"] {
            shape[key] = family[key].clone();
        }
        shape["head_dim"] = json!(8);
        let result = load(shape.to_string().as_bytes(), &small_model().1);
        assert_refused(result, &[part, "no such tensor"]);
        let mut llama = family;
        llama["architectures"] = json!(["LlamaForCausalLM"]);
        llama["model_type"] = json!("llama");
        llama["tie_word_embeddings"] = json!(name != "qwen2-f32");
        let result = load(llama.to_string().as_bytes(), &read(name, "model.safetensors"));
        assert_refused(result, &["model.layers.0.", "and that the family is supported"]);
    }
}

/// Experts, routers and sinks that a file lacks are named.
#[test]
fn missing_tensors_of_mixtures_are_named() {
    let table = [
        ("gpt_oss-f32", "layers.1.self_attn.sinks"),
        ("gpt_oss-f32", "layers.0.mlp.experts.down_proj_bias"),
        ("gpt_oss-mxfp4", "layers.0.mlp.experts.down_proj_scales"),
        ("qwen3_moe-f32", "layers.2.mlp.experts.5.up_proj.weight"),
        ("qwen2_moe-f32", "layers.0.mlp.shared_expert_gate.weight"),
        ("mixtral-f32", "layers.1.block_sparse_moe.gate.weight"),
    ];
    for (name, tensor) in table {
        let read = |file: &str| fs::read(golden(name).join(file)).expect(file);
        let mut weights = read("model.safetensors");
        let at = weights.windows(tensor.len()).position(|bytes| bytes == tensor.as_bytes());
        weights[at.expect("the tensor's name in the header")] = b'L';
        assert_refused(load(&read("config.json"), &weights), &[tensor, "no such tensor"]);
    }
}

#[test]
fn bad_windows_name_their_key() {
    let weights = small_model().1;
    let config = |architecture: &str, key: &str, value: Value| {
        let mut config: Value = serde_json::from_slice(&small_model().0).expect("config");
        config["architectures"] = json!([architecture]);
        config[key] = value;
        config.to_string().into_bytes()
    };
    let mistral = config("MistralForCausalLM", "sliding_window", json!(0));
    assert_refused(load(&mistral, &weights), &["sliding_window", "from 1"]);
    for types in [json!(["full_attention"]), json!(["full_attention", "chunked_attention"])] {
        let ministral = config("MinistralForCausalLM", "layer_types", types);
        assert_refused(load(&ministral, &weights), &["layer_types", "2 times"]);
    }
    let absent = config("MistralForCausalLM", "head_dim", json!(8));
    assert_eq!(load(&absent, &weights).expect("a model").config.windows, [Some(4096); 2]);
    let none = config("MistralForCausalLM", "sliding_window", json!(null));
    assert_eq!(load(&none, &weights).expect("a model").config.windows, [None; 2]);
}

#[test]
fn other_documents_are_refused() {
    let weights = small_model().1;
    for text in ["", "[]", "null", "{", "{\"hidden_size\": NaN}", "\u{0}\u{1}\n\n"] {
        assert_refused(load(text.as_bytes(), &weights), &["config.json: content", "a JSON object"]);
    }
    let deep = "[".repeat(100_000);
    assert_refused(load(deep.as_bytes(), &weights), &["recursion limit"]);
}

/// Builds a safetensors file of `header` and `data_len` zero bytes.
fn safetensors(header: &Value, data_len: usize) -> Vec<u8> {
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(file.len() + data_len, 0);
    file
}

#[test]
fn bad_headers_name_their_tensor() {
    let config = small_model().0;
    let tensor = |dtype: &str, shape: Value, begin: u64, end: u64| {
        let offsets = [begin, end];
        json!({"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}})
    };
    let table = [
        (tensor("F32", json!([2]), 0, 9), 9, "bytes 0..8"),
        (tensor("F32", json!([2]), 0, 8), 4, "cut short"),
        (tensor("F32", json!([2]), 4, 12), 12, "bytes 0..8"),
        (tensor("F32", json!([2]), 8, 0), 8, "bytes 0..8"),
        (tensor("F32", json!([1u64 << 40, 1u64 << 40]), 0, 8), 8, "fits in memory"),
        (tensor("F64", json!([1u64 << 60]), 0, u64::MAX), 8, "fits in memory"),
        (tensor("F32", json!([2]), 0, 8), 9, "file size"),
        (tensor("Q9", json!([2]), 0, 8), 8, "unknown variant"),
        (tensor("F32", json!([-2]), 0, 8), 8, "a table of tensors"),
        (json!([1]), 0, "a table of tensors"),
        (json!({}), 0, "model.embed_tokens.weight"),
    ];
    for (header, data_len, part) in table {
        let weights = safetensors(&header, data_len);
        assert_refused(load(&config, &weights), &["m.safetensors", part]);
    }
    for (bytes, part) in [
        (b"".to_vec(), "found 0 bytes"),
        (b"\x02\0\0\0\0\0\0".to_vec(), "found 7 bytes"),
        (u64::MAX.to_le_bytes().to_vec(), "at most 100000000"),
        (1000u64.to_le_bytes().to_vec(), "at most 0 left"),
    ] {
        assert_refused(load(&config, &bytes), &["header length", part]);
    }
}

/// Returns the small model's file with its header changed by `edit`.
fn edited(edit: impl FnOnce(&mut Value)) -> Vec<u8> {
    let file = small_model().1;
    let header_len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&file[8..8 + header_len]).expect("header");
    edit(&mut header);
    let mut changed = safetensors(&header, 0);
    changed.extend_from_slice(&file[8 + header_len..]);
    changed
}

fn rename(header: &mut Value, from: &str, to: &str) {
    header[to] = header.as_object_mut().unwrap().remove(from).expect(from);
}

#[test]
fn bad_tensors_are_named() {
    let config = small_model().0;
    let q = "model.layers.1.self_attn.q_proj.weight";
    let missing = edited(|header| rename(header, q, "other"));
    assert_refused(load(&config, &missing), &[q, "shape [32, 32]", "no such tensor"]);
    let flat = edited(|header| header[q]["shape"] = json!([1024]));
    assert_refused(load(&config, &flat), &[q, "expected shape [32, 32], found [1024]"]);
    let integers = edited(|header| header[q]["dtype"] = json!("I16"));
    assert_refused(load(&config, &integers), &[q, "BF16, F16 or F32", "I16"]);
    let untied = edited(|header| rename(header, "lm_head.weight", "head"));
    assert_refused(load(&config, &untied), &["lm_head.weight", "no such tensor"]);
    let bias =
        edited(|header| rename(header, "lm_head.weight", "model.layers.0.self_attn.q_proj.bias"));
    let tied = with_key("tie_word_embeddings", &json!(true));
    assert_refused(load(&tied, &bias), &["q_proj.bias", "family"]);
    let fewer_layers = with_key("num_hidden_layers", &json!(1));
    assert_refused(load(&fewer_layers, &small_model().1), &["model.layers.1", "configuration"]);
    assert!(load(&tied, &untied).is_ok());
}

#[test]
fn bad_paths_say_what_to_pass() {
    let empty = folder("paths");
    assert_refused(Model::load(&empty), &["model.safetensors.index.json", "none of these"]);
    assert_refused(Model::load(&empty.join("no.bin")), &["model path", "found nothing"]);
    fs::write(empty.join("model.safetensors"), small_model().1).expect("write");
    assert_refused(Model::load(&empty), &["config.json", "a readable file"]);
    fs::write(empty.join("config.json"), small_model().0).expect("write");
    assert!(Model::load(&empty).is_ok());
    fs::write(empty.join("generation_config.json"), "{\"eos_token_id\": [2, 9]}").expect("write");
    assert_eq!(Model::load(&empty).expect("a model").config.eos_tokens, [2, 9]);
    fs::write(empty.join("generation_config.json"), "{\"eos_token_id\": 99}").expect("write");
    assert_refused(Model::load(&empty), &["generation_config.json", "eos_token_id", "99"]);
    fs::write(empty.join("model.safetensors"), "").expect("write");
    fs::remove_file(empty.join("generation_config.json")).expect("remove");
    assert_refused(Model::load(&empty), &["model.safetensors", "found 0 bytes"]);
}

#[test]
fn bad_indexes_are_named() {
    let copy = folder("index");
    for entry in fs::read_dir(golden("sharded-bf16")).expect("folder") {
        let entry = entry.expect("entry");
        fs::copy(entry.path(), copy.join(entry.file_name())).expect("copy");
    }
    let index = copy.join("model.safetensors.index.json");
    let write = |map: Value| fs::write(&index, json!({"weight_map": map}).to_string()).unwrap();
    for shard in ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", ""] {
        write(json!({"x.weight": shard}));
        assert_refused(Model::load(&copy), &["weight_map.x.weight", "in the same folder"]);
    }
    write(json!({"x.weight": 3}));
    assert_refused(Model::load(&copy), &["weight_map.x.weight", "a string"]);
    write(json!({"x.weight": "absent.safetensors"}));
    assert_refused(Model::load(&copy), &["absent.safetensors", "a readable file"]);
    write(json!({"x.weight": "model-00001-of-00003.safetensors"}));
    assert_refused(Model::load(&copy), &["index.json", "x.weight", "no such tensor"]);
    fs::write(&index, "{}").unwrap();
    assert_refused(Model::load(&copy), &["weight_map", "no such key"]);
}

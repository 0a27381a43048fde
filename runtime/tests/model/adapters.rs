//! Adapters against PEFT, and the files that must not load.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use trail_runtime::cpu::Isa;
use trail_runtime::model::{Adapter, Archive, LoadError, Model, RopePairing, Tensor};
use trail_runtime::reference::Reference;
use trail_test_support::golden::{Golden, check};
use trail_test_support::small::message;

use crate::golden::{check_backend, last};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden-lora")
}

/// The base model of a golden adapter.
fn base(golden: &Golden) -> Model {
    let json = fs::read(golden.folder.join("golden.json")).expect("golden.json");
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    let name = json["base"].as_str().expect("a base");
    Model::load(&folder().with_file_name("golden").join(name)).expect("a base model")
}

#[test]
fn the_reference_agrees_with_peft() {
    let all = Golden::all(&folder());
    assert_eq!(all.len(), 6);
    for golden in all {
        let model = base(&golden);
        let adapter = Adapter::load(&golden.folder, &model.config).expect("an adapter");
        let reference = Reference::new(&model).with_adapter(&adapter);
        let error = check(&golden, |tokens| last(reference.logits(tokens)));
        println!("{:12} log probabilities within {error:.1e}", golden.name());
        let trace = reference.trace(&golden.prompt);
        for (layer, (found, expected)) in trace.hidden.iter().zip(&golden.hidden).enumerate() {
            for (x, y) in found.last().expect("a position").iter().zip(expected) {
                let close = (x - y).abs() <= 1e-4 * (1.0 + y.abs());
                assert!(close, "{}, layer {layer}: {x} instead of {y}", golden.name());
            }
        }
    }
}

#[test]
fn the_cpu_backend_agrees_with_peft() {
    for isa in Isa::available() {
        for golden in Golden::all(&folder()) {
            let model = base(&golden);
            let adapter = Adapter::load(&golden.folder, &model.config).expect("an adapter");
            check_backend(&golden, model, isa, Some(&Arc::new(adapter)));
        }
    }
}

/// GGUF files of Llama have the pairs of RoPE side by side: so has B of q and k.
#[test]
fn a_base_in_the_order_of_gguf_takes_the_adapter_of_its_checkpoint() {
    let golden = Golden::load(&folder().join("all"));
    let mut model = base(&golden);
    model.config.rope_pairing = RopePairing::Adjacent;
    for layer in &mut model.weights.layers {
        layer.q = side_by_side(&layer.q, model.config.head_dim);
        layer.k = side_by_side(&layer.k, model.config.head_dim);
    }
    let adapter = Adapter::load(&golden.folder, &model.config).expect("an adapter");
    let reference = Reference::new(&model).with_adapter(&adapter);
    check(&golden, |tokens| last(reference.logits(tokens)));
}

/// The rows of each head with the halves interleaved.
fn side_by_side(tensor: &Tensor, head_dim: usize) -> Tensor {
    let heads = (0..tensor.rows).step_by(head_dim);
    let rows = heads.flat_map(|head| (0..head_dim / 2).map(move |at| head + at));
    let rows = rows.flat_map(|row| [row, row + head_dim / 2]);
    let bytes: Vec<u8> = rows.flat_map(|row| tensor.row_bytes(row).to_vec()).collect();
    Tensor::new(tensor.dtype, tensor.rows, tensor.cols, Arc::new(bytes), 0).expect("a matrix")
}

/// The golden adapter `name`, with `change` made to its configuration.
fn changed(name: &str, base: &str, change: impl FnOnce(&mut Value)) -> Result<Adapter, LoadError> {
    let read = |file: &str| fs::read(folder().join(name).join(file)).expect(file);
    let mut config: Value = serde_json::from_slice(&read("adapter_config.json")).expect("JSON");
    change(&mut config);
    let model = Model::load(&folder().with_file_name("golden").join(base)).expect("a model");
    let weights = Arc::new(read("adapter_model.safetensors"));
    let archive = Archive::from_storage(Path::new("adapter_model.safetensors"), weights)?;
    let json = config.to_string().into_bytes();
    Adapter::from_archive(Path::new("adapter_config.json"), &json, archive, &model.config)
}

/// Each in one line that names the key or tensor at fault.
#[test]
fn what_is_not_computed_is_refused_by_name() {
    let table = [
        ("peft_type", json!("IA3"), "\"LORA\""),
        ("r", json!(0), "a rank of 1 to 256"),
        ("r", json!(257), "a rank of 1 to 256"),
        ("r", json!(8), "expected shape [8, 32], found [4, 32]"),
        ("lora_alpha", json!("big"), "a number"),
        ("lora_alpha", json!(null), "lora_alpha"),
        ("bias", json!("all"), "\"none\""),
        ("use_dora", json!(true), "not supported"),
        ("lora_bias", json!(true), "not supported"),
        ("modules_to_save", json!(["lm_head"]), "not supported"),
        ("trainable_token_indices", json!([1]), "not supported"),
        ("layer_replication", json!([[0, 2]]), "not supported"),
        ("init_lora_weights", json!("pissa_niter_4"), "keeps the base model"),
        ("init_lora_weights", json!("OLoRA"), "keeps the base model"),
        ("target_modules", json!(["q_proj", "lm_head"]), "names of q, k, v, o"),
        ("target_modules", json!(["embed_tokens"]), "names of q, k, v, o"),
        ("rank_pattern", json!({".*q_proj": 4}), "without expressions"),
        ("rank_pattern", json!({"q_proj": 300}), "a rank of 1 to 256"),
        ("rank_pattern", json!({"q_proj": 2}), "q_proj.lora_A.weight"),
        ("alpha_pattern", json!({"q_proj": 1, "self_attn.q_proj": 2}), "the end of another"),
        ("alpha_pattern", json!([]), "an object"),
    ];
    for (key, value, part) in table {
        let error = changed("all", "llama3-f32", |config| config[key] = value.clone());
        let error = message(&error.err().unwrap_or_else(|| panic!("{key}: {value}")));
        assert!(error.contains(key) || error.contains("lora_"), "{error}");
        assert!(error.contains(part), "{part:?} in {error:?}");
    }
    // The initialization does not matter to what is added, nor how a pattern is written.
    assert!(changed("all", "llama3-f32", |c| c["init_lora_weights"] = json!("gaussian")).is_ok());
    assert!(changed("all", "llama3-f32", |c| c["target_modules"] = json!(".*_proj")).is_ok());
}

#[test]
fn adapters_of_another_base_are_refused() {
    for (name, base, part) in [
        ("all", "llama2-f32", "k_proj.lora_B.weight: expected shape [32, 4], found [16, 4]"),
        ("all", "smollm2-f32", "an adapter that was trained on this model"),
        ("attention", "ministral-f32", "expected"),
        ("rslora", "llama3-f32", "expected"),
    ] {
        let error = message(&changed(name, base, |_| ()).expect_err(name));
        assert!(error.contains(part) && error.contains("lora_"), "{error}");
    }
    let error = message(&changed("all", "qwen3_5-f32", |_| ()).expect_err("a hybrid"));
    assert!(error.contains("without gated delta nets"), "{error}");
    let missing =
        Adapter::load(Path::new("/nowhere"), &base(&Golden::load(&folder().join("all"))).config);
    let error = message(&missing.expect_err("no such folder"));
    assert!(error.contains("adapter_config.json") && error.contains("save_pretrained"), "{error}");
}

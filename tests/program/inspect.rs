//! `trail-rt inspect`: what it says about the demo model.

use std::fs;
use std::path::Path;

use crate::common::{assert_refused, trail_rt};
use serde_json::{Value, json};
use trail_probe::{Bins, Probe, Storage, TapLayers, Weights};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo");

fn inspect(arguments: &[&str]) -> Value {
    let output = trail_rt(&[&["inspect", "--json"], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

#[test]
fn the_sums_are_those_of_the_file() {
    let report = inspect(&[DEMO]);
    let file = format!("{DEMO}/model.safetensors");
    let header = fs::read(&file).expect("the weights");
    let length = u64::from_le_bytes(header[..8].try_into().expect("8 bytes")) as usize;
    let header: Value = serde_json::from_slice(&header[8..8 + length]).expect("a header");
    let shapes = header.as_object().expect("tensors").values().filter_map(|it| it.get("shape"));
    let shapes: Vec<Vec<u64>> =
        shapes.map(|shape| serde_json::from_value(shape.clone()).expect("a shape")).collect();
    let parameters: u64 = shapes.iter().map(|shape| shape.iter().product::<u64>()).sum();
    assert_eq!(number(&report["parameters"]), parameters);
    let sum = |list: &str, member: &str| -> u64 {
        report[list].as_array().expect("a list").iter().map(|it| number(&it[member])).sum()
    };
    assert_eq!(sum("types", "parameters"), parameters);
    for list in ["types", "tensors"] {
        assert_eq!(sum(list, "tensors"), shapes.len() as u64, "{list}");
        assert_eq!(json!(sum(list, "bytes")), report["memory"]["weights_bytes"], "{list}");
    }
    // A tied output projection is a copy on a GPU.
    let copy = 2 * number(&report["vocab_size"]) * number(&report["hidden_size"]);
    assert!(number(&report["memory"]["gpu"]["weights_bytes"]) >= 2 * parameters + copy);
    assert_eq!(report["types"][0]["type"], "BF16");
    assert_eq!(report["tokenizer"]["kind"], "BPE");
    assert_eq!(report["chat_template"], true);
    assert_eq!(report["probe"]["fits"], true);
}

#[test]
fn the_memory_grows_with_batch_and_context() {
    let need = |batch: &str, context: &str| {
        let report = inspect(&["--batch", batch, "--context", context]);
        let memory = &report["memory"];
        let kv = number(&memory["cpu"]["total_bytes"]) - number(&memory["weights_bytes"]);
        (kv / number(&memory["cpu"]["kv_token_bytes"]), memory.clone())
    };
    assert_eq!(need("1", "16").0, 16);
    assert_eq!(need("3", "17").0, 3 * 32, "blocks of 16 tokens");
    let (tokens, memory) = need("8", "1024");
    assert_eq!(tokens, 8 * 1024);
    assert_eq!(
        number(&memory["cpu"]["kv_token_bytes"]),
        2 * number(&memory["gpu"]["kv_token_bytes"])
    );
    let quantized = inspect(&["--kv-dtype", "q8_0"])["memory"].clone();
    let bytes = number(&memory["cpu"]["kv_token_bytes"]) / 128 * 34;
    assert_eq!(number(&quantized["cpu"]["kv_token_bytes"]), bytes, "34 bytes for 32 values");
    assert_eq!(quantized["gpu"]["kv_token_bytes"], memory["gpu"]["kv_token_bytes"]);
}

#[test]
fn a_probe_of_another_model_does_not_fit() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("inspect");
    fs::create_dir_all(&folder).expect("a folder");
    let (file, bins) = (folder.join("other.safetensors"), Bins::default());
    for (width, layer, model, says) in [
        (64, 0, None, "activations of width 64"),
        (256, 99, None, "taps layer 99"),
        (256, 3, Some("another"), "was trained for another model"),
    ] {
        let weights = Weights::random(width, 16, bins.count(), 1);
        let mut probe = Probe::new(weights, bins, TapLayers::one(layer));
        probe.model = model.map(str::to_owned);
        fs::write(&file, probe.to_bytes(Storage::F32)).expect("written");
        let path = file.to_str().expect("UTF-8");
        let probe = &inspect(&["--probe", path])["probe"];
        assert_eq!(probe["fits"], false);
        let why = probe["reason"].as_str().expect("a reason");
        assert!(why.contains(says), "{why}");
        let text = trail_rt(&["inspect", "--probe", path]);
        assert!(String::from_utf8_lossy(&text.stdout).contains(says));
    }
    fs::write(&file, "damaged").expect("written");
    assert_eq!(inspect(&["--probe", file.to_str().expect("UTF-8")])["probe"]["fits"], false);
    for file in ["config.json", "model.safetensors"] {
        fs::copy(Path::new(DEMO).join(file), folder.join(file)).expect("a copy");
    }
    let bare = inspect(&[folder.to_str().expect("UTF-8")]);
    let nothing = [&bare["probe"], &bare["tokenizer"]];
    assert_eq!(nothing, [&Value::Null, &Value::Null]);
    assert_eq!(bare["chat_template"], false);
    fs::write(folder.join("config.json"), "{").expect("written");
    assert_refused(&trail_rt(&["inspect", folder.to_str().expect("UTF-8")]), 1, "config.json");
}

#[test]
fn limits_of_the_chat_template_are_listed() {
    assert_eq!(inspect(&[DEMO])["chat_template_limits"], json!([]));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("inspect-template");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(Path::new(DEMO).join(file), folder.join(file)).expect("a copy");
    }
    let template = folder.join("chat_template.jinja");
    let path = folder.to_str().expect("UTF-8");
    let strict = "{% for m in messages %}{% if m.role == 'system' %}\
                  {{ raise_exception('no system role') }}{% endif %}{{ m.content }}{% endfor %}";
    fs::write(&template, strict).expect("written");
    let limits = json!(["refuses a system message: no system role"]);
    assert_eq!(inspect(&[path])["chat_template_limits"], limits);
    let text = trail_rt(&["inspect", path]);
    let line = "yes; it refuses a system message: no system role";
    assert!(String::from_utf8_lossy(&text.stdout).contains(line));
    fs::write(&template, "{{ raise_exception('never') }}").expect("written");
    assert_refused(&trail_rt(&["inspect", path]), 1, "the chat template failed: never");
}

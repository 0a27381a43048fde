//! Weights that are not finite: an error with its reason, never an answer.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Server, http, trail_rt};
use serde_json::{Value, json};

const REASON: &str = "logits are not finite: the weights are damaged or overflowed";

/// A copy of the demo model with NaN in place of every weight.
fn nan_model(name: &str) -> PathBuf {
    let demo = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).expect("a folder");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(demo.join(file), folder.join(file)).expect("a copy");
    }
    let mut weights = fs::read(demo.join("model.safetensors")).expect("its weights");
    let header = u64::from_le_bytes(weights[..8].try_into().expect("8 bytes")) as usize;
    weights[8 + header..].fill(0xff);
    fs::write(folder.join("model.safetensors"), weights).expect("a file");
    folder
}

#[test]
fn generate_fails_with_the_reason() {
    let folder = nan_model("nan-generate");
    let model = folder.to_str().expect("UTF-8");
    let arguments = ["--model", model, "generate", "--prompt", "hi", "--max-tokens", "3"];
    for json in [&[][..], &["--json"]] {
        let output = trail_rt(&[&arguments[..], json].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        // Behind a notice that the folder has no probe.
        assert_eq!(errors.lines().last(), Some(&*format!("error: {REASON}")), "{errors}");
        assert!(output.stdout.is_empty(), "an answer: {:?}", output.stdout);
    }
}

#[test]
fn the_server_answers_500_or_ends_the_stream_with_the_error() {
    let folder = nan_model("nan-serve");
    let server = Server::start(&["--model", folder.to_str().expect("UTF-8")]);
    let chat = json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 3 });
    let raw = json!({ "prompt": "hi", "max_tokens": 3, "n": 2 });
    for (path, mut body) in [("/v1/chat/completions", chat), ("/v1/completions", raw)] {
        let (status, answer) = server.request("POST", path, &body.to_string());
        assert_eq!(status, 500, "{answer}");
        let error = json!({
            "message": REASON, "type": "server_error", "param": null, "code": null,
        });
        assert_eq!(answer, json!({ "error": error }));
        body["stream"] = true.into();
        let (status, text) = http::receive(server.begin(path, &body));
        assert_eq!(status, 200, "{text}");
        let last = text.lines().rev().find_map(|line| line.strip_prefix("data: "));
        let last: Value = serde_json::from_str(last.expect("an event")).expect("JSON");
        assert_eq!(last["error"], error, "{text}");
    }
    // A fault of the requests: the server and its engine go on.
    assert_eq!(server.get("/health").0, 200);
}

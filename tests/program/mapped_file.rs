//! A model's file that is cut while it is served.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::common::Server;
use serde_json::json;

const SIGBUS: i32 = 7;

#[test]
fn a_model_that_is_cut_ends_the_server_with_its_name() {
    let demo = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cut-model");
    fs::create_dir_all(&folder).expect("a folder");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        fs::copy(demo.join(file), folder.join(file)).expect("a copy");
    }
    let mut server = Server::start(&["--model", folder.to_str().expect("UTF-8")]);
    let ask = json!({ "prompt": "Count to ten.", "max_tokens": 3 });
    server.post("/v1/completions", &ask);
    let weights = folder.join("model.safetensors");
    let file = fs::File::options().write(true).open(&weights).expect("weights");
    file.set_len(100_000).expect("cut");
    let _connection = server.begin("/v1/completions", &ask);
    let (status, errors) = server.end();
    assert_eq!(status.signal(), Some(SIGBUS), "{errors}");
    let says = format!("error: cannot read {} any more: it was shortened", weights.display());
    assert_eq!(errors.lines().filter(|line| line.starts_with(&says)).count(), 1, "{errors}");
}

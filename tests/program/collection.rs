//! Small collections of answers of the demo model.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

const PROMPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo/prompts.jsonl");

/// A folder of one test, removed at its end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("trail-probe-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The object that a command printed.
pub(crate) fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// Options of a small collection in `folder`.
pub(crate) fn collecting<'a>(folder: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let options =
        ["probe", "collect", "--json", "--device", "cpu", "--max-tokens", "64", "--out", folder];
    [&options[..], &["--prompts", PROMPTS, "--requests", "24", "--shard", "8"], more].concat()
}

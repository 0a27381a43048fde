//! `trail-rt pull` and `--model hf:`, against a hub on loopback.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::common::{assert_refused, deadline};
use crate::hub::{COMMIT, Hub, command};
use serde_json::Value;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo");

/// Files of the demo model that a repository has.
const FILES: [&str; 5] =
    ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "README.md"];

/// An empty cache.
fn home(name: &str) -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hub").join(name);
    let _ = fs::remove_dir_all(&home);
    fs::create_dir_all(&home).expect("a folder");
    home
}

/// A hub with the demo model as `trail/demo`.
fn demo_hub() -> Hub {
    let read = |name: &&'static str| (*name, fs::read(Path::new(DEMO).join(name)).expect("a file"));
    let files: Vec<_> = FILES.iter().map(read).collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
    Hub::start("trail/demo", &files)
}

fn snapshot(home: &Path, repository: &str) -> PathBuf {
    let folder = format!("models--{}", repository.replace('/', "--"));
    home.join("hub").join(folder).join("snapshots").join(COMMIT)
}

/// The path that a successful pull prints.
fn path(output: &Output) -> PathBuf {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("UTF-8").trim_end().into()
}

/// Requests for the content of a file, not for its headers alone.
fn downloads(hub: &Hub) -> Vec<String> {
    hub.requests().into_iter().filter(|request| is_content(request)).collect()
}

fn is_content(request: &str) -> bool {
    request.contains("/resolve/") && !request.ends_with("=0-0")
}

#[test]
fn a_pulled_model_runs_without_the_hub_and_what_is_missing_is_fetched() {
    let (hub, home) = (demo_hub(), home("demo"));
    let pulled = path(&hub.run(&home, &["pull", "trail/demo"]));
    assert_eq!(pulled, snapshot(&home, "trail/demo"));
    for name in &FILES[..4] {
        let copy = fs::read(pulled.join(name)).expect("fetched");
        assert_eq!(copy, fs::read(Path::new(DEMO).join(name)).expect("a file"), "{name}");
    }
    assert!(!pulled.join("README.md").exists(), "no part of the model");
    assert!(downloads(&hub).len() >= 4);

    let ask = ["generate", "--model", "hf:trail/demo", "--prompt-ids", "1,2", "--max-tokens", "2"];
    assert!(hub.run(&home, &ask).status.success());
    assert_eq!(hub.requests(), [""; 0], "a complete model needs no request");
    fs::remove_file(pulled.join("tokenizer.json")).expect("removed");
    let config = fs::canonicalize(pulled.join("config.json")).expect("a blob");
    fs::remove_file(config).expect("removed");
    assert!(hub.run(&home, &ask).status.success());
    let fetched = downloads(&hub);
    assert!(fetched.len() == 1 && fetched[0].contains("/config.json"), "{fetched:?}");

    let report = hub.run(&home, &["pull", "trail/demo", "--json"]);
    let report: Value = serde_json::from_slice(&report.stdout).expect("one JSON object");
    assert_eq!(report["commit"], COMMIT);
    assert_eq!(report["files"].as_array().map(Vec::len), Some(4));
    assert!(report["files"][0]["was_cached"] == true && downloads(&hub).is_empty());

    hub.set(|state| state.status = Some(500));
    let inspect = hub.run(&home, &["inspect", "hf:trail/demo"]);
    let text = String::from_utf8_lossy(&inspect.stdout).into_owned();
    assert!(inspect.status.success() && text.contains("trail/demo"), "{text}");
}

#[test]
fn a_broken_download_is_resumed_by_the_same_run_and_by_the_next() {
    let bytes: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
    let (hub, home) = (Hub::start("a/b", &[("m.gguf", &bytes)]), home("resume"));
    hub.set(|state| state.cuts = 1);
    let file = path(&hub.run(&home, &["pull", "a/b"]));
    assert_eq!(fs::read(&file).expect("fetched"), bytes);
    let half = bytes.len() / 2;
    let resumed = downloads(&hub);
    assert!(
        resumed.last().is_some_and(|last| last.ends_with(&format!("bytes={half}-"))),
        "{resumed:?}"
    );

    hub.add("a/c", &[("m.gguf", &bytes)]);
    hub.set(|state| state.cuts = 5);
    assert_refused(&hub.run(&home, &["pull", "a/c"]), 1, "run the command again to resume");
    assert!(!snapshot(&home, "a/c").join("m.gguf").exists());
    hub.requests();
    // The request that resumes fails before a byte: the next one asks for the same range.
    hub.set(|state| state.drops = 1);
    let file = path(&hub.run(&home, &["pull", "a/c"]));
    assert_eq!(fs::read(&file).expect("fetched"), bytes);
    let begin = bytes.len() - bytes.len() / 32;
    let requests = hub.requests();
    let is_metadata =
        |request: &&String| request.starts_with("GET /a/c/resolve/") && request.ends_with("=0-0");
    // A second answer about the file would have to be checked as the first.
    assert_eq!(requests.iter().filter(is_metadata).count(), 1, "{requests:?}");
    let resumed: Vec<_> = requests.into_iter().filter(|request| is_content(request)).collect();
    assert!(resumed.len() >= 2, "{resumed:?}");
    assert!(resumed[0].ends_with(&format!("bytes={begin}-")), "{resumed:?}");
}

#[test]
fn a_download_whose_checksum_differs_is_removed() {
    let bytes = vec![7; 5000];
    let (hub, home) = (Hub::start("a/b", &[("m.gguf", &bytes)]), home("checksum"));
    hub.set(|state| state.is_damaged = true);
    for model in [&["pull", "a/b"][..], &["inspect", "hf:a/b"]] {
        assert_refused(&hub.run(&home, model), 1, "SHA-256");
    }
    hub.set(|state| state.is_damaged = false);
    let file = path(&hub.run(&home, &["pull", "a/b"]));
    assert_eq!(fs::read(&file).expect("fetched"), bytes);
    // As if the comparison had been broken off: the file is not taken before it is made.
    let blob = fs::canonicalize(&file).expect("a blob");
    fs::write(blob.with_extension("unverified"), "").expect("written");
    fs::write(&blob, vec![8; 5000]).expect("written");
    assert_refused(&hub.run(&home, &["inspect", "hf:a/b:m.gguf"]), 1, "SHA-256");
    assert_eq!(fs::read(path(&hub.run(&home, &["pull", "a/b"]))).expect("fetched"), bytes);
}

#[test]
fn a_file_of_git_whose_digest_differs_is_removed() {
    // Below the size at which the hub stores files apart, with a SHA-256.
    let (hub, home) = (Hub::start("a/b", &[("m.gguf", b"small")]), home("git-checksum"));
    hub.set(|state| state.is_damaged_in_git = true);
    for model in [&["pull", "a/b"][..], &["inspect", "hf:a/b"]] {
        assert_refused(&hub.run(&home, model), 1, "git SHA-1");
    }
    hub.set(|state| state.is_damaged_in_git = false);
    assert_eq!(fs::read(path(&hub.run(&home, &["pull", "a/b"]))).expect("fetched"), b"small");
}

#[test]
fn a_stalled_download_is_resumed_by_the_next_run() {
    let bytes: Vec<u8> = (0..2000u32).flat_map(u32::to_le_bytes).collect();
    let (hub, home) = (Hub::start("a/b", &[("m.gguf", &bytes)]), home("stall"));
    hub.set(|state| (state.stalls, state.cuts) = (true, 1));
    let stalled = hub.run_impatiently(&home, &["pull", "a/b"]);
    assert_refused(&stalled, 1, "run the command again to resume");
    hub.requests();
    let file = path(&hub.run(&home, &["pull", "a/b"]));
    assert_eq!(fs::read(&file).expect("fetched"), bytes);
    let resumed = downloads(&hub);
    let half = bytes.len() / 2;
    assert!(resumed.iter().all(|one| one.ends_with(&format!("bytes={half}-"))), "{resumed:?}");
}

#[test]
fn the_cache_is_used_where_the_hub_stalls() {
    let (hub, home) = (Hub::start("a/b", &[("m.gguf", b"1")]), home("stall-cache"));
    path(&hub.run(&home, &["pull", "a/b"]));
    // As if another program had filled the cache, which does not note that there is one model.
    fs::remove_file(home.join("hub").join("models--a--b").join("trail-default")).expect("noted");
    hub.set(|state| (state.stalls, state.list_is_dropped) = (true, true));
    // The file is found, and refused as it is no model.
    let inspect = hub.run_impatiently(&home, &["inspect", "hf:a/b"]);
    let errors = String::from_utf8_lossy(&inspect.stderr).into_owned();
    assert!(errors.contains("the cached model is used") && errors.contains("m.gguf"), "{errors}");
    assert_refused(&hub.run_impatiently(&home, &["pull", "a/b"]), 1, "cannot reach");
}

#[test]
fn redirects_and_weak_etags_are_followed() {
    let files: [(&str, &[u8]); 2] = [("a/m.gguf", &[7; 5000]), ("a/probe.safetensors", b"1")];
    let (hub, home) = (Hub::start("a/b", &files), home("redirects"));
    hub.set(|state| {
        state.is_weak = true;
        state.renamed = Some(("old/name".into(), "a/b".into()));
    });
    for name in ["old/name", "a/b"] {
        let file = path(&hub.run(&home, &["pull", name]));
        assert_eq!(fs::read(&file).expect("fetched"), [7; 5000]);
        assert_eq!(fs::read(file.with_file_name("probe.safetensors")).expect("fetched"), b"1");
    }
    hub.requests();
    assert!(hub.run(&home, &["pull", "a/b"]).status.success());
    assert_eq!(downloads(&hub), [""; 0], "all is in the cache");
}

/// The hub redirects large files to another host, which refuses a request with a token.
#[test]
fn the_token_goes_to_the_hub_alone() {
    let (hub, home) = (demo_hub(), home("token"));
    hub.set(|state| state.token = Some("secret".into()));
    let endpoint = format!("http://{}", hub.address);
    let mut command = command(&home);
    command.env("HF_ENDPOINT", endpoint).env("HF_TOKEN", "secret").args(["pull", "trail/demo"]);
    let pulled = path(&deadline::output(&mut command));
    let weights = fs::read(pulled.join("model.safetensors")).expect("fetched");
    assert_eq!(weights, fs::read(Path::new(DEMO).join("model.safetensors")).expect("a file"));
    let requests = hub.requests();
    assert!(requests.iter().any(|request| request.contains("/cdn/")), "{requests:?}");
}

#[test]
fn a_redirect_to_itself_ends() {
    let (hub, home) = (demo_hub(), home("loop"));
    hub.set(|state| state.renamed = Some(("trail/demo".into(), "trail/demo".into())));
    assert_refused(&hub.run(&home, &["pull", "trail/demo"]), 1, "redirect");
    assert!(hub.requests().len() < 20);
}

#[test]
fn gguf_files_are_named_where_there_are_several() {
    let files: [(&str, &[u8]); 3] = [("a-q4.gguf", b"4"), ("a-q8.gguf", b"8"), ("README.md", b"")];
    let (hub, home) = (Hub::start("a/b", &files), home("gguf"));
    assert_refused(&hub.run(&home, &["pull", "a/b"]), 2, "a/b:FILE, of a-q4.gguf, a-q8.gguf");
    let file = path(&hub.run(&home, &["pull", "a/b:a-q8.gguf"]));
    assert_eq!(fs::read(&file).expect("fetched"), b"8");
    assert!(file.ends_with("a-q8.gguf") && !file.with_file_name("a-q4.gguf").exists());
    // One of two files in the cache decides nothing.
    assert_refused(&hub.run(&home, &["inspect", "hf:a/b"]), 2, "a-q4.gguf, a-q8.gguf");
    assert_refused(&hub.run(&home, &["pull", "a/b:a-q5.gguf"]), 2, "no file a-q5.gguf");
    // The only model of a repository is complete, and taken without a request.
    hub.add("a/one", &[("m.gguf", b"1"), ("README.md", b"2")]);
    path(&hub.run(&home, &["pull", "a/one"]));
    hub.requests();
    assert_eq!(hub.run(&home, &["inspect", "hf:a/one"]).status.code(), Some(1), "no model");
    assert_eq!(hub.requests(), [""; 0]);
    // Without that note the hub is asked; the cached model is used if it is too busy.
    let repository = home.join("hub").join("models--a--one");
    fs::remove_file(repository.join("trail-default")).expect("noted");
    for status in [429, 503] {
        hub.set(|state| state.status = Some(status));
        let inspect = hub.run(&home, &["inspect", "hf:a/one"]);
        let errors = String::from_utf8_lossy(&inspect.stderr).into_owned();
        assert!(errors.contains("the cached model is used"), "{errors}");
    }
    hub.set(|state| state.status = None);
    hub.add("a/none", &[("model.bin", b"")]);
    assert_refused(&hub.run(&home, &["pull", "a/none"]), 2, "neither safetensors nor .gguf");
}

#[test]
fn shards_are_those_of_the_index() {
    let index = br#"{"weight_map": {"a": "x-2.safetensors", "b": "x-1.safetensors"}}"#;
    let files: [(&str, &[u8]); 3] = [
        ("model.safetensors.index.json", index),
        ("x-1.safetensors", b"1"),
        ("x-2.safetensors", b"2"),
    ];
    let (hub, home) = (Hub::start("a/b", &files), home("shards"));
    let folder = path(&hub.run(&home, &["pull", "a/b"]));
    assert_eq!(fs::read(folder.join("x-2.safetensors")).expect("fetched"), b"2");
    hub.add("a/c", &[("model.safetensors.index.json", br#"{"weight_map": {"a": "../x"}}"#)]);
    let refused = hub.run(&home, &["pull", "a/c"]);
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{errors}");
    // After the line of the index.
    assert!(errors.lines().nth(1).is_some_and(|line| line.contains("weight_map")), "{errors}");
}

#[test]
fn refusals_of_the_hub_are_one_line() {
    let (hub, home) = (Hub::start("a/b", &[("m.gguf", b"1")]), home("refusals"));
    hub.set(|state| state.token = Some("secret".into()));
    let refused = hub.run(&home, &["pull", "a/b"]);
    assert_refused(&refused, 1, "HF_TOKEN");
    let endpoint = format!("http://{}", hub.address);
    let mut with_token = command(&home);
    with_token.env("HF_ENDPOINT", &endpoint).env("HF_TOKEN", "secret").args(["pull", "a/b"]);
    path(&deadline::output(&mut with_token));
    fs::write(home.join("token"), "secret\n").expect("written");
    path(&hub.run(&home, &["pull", "a/b"]));
    hub.set(|state| state.token = None);
    assert_refused(&hub.run(&home, &["pull", "a/none"]), 2, "no such model");
    for (status, says) in [(403, "accept the model's terms"), (429, "wait"), (503, "503")] {
        hub.set(|state| state.status = Some(status));
        assert_refused(&hub.run(&home, &["pull", "a/b"]), 1, says);
    }
    hub.set(|state| state.status = None);
    for (name, says) in [("a", "OWNER/NAME"), ("../b", "OWNER/NAME"), ("a/b:../c", "repository")] {
        assert_refused(&hub.run(&home, &["pull", name]), 2, says);
        let model = format!("hf:{name}");
        assert_refused(&hub.run(&home, &["inspect", &model]), 2, says);
    }
}

#[test]
fn without_a_network_the_cache_decides() {
    let (hub, cache) = (Hub::start("a/b", &[("m.gguf", b"1")]), home("offline"));
    path(&hub.run(&cache, &["pull", "a/b"]));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let closed = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let run = |home: &Path, arguments: &[&str]| {
        deadline::output(command(home).env("HF_ENDPOINT", &closed).args(arguments))
    };
    assert_refused(&run(&cache, &["pull", "a/b"]), 1, "cannot reach");
    // As if another program had filled the cache, which does not note that there is one model.
    fs::remove_file(cache.join("hub").join("models--a--b").join("trail-default")).expect("noted");
    // The file is found, and refused as it is no model.
    let found = run(&cache, &["inspect", "hf:a/b"]);
    let errors = String::from_utf8_lossy(&found.stderr).into_owned();
    assert!(errors.contains("the cached model is used") && errors.contains("m.gguf"), "{errors}");
    assert_refused(&run(&home("empty"), &["inspect", "hf:a/b"]), 1, "cannot reach");
    let mut offline = command(&home("empty"));
    offline.env("HF_HUB_OFFLINE", "1").args(["inspect", "hf:a/b"]);
    assert_refused(&deadline::output(&mut offline), 1, "HF_HUB_OFFLINE");
}

#[test]
fn requests_go_through_the_proxy() {
    let proxy = Hub::start("a/b", &[]);
    let mut command = command(&home("proxy"));
    command.env("HF_ENDPOINT", "http://hub.invalid").args(["pull", "a/b"]);
    command.env("HTTPS_PROXY", format!("http://{}", proxy.address));
    assert_refused(&deadline::output(&mut command), 1, "hub.invalid");
    let requests = proxy.requests();
    assert!(requests.iter().any(|request| request.contains("hub.invalid")), "{requests:?}");
}

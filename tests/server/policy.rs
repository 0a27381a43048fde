//! The policy of a served model, and where its options come from.

use std::fs;

use serde_json::json;
use trail_probe::{Probe, RankOptions, Storage};

use crate::common::Server;

#[test]
fn the_options_of_a_rank_are_the_command_lines_then_the_probes() {
    let name = format!("trail-rank-options-{}.safetensors", std::process::id());
    let file = std::env::temp_dir().join(name);
    let mut probe = Probe::random(256, 3, 1);
    probe.rank_options =
        RankOptions { min_run_tokens: Some(3), express: Some(2.0), initial_share: Some(0.25) };
    fs::write(&file, probe.to_bytes(Storage::Bf16)).expect("written");
    let path = file.to_str().expect("UTF-8");
    let shown = |server: &Server, change: &str| {
        let answer = match change {
            "" => server.exchange("GET", "/v1/trail/policy", &[], ""),
            name => {
                let body = json!({ "policy": name }).to_string();
                server.exchange("POST", "/v1/trail/policy", &[], &body)
            }
        };
        answer.json()["policy"].as_str().expect("a policy").to_owned()
    };
    let share = "share of the first prediction 0.25";
    let plain = Server::start(&["--probe", path]);
    assert_eq!(shown(&plain, ""), format!("trail:0.8, minimum run 3, express 2, {share}"));
    assert_eq!(shown(&plain, "sjf"), "sjf", "they were chosen for trail");
    let auto = shown(&plain, "trail-auto");
    assert!(auto.ends_with(&format!("minimum run 3, express 2, {share}")), "{auto}");

    let options = ["--policy", "sjf", "--c", "0.5", "--express", "0.25", "--tail-bound", "3"];
    let named = Server::start(&[&options[..], &["--probe", path]].concat());
    let own = "tail bound 3, minimum run 3, express 0.25";
    assert_eq!(shown(&named, ""), "sjf, tail bound 3, express 0.25");
    assert_eq!(shown(&named, "trail"), format!("trail:0.5, {own}, {share}"));
    assert_eq!(shown(&named, "trail:0.8"), format!("trail:0.8, {own}, {share}"), "by name");
    assert_eq!(shown(&named, "sjf"), "sjf, tail bound 3, express 0.25");

    let paper = Server::start(&["--paper", "--probe", path]);
    let auto = shown(&paper, "trail-auto");
    assert!(auto.contains("tail bound 0, minimum run 0, express 0") && !auto.contains(share));
    fs::remove_file(file).expect("the test's own file");
}

//! `trail-rt advise` on a recorded demonstration.

use std::path::Path;

use crate::common::trail_rt;
use serde_json::Value;

fn json(arguments: &[&str]) -> Value {
    let output = trail_rt(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn seconds(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// From either log the gains of the demonstration itself follow, to 5 %.
#[test]
fn advice_predicts_the_gains_of_a_rerun() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("advise");
    let log = folder.join("log.jsonl");
    let (folder, log) = (folder.to_str().expect("UTF-8"), log.to_str().expect("UTF-8"));
    let arguments = ["demo", "--prompts", "40", "--max-tokens", "120", "--max-running", "2"];
    let load = ["--load", "1.5", "--policies", "fcfs,sjf,trail,oracle", "--json"];
    let demo = json(&[&arguments[..], &load, &["--out", folder, "--record", log]].concat());
    for recorded in ["fcfs", "trail"] {
        let log = log.replace("log.jsonl", &format!("log.{recorded}.jsonl"));
        let advice = json(&["advise", &log, "--json"]);
        assert_eq!(advice["requests"], 40);
        let policies = advice["policies"].as_array().expect("a list");
        let names: Vec<_> = policies.iter().map(|row| row["policy"].as_str().unwrap()).collect();
        assert_eq!(names, ["fcfs", "sjf", "trail:0.8", "oracle"]);
        let bound = seconds(&advice["latency_mean_bound_s"]);
        for (row, name) in policies.iter().zip(["fcfs", "sjf", "trail", "oracle"]) {
            let mean = seconds(&row["latency_mean_s"]);
            assert!(0.0 < bound && bound <= mean, "{name}: {mean} s, bound {bound} s");
            let of = |policy: &str| seconds(&demo["policies"][policy]["latency_s"]["mean"]);
            let (gain, measured) = (seconds(&row["gain"]), of("fcfs") / of(name));
            assert!((gain / measured - 1.0).abs() < 0.05, "{name}: {gain}, measured {measured}");
            let [low, high] = [0, 1].map(|at| seconds(&row["gain_90"][at]));
            assert!(low <= gain && gain <= high, "{name}: {gain} outside of {low}-{high}");
        }
        // Of 40 latencies the largest, as in the report of a replay.
        let replayed = json(&["replay", &log, "--policy", "fcfs", "--json"]);
        let expected = &replayed["runs"].as_array().expect("runs").last().expect("a run");
        let expected = seconds(&expected["latency_s"]["p99"]);
        let p99 = seconds(&policies[0]["latency_p99_s"]);
        assert!((p99 / expected - 1.0).abs() < 1e-3, "{p99}, replayed {expected}");
        let output = trail_rt(&["advise", &log]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("No policy, whatever it knows") && text.contains("Serve with"));
    }
}

#[test]
fn a_log_that_cannot_be_read_is_named() {
    let output = trail_rt(&["advise", "/nowhere/log.jsonl"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), errors.lines().count()), (Some(2), 1), "{errors}");
    assert!(errors.contains("cannot read the log /nowhere/log.jsonl"), "{errors}");
}

//! `bench serve` on a tiny random model: every policy runs, and the figures are present and
//! plausible. Relative speed is not asserted: a run takes a fifth of a second, on a shared machine.

use crate::common::{assert_refused, trail_rt};
use serde_json::Value;

/// A small workload; the KV cache holds two of the six possible sequences at their maximum length.
const SMALL: [&str; 16] = [
    "bench",
    "serve",
    "--random-weights",
    "tiny",
    "--device",
    "cpu",
    "--threads",
    "1",
    "--max-running",
    "6",
    "--kv-blocks",
    "40",
    "--prompt-tokens",
    "24",
    "--max-tokens",
    "200",
];

fn bench(more: &[&str]) -> Value {
    let output = trail_rt(&[&SMALL[..], more, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {value}"))
}

#[test]
fn a_burst_under_every_policy_is_verified_and_memory_binds() {
    let report = bench(&["--burst", "40"]);
    let runs = report["runs"].as_array().expect("runs");
    let names: Vec<&str> = runs.iter().map(|run| run["policy"].as_str().expect("a name")).collect();
    let trails = ["trail:0.2", "trail:0.5", "trail:0.8", "trail:1"];
    assert_eq!(names, [&["fcfs", "sjf"], &trails[..], &["oracle"]].concat());
    for run in runs {
        assert_eq!((&run["verified"], &run["load"]), (&Value::Bool(true), &Value::Null));
        let latency = |name: &str| number(run, &format!("/latency_s/{name}"));
        assert!(latency("p50") <= latency("p95") && latency("p95") <= latency("p99"));
        assert!(number(run, "/ttft_s/mean") < latency("mean"));
        assert!(number(run, "/tpot_s/mean") > 0.0);
        assert!((0.0..=1.0).contains(&number(run, "/smooth_share")));
        assert!((1.0..=40.0).contains(&number(run, "/peak/kv_blocks")));
        assert_eq!(number(run, "/swaps_out"), 0.0, "the CPU recomputes");
    }
    assert!(runs.iter().any(|run| number(run, "/recomputes") > 0.0), "{report}");
    for truth in ["random_weights", "forced_lengths", "replayed_predictions"] {
        assert_eq!(report[truth], true);
    }
}

#[test]
fn loads_are_shares_of_capacity_and_the_table_names_what_was_forced() {
    let some = ["--requests", "12", "--loads", "2,8", "--policies", "fcfs,trail:0.8"];
    let output = trail_rt(&[&SMALL[..], &some].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).expect("UTF-8");
    for expected in [
        "2.00  fcfs",
        "8.00  trail:0.8",
        "Random weights, ",
        "forced output lengths",
        "replayed predictions",
        "capacity",
    ] {
        assert!(table.contains(expected), "{expected:?} in {table}");
    }
    let report = bench(&some);
    assert_eq!(report["runs"].as_array().map(Vec::len), Some(4));
    // Predictions are replayed, with an error of the order that was measured.
    let error = number(&report, "/runs/1/prediction_mae");
    assert!((2.0..200.0).contains(&error), "{error}");
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let refuse =
        |more: &[&str], why| assert_refused(&trail_rt(&[&SMALL[..], more].concat()), 2, why);
    refuse(&["--policies", "trail:2"], "from 0 to 1");
    refuse(&["--policies", "lifo"], "unknown policy");
    refuse(&["--loads", "0"], "--loads");
    refuse(&["--burst", "5", "--loads", "1"], "cannot be used with");
}

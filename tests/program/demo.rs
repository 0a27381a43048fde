//! `demo`: by simulated time a comparison is reproducible to the digit; lists of loads and seeds,
//! the wall clock, and refusals.

use crate::common::{assert_refused, trail_rt};
use serde_json::Value;

/// Few prompts with short answers, on one thread.
const SMALL: [&str; 10] = [
    "demo",
    "--prompts",
    "10",
    "--max-tokens",
    "48",
    "--device",
    "cpu",
    "--threads",
    "1",
    "--json",
];

/// Runs `trail-rt demo` with `more` options and a separate folder for the results.
fn demo(name: &str, more: &[&str]) -> Value {
    let out = std::env::temp_dir().join(format!("trail-rt-demo-{}-{name}", std::process::id()));
    let folder = out.to_str().expect("a UTF-8 path");
    let output = trail_rt(&[&SMALL[..], &["--out", folder], more].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(out.join("demo.svg").is_file() && out.join("demo.json").is_file());
    std::fs::remove_dir_all(&out).expect("the test's own folder");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn has(value: &Value, paths: &[&str]) {
    for path in paths {
        assert!(value.pointer(path).is_some_and(Value::is_number), "{path} in {value}");
    }
}

#[test]
fn simulated_runs_are_the_same_to_the_digit() {
    let policies = ["--policies", "fcfs,trail,oracle", "--load", "3"];
    let [first, second] = ["first", "second"].map(|name| demo(name, &policies));
    assert_eq!(first["ratio_to_fcfs"], second["ratio_to_fcfs"]);
    assert_eq!((&first["clock"], &first["arrivals"]), (&"steps".into(), &"poisson".into()));
    has(
        &first,
        &[
            "/step_cost_ns/fixed",
            "/step_cost_ns/decode_row",
            "/step_cost_ns/prefill_token",
            "/step_cost_ns/context_token",
            "/machine_factor",
            "/residual",
            "/wall_s",
            "/capacity_tokens_per_s",
            "/capacity_requests_per_s",
            "/policies/trail/longest_gap_s/p99",
            "/policies/trail/max_wait_s/mean",
            "/policies/trail/evictions",
            "/ratio_to_fcfs/oracle/latency_mean",
            "/ratio_to_fcfs/trail/ttft_mean",
        ],
    );
}

#[test]
fn loads_and_seeds_share_a_recording() {
    let lists = ["--load", "1.5,burst", "--seed", "1,2", "--policies", "fcfs,sjf"];
    // Two sequences per step, so that requests queue.
    let report = demo("list", &[&lists[..], &["--max-running", "2"]].concat());
    let cells = report["cells"].as_array().expect("cells");
    let shape: Vec<_> = cells.iter().map(|cell| (&cell["load"], &cell["seed"])).collect();
    let (load, none) = (1.5.into(), Value::Null);
    let seeds: [Value; 2] = [1.into(), 2.into()];
    let expected = [(&load, &seeds[0]), (&load, &seeds[1]), (&none, &seeds[0]), (&none, &seeds[1])];
    assert_eq!(shape, expected);
    // A burst has no arrival times to draw.
    assert_eq!(cells[2]["ratio_to_fcfs"], cells[3]["ratio_to_fcfs"]);
    let latency = |cell: usize| &cells[cell]["policies"]["fcfs"]["latency_s"];
    assert_eq!(latency(2), latency(3));
    assert_ne!(latency(0), latency(1), "seeds draw other arrival times");
    let smooth = |cell: usize| cells[cell]["policies"]["fcfs"]["smooth_share"].as_f64();
    assert!((0..4).all(|cell| smooth(cell) == Some(1.0)), "none is preempted: {report}");
}

#[test]
fn the_wall_clock_has_rounds_and_no_step_costs() {
    let report = demo("wall", &["--clock", "wall", "--rounds", "2"]);
    assert_eq!((&report["clock"], &report["step_cost_ns"]), (&"wall".into(), &Value::Null));
    assert_eq!(report["machine_factor"], Value::Null);
    has(&report, &["/ratio_to_fcfs/trail/latency_mean", "/latency_mean_ratio_spread/trail/1"]);
}

#[test]
fn what_cannot_run_is_refused_before_anything_runs() {
    let refused = |more: &[&str], code, says: &str| {
        assert_refused(&trail_rt(&[&SMALL[..], more].concat()), code, says);
    };
    refused(&["--load", "0"], 2, "0.001 to 1000, or burst");
    refused(&["--load", "1e-300"], 2, "0.001 to 1000, or burst");
    refused(&["--record", "/dev/full"], 2, "--record /dev/full: each policy has its own log");
    refused(&["--step-cost", "/nonexistent"], 2, "/nonexistent");
    refused(&["--prompts", "100000"], 2, "--prompts");
    refused(&["--out", "/dev/null/x"], 1, "choose another path");
}

#[test]
fn a_run_replaces_the_files_of_an_earlier_one() {
    let out = std::env::temp_dir().join(format!("trail-rt-demo-{}-again", std::process::id()));
    let folder = out.to_str().expect("a UTF-8 path");
    let run = |more: &[&str]| trail_rt(&[&SMALL[..], &["--out", folder], more].concat());
    let first = run(&[]);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    assert!(run(&[]).status.success());
    std::fs::write(out.join("demo.svg"), "mine").expect("written");
    assert_refused(&run(&[]), 2, "--force");
    assert!(run(&["--force"]).status.success());
    let picture = std::fs::read_to_string(out.join("demo.svg")).expect("a picture");
    assert!(picture.trim_end().ends_with("</svg>"));
    std::fs::remove_dir_all(&out).expect("the test's own folder");
}

//! `trail-rt simulate`: refusals, reports, experiments.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{assert_refused, trail_rt};
use serde_json::Value;

/// A small run: 50 requests, 4 at a time.
const SMALL: [&str; 4] = ["--requests", "50", "--max-running", "4"];

fn simulate(options: &[&str]) -> std::process::Output {
    trail_rt(&[&["simulate"], options].concat())
}

/// Standard output of a run that succeeds.
fn answer(options: &[&str]) -> String {
    let output = simulate(options);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn json(options: &[&str]) -> Value {
    serde_json::from_str(&answer(&[options, &["--json"]].concat())).expect("one JSON object")
}

/// An empty folder for a test's files.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn wrong_options_are_refused_in_one_line() {
    for (options, says) in [
        (["--experiment", "trail-fig99"], "unknown experiment 'trail-fig99': choose one of "),
        (["--policies", "fcfs,frob"], "unknown policy 'frob': choose one of fcfs"),
        (["--policies", "rr-sjf:0"], "slice of policy rr-sjf is '0'"),
        (["--load", "0"], "give a number from 0.001 to 1000, or burst"),
        (["--load", "-1"], "give a number from 0.001 to 1000, or burst"),
        (["--load", "1e-308"], "give a number from 0.001 to 1000, or burst"),
        (["--rate", "0"], "give requests per second"),
        (["--requests", "0"], "from 1 to 1048576"),
        (["--workers", "0"], "from 1 to 4096"),
        (["--reserve", "all"], "[possible values: present, mean, p90]"),
        (["--refresh-tokens", "0"], "from 1 to 1048576"),
        (["--seeds", "x"], "invalid value 'x' for '--seeds"),
        (["--lengths", "c4"], "unknown lengths 'c4': choose one of alpaca"),
        (["--noise", "gaussian:-1"], "give a number from 0"),
        (["--noise", "tau:2"], "give a number from 0 to 1"),
        (["--step-model", "b200"], "unknown step model 'b200'"),
        (["--step-constants", "t0=-1"], "t0 is -1: give a number of at least 0"),
        (["--step-constants", "foo=1"], "unknown constant 'foo': choose t0"),
        (["--trace", "/nonexistent.jsonl"], "cannot read the trace /nonexistent.jsonl"),
    ] {
        assert_refused(&simulate(&options), 2, says);
    }
    assert_refused(&simulate(&["--load", "1", "--rate", "3"]), 2, "cannot be used with");
    let pair = ["--experiment", "ltr-fig1", "--load", "1"];
    assert_refused(&simulate(&pair), 2, "cannot be used with");
}

#[test]
fn malformed_traces_are_refused_with_their_line() {
    let file = folder("simulate-traces").join("trace.jsonl");
    let good = r#"{"id":1,"arrival_s":0,"prompt_tokens":4,"output_tokens":3}"#;
    let line = |arrival: &str, prompt: &str, output: &str| {
        format!(
            r#"{{"id":2,"arrival_s":{arrival},"prompt_tokens":{prompt},"output_tokens":{output}}}"#
        )
    };
    for (text, says) in [
        (String::new(), "there is no request in it"),
        (format!("{good}\n{{\"id\":2\n"), "line 2: EOF"),
        (format!("{good}\n{}", line("-1", "4", "3")), "line 2: arrival_s is -1"),
        (format!("{good}\n{}", line("1", "0", "3")), "line 2: prompt_tokens"),
        (format!("{good}\n{}", line("1", "4", "0")), "line 2: prompt_tokens and output_tokens"),
    ] {
        fs::write(&file, text).expect("a trace");
        assert_refused(&simulate(&["--trace", file.to_str().expect("UTF-8")]), 2, says);
    }
    // As a full disk leaves it.
    fs::write(&file, format!("{good}\n{{\"id\":2")).expect("a trace");
    let output = simulate(&["--policies", "fcfs", "--trace", file.to_str().expect("UTF-8")]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.contains("is cut off: read up to line 1"),
        "{errors}"
    );
}

/// Rows of Azure's trace give the means of their conversion by hand; the rank needs predictions,
/// and a file has them or takes those of `--noise`.
#[test]
fn traces_of_others_are_read_and_take_predictions() {
    let folder = folder("simulate-formats");
    let (azure, ours) = (folder.join("azure.csv"), folder.join("ours.jsonl"));
    let rows: Vec<(u64, u64, u64)> =
        (0..40).map(|at| (at * 37 % 11 + at, 20 + at * 13 % 90, 3 + at * 29 % 50)).collect();
    let mut csv = String::from("TIMESTAMP,ContextTokens,GeneratedTokens\n");
    let mut lines = String::new();
    for (id, (second, prompt, output)) in rows.iter().enumerate() {
        csv += &format!("2023-11-16 18:15:{second:02}.5,{prompt},{output}\n");
        let arrival_s = second - rows[0].0;
        lines += &format!(
            "{{\"id\":{id},\"arrival_s\":{arrival_s},\"prompt_tokens\":{prompt},\
             \"output_tokens\":{output}}}\n"
        );
    }
    fs::write(&azure, csv).expect("a trace");
    fs::write(&ours, lines).expect("a trace");
    let means = |file: &Path, options: &[&str]| {
        let small = ["--max-running", "2", "--trace", file.to_str().expect("UTF-8")];
        let report = json(&[&small, options].concat());
        let runs = report["runs"].as_array().expect("an array").clone();
        runs.iter().map(|run| run["latency_s"]["mean"].to_string()).collect::<Vec<_>>()
    };
    for pace in [&[][..], &["--load", "1.5", "--arrivals", "recorded"]] {
        let options = [&["--policies", "fcfs,trail", "--noise", "oracle"], pace].concat();
        let ours = means(&ours, &options);
        assert_eq!(means(&azure, &options), ours);
        assert!(pace.is_empty() || ours[0] != ours[1], "{ours:?}");
    }
    let file = azure.to_str().expect("UTF-8");
    let says = "trail:0.8 ranks by predictions, and ";
    assert_refused(&simulate(&["--policies", "fcfs,trail", "--trace", file]), 2, says);
    let says = "--arrivals recorded needs --trace";
    assert_refused(&simulate(&["--arrivals", "recorded"]), 2, says);
}

/// A reader of 6 tokens a second waits behind preemptions, and for nothing else.
#[test]
fn answers_without_a_stall_are_counted() {
    let options = ["--lengths", "sharegpt", "--step-model", "l4:8b", "--max-running", "8"];
    let load = ["--load", "1.5", "--requests", "200", "--policies", "fcfs,trail"];
    let report = json(&[&options[..], &load].concat());
    let figure = |at: usize, field: &str| report["runs"][at].pointer(field).and_then(Value::as_f64);
    assert_eq!(
        [0, 1].map(|at| figure(at, "/smooth_share") < Some(0.95)),
        [false, true],
        "{report}"
    );
    let held = [0, 1].map(|at| figure(at, "/hold_back_s/p99") > Some(10.0));
    assert_eq!(held, [false, true], "{report}");
}

#[test]
fn a_report_has_one_run_for_each_load_policy_and_seed() {
    let options = ["--policies", "fcfs,trail", "--load", "1.1,burst", "--seeds", "1,2"];
    let report = json(&[&SMALL[..], &options].concat());
    let runs = report["runs"].as_array().expect("an array");
    let text = |run: &Value, field: &str| run[field].as_str().expect("text").to_owned();
    let points: BTreeSet<(String, String, u64)> = runs
        .iter()
        .map(|run| (text(run, "load"), text(run, "policy"), run["seed"].as_u64().expect("a seed")))
        .collect();
    assert_eq!((runs.len(), points.len()), (8, 8));
    for run in runs {
        assert_eq!(
            (run["requests"].as_u64(), run["interrupted"].as_bool()),
            (Some(50), Some(false))
        );
        for field in ["latency_s", "ttft_s", "longest_gap_s", "max_waiting_time_s"] {
            for statistic in ["mean", "p50", "p90", "p95", "p99"] {
                assert!(run[field][statistic].as_f64() >= Some(0.0), "{field}.{statistic}: {run}");
            }
        }
        assert!(run["tokens_per_s"].as_f64() > Some(0.0), "{run}");
    }
    // One capacity for each seed: multiples need it, a burst does not.
    let capacities = report["capacity"].as_object().expect("an object");
    assert_eq!(capacities.len(), 2);
    assert!(capacities.values().all(|capacity| capacity["tokens_per_s"].as_f64() > Some(0.0)));
}

#[test]
fn a_reserve_and_a_refresh_reach_the_scheduler() {
    let run = |options: &[&str]| {
        let tight = ["--requests", "50", "--kv-blocks", "150", "--preemption", "recompute"];
        let policies = ["--policies", "trail", "--load", "burst"];
        json(&[&tight[..], &policies, options].concat())["runs"][0].clone()
    };
    let default = run(&[]);
    assert!(default["evictions"].as_u64() > Some(0), "{default}");
    assert_eq!(run(&["--reserve", "present", "--refresh-tokens", "1"]), default);
    assert_eq!(run(&["--reserve", "mean"])["evictions"].as_u64(), Some(0));
    assert_ne!(run(&["--refresh-tokens", "64"])["latency_s"], default["latency_s"]);
}

#[test]
fn seeded_runs_repeat_and_seeds_differ() {
    let run = |seed| {
        let options = ["--policies", "fcfs,trail,rr-sjf,isrtf", "--load", "1.1", "--seeds", seed];
        answer(&[&SMALL[..], &options, &["--json"]].concat())
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn an_experiment_has_claim_conditions_findings_and_trials() {
    let out = folder("simulate-experiment");
    let (out, plot) = (out.to_str().expect("UTF-8"), out.join("rr-sjf-fig1.svg"));
    let report = json(&["--experiment", "rr-sjf-fig1", "--out", out]);
    assert_eq!(report["experiment"], "rr-sjf-fig1");
    for field in ["source", "claim", "conditions"] {
        assert!(report[field].as_str().is_some_and(|text| !text.is_empty()), "{field}");
    }
    let findings = report["findings"].as_array().expect("an array");
    for finding in findings {
        // The example is exact: the order of the requests as the digits of a number.
        let printed: f64 = finding["paper"].as_str().expect("text").parse().expect("a number");
        let ours = finding["ours"].as_array().expect("an array");
        assert_eq!(ours.len(), 3, "one value for each seed");
        assert!(ours.iter().all(|ours| ours.as_f64() == Some(printed)), "{finding}");
    }
    assert_eq!(findings.len(), 5);
    let trials = report["trials"].as_array().expect("an array");
    assert_eq!(trials.len(), 4);
    assert!(trials.iter().all(|trial| trial["runs"].as_array().is_some_and(|r| r.len() == 3)));
    assert!(fs::read_to_string(&plot).expect("a plot").contains("<svg"));
}

#[test]
fn a_plot_of_another_origin_is_kept_without_force() {
    let out = folder("simulate-plot");
    let plot = out.join("ltr-fig1.svg");
    fs::write(&plot, "<svg>a drawing</svg>").expect("a file");
    let options = ["--experiment", "ltr-fig1", "--out", out.to_str().expect("UTF-8")];
    assert_refused(&simulate(&options), 2, "--force");
    assert_eq!(fs::read_to_string(&plot).expect("the file"), "<svg>a drawing</svg>");
    answer(&[&options[..], &["--force"]].concat());
    // A result of an earlier run is replaced.
    answer(&options);
}

#[test]
fn the_list_has_every_experiment_once() {
    let listed = json(&["--experiment", "list"]);
    let names: Vec<&str> =
        listed.as_array().expect("an array").iter().filter_map(Value::as_str).collect();
    let distinct: BTreeSet<&&str> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
    for paper in ["trail-", "ltr-", "elis-", "rr-sjf-"] {
        assert!(names.iter().any(|name| name.starts_with(paper)), "{paper}: {names:?}");
    }
    let text = answer(&["--experiment", "list"]);
    assert!(names.iter().all(|name| text.contains(name)));
}

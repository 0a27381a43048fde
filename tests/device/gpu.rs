//! The program on a CUDA device: the emulator, which it loads as it would load the real driver.

use std::process::{Command, Output};

use crate::common::timeline::{Written, prefix};
use crate::common::{PROGRAM, Server, assert_refused};
use serde_json::{Value, json};

/// A small KV pool, as the emulator uses host memory, and small steps, as one is timed at start.
pub(crate) const KV: [&str; 4] = ["--kv-blocks", "64", "--token-budget", "48"];

pub(crate) fn trail_rt(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).envs(environment.iter().copied());
    crate::common::deadline::output(&mut command)
}

fn json(arguments: &[&str]) -> Value {
    let output = trail_rt(arguments, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

pub(crate) const PROMPT: [&str; 9] = [
    "generate",
    "--prompt",
    "Show the table of 9 from 1 to 16.",
    "--max-tokens",
    "24",
    "--temperature",
    "0",
    "--max-running",
    "4",
];

#[test]
fn the_answer_is_the_cpus() {
    let answer = |device: &str| {
        let object = json(&[&PROMPT[..], &KV, &["--device", device, "--json"]].concat());
        object["text"].as_str().expect("text").to_owned()
    };
    let expected = answer("cpu");
    assert!(expected.contains('9'), "{expected}");
    assert_eq!(answer("cuda"), expected);
    // With a GPU in the machine, `auto` selects it.
    assert_eq!(answer("auto"), expected);
}

#[test]
fn the_doctor_names_the_device() {
    let report = json(&["doctor", "--json"]);
    let gpu = &report["gpus"][0];
    assert!(gpu["name"].as_str().is_some_and(|name| !name.is_empty()), "{report}");
    assert!(gpu["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{report}");
    assert_eq!(report["uses"]["device"], "cuda:0");
    assert_eq!(report["gpu_error"], Value::Null);
}

/// On a busy host the emulator is slow.
const DOCTOR: [&str; 7] = ["doctor", "--gpu", "--json", "--limit-factor", "4", "--replays", "100"];

/// A fault in one check's process leaves the other checks theirs; that all pass is a part of
/// `benches/gpu.sh rehearse`.
#[test]
fn the_doctors_checks_fail_each_by_itself() {
    let output = trail_rt(&DOCTOR, &[("TRAIL_EMU_FAIL", "launch:20:719")]);
    assert_eq!(output.status.code(), Some(1));
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |status: &str| -> Vec<&str> {
        let rows = rows.iter().filter(|row| row["status"] == status);
        rows.filter_map(|row| row["check"].as_str()).collect()
    };
    let broken = ["eager", "graphs", "tap", "replays", "answers"];
    assert_eq!(of("failed"), broken, "{lines}");
    let (first, canaries) = (["driver", "canary", "modules"], ["canary after it"; 5]);
    assert_eq!(of("ok"), [&first[..], &canaries].concat(), "{lines}");
    for row in rows.iter().filter(|row| row["status"] == "failed") {
        assert!(row["error"].as_str().is_some_and(|why| why.contains("719")), "{row}");
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.starts_with("error: the GPU does not pass: eager, graphs, tap"), "{errors}");
}

/// A check of graphs that quietly ran without one would pass.
#[test]
fn the_doctors_checks_of_graphs_need_graphs() {
    let output = trail_rt(&DOCTOR, &[("TRAIL_EMU_WITHOUT", "graphs")]);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    let says = "error: the GPU does not pass: graphs, tap, replays; ";
    assert!(errors.starts_with(says), "{errors}");
    let bench = [&["bench", "decode"][..], &SMALL, &LIMITS].concat();
    let refused = trail_rt(&bench, &[("TRAIL_EMU_WITHOUT", "graphs")]);
    assert_refused(&refused, 1, "graphs of decode steps were made");
}

#[test]
fn what_cannot_be_is_reported_in_one_line() {
    let refused = |arguments: &[&str], environment: &[(&str, &str)], code: i32, says: &str| {
        let arguments = [&PROMPT[..], arguments].concat();
        assert_refused(&trail_rt(&arguments, environment), code, says);
    };
    refused(&["--device", "cuda:7"], &[], 1, "the properties of cuda:7");
    refused(&["--device", "gpu"], &[], 2, "choose cpu, cuda");
    let little = [("TRAIL_EMU_MEMORY", "1073741824")];
    refused(&["--device", "cuda", "--kv-blocks", "65536"], &little, 1, "kv-blocks");
    refused(&["--device", "cpu", "--preemption", "swap"], &[], 2, "choose recompute or auto");
    // Tokens before the failure may or may not be on stdout; the failure must be reported.
    let lost = trail_rt(
        &[&PROMPT[..], &KV, &["--device", "cuda"]].concat(),
        &[("TRAIL_EMU_FAIL", "launch:900:719")],
    );
    assert_eq!(lost.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&lost.stderr);
    assert!(errors.starts_with("error: ") && errors.lines().count() == 1, "{errors}");
}

#[test]
fn a_server_whose_gpu_fails_says_so_and_ends() {
    // Late enough that requests have been answered before.
    let fails = [("TRAIL_EMU_FAIL", "launch:3000:719")];
    let options = [&["--device", "cuda", "--max-running", "4"][..], &KV].concat();
    let mut server = Server::start_in(&options, &fails);
    let body = json!({ "prompt": "Count from 1 to 9.", "max_tokens": 40, "temperature": 0 });
    let ask = || server.request("POST", "/v1/completions", &body.to_string());
    let (status, first) = ask();
    assert_eq!(status, 200, "{first}");
    let text = |answer: &Value| answer["choices"][0]["text"].clone();
    // Every answer before the failure must be correct.
    let failure = (0..60).map(|_| ask()).find(|(status, answer)| {
        assert!(*status != 200 || text(answer) == text(&first), "{answer}");
        *status != 200
    });
    let (status, answer) = failure.expect("the launch fails");
    assert!(status == 500 || status == 503, "{status}");
    assert!(answer["error"]["message"].as_str().is_some_and(|why| why.contains("engine")));
    let (status, output) = server.end();
    assert_eq!(status.code(), Some(3));
    let last = output.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: the engine broke down: "), "{output}");
}

/// The smallest benchmarks: durations are not asserted.
const SMALL: [&str; 10] = [
    "--device",
    "cuda",
    "--random-weights",
    "demo",
    "--repeats",
    "1",
    "--context",
    "17",
    "--batch",
    "1,3",
];
const LIMITS: [&str; 4] = ["--read-mib", "1", "--mma-rounds", "1"];

#[test]
fn decode_and_prefill_are_measured_against_their_limits() {
    let report = json(&[&["bench", "decode"][..], &SMALL, &LIMITS, &["--json"]].concat());
    for (row, batch) in report["rows"].as_array().expect("rows").iter().zip([1, 3]) {
        assert_eq!(row["batch"], batch);
        let share = row["share_of_floor"].as_f64().expect("a share");
        assert!(share > 0.0 && share.is_finite(), "{row}");
        assert!(row["launch_us"]["p50"].as_f64().is_some_and(|us| us > 0.0), "{row}");
    }
    let prompt =
        ["bench", "prefill", "--device", "cuda", "--random-weights", "demo", "--repeats", "1"];
    let report =
        json(&[&prompt[..], &LIMITS, &["--tokens", "40", "--rows", "32", "--json"]].concat());
    let share = report["rows"][0]["share_of_matrix_rate"].as_f64().expect("a share");
    assert!(share > 0.0 && share.is_finite(), "{report}");
}

#[test]
fn four_ways_to_predict_are_compared_and_a_step_is_traced() {
    let prefix = prefix("timeline-cuda");
    let prefix = prefix.to_str().expect("UTF-8");
    let more = ["--timeline", prefix, "--json"];
    let small = [&SMALL[..8], &["--batch", "3"]].concat();
    let report = json(&[&["bench", "overlap"][..], &small, &more].concat());
    let rows = report["rows"].as_array().expect("rows");
    let ways: Vec<&str> = rows.iter().filter_map(|row| row["probe"].as_str()).collect();
    assert_eq!(ways, ["off", "cpu", "gpu", "blocking"]);
    for row in rows {
        assert!(row["step_us"]["median"].as_f64().is_some_and(|us| us > 0.0), "{row}");
        // A blocking probe is never late.
        if row["probe"] == "blocking" {
            assert_eq!(row["fresh_share"], 1.0, "{row}");
        }
    }
    assert_eq!(report["timeline"]["batch"], 3);
    assert!(report["timeline"]["clock_error_us"].as_f64().is_some_and(|us| us > 0.0));
    check_step(&Written::read(prefix));
}

/// Checks the order of events of the tap, within the stated error between the two clocks.
fn check_step(written: &Written) {
    let waiters = ["probe, thread 0", "probe, thread 1"];
    let lanes = [&["compute stream", "side stream"], &waiters[..], &["engine thread"]].concat();
    assert_eq!(written.lanes(), lanes);
    written.check_order();
    let copy = written.only("tap copy", 0);
    let staged = written.only("stage, convert", 0);
    let published = written.only("smooth, publish", 0);
    let off_by = written.clock_error_us;
    assert!(staged.begin >= copy.end - off_by, "{staged:?} behind {copy:?}");
    let tasks = written.all("head tasks", 0);
    assert!(!tasks.is_empty() && tasks.iter().all(|task| task.end >= staged.end), "{tasks:?}");
    assert!(tasks.iter().all(|task| task.begin <= published.begin), "{published:?}");
    assert!(!written.all("waiting for rows", 0).is_empty());
    // The tokens are collected after the logits; the next step was launched before.
    let collected = written.only("collect", 0);
    assert!(collected.end >= written.only("upper layers, logits", 0).end - off_by);
    assert!(written.only("fill, launch", 1).end <= collected.begin + 1e-3);
}

#[test]
fn a_timeline_that_cannot_be_written_is_refused() {
    let nowhere = ["--timeline", "/dev/null/x/step"];
    let refused = trail_rt(&[&["bench", "overlap"][..], &SMALL, &nowhere].concat(), &[]);
    assert_refused(&refused, 1, "/dev/null/x/step.json");
}

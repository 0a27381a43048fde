//! `bench overlap --timeline` on the CPU: a trace of one step. Durations are not asserted.

use crate::common::timeline::{Written, prefix};
use crate::common::{assert_refused, trail_rt};

const SMALL: [&str; 15] = [
    "bench",
    "overlap",
    "--random-weights",
    "tiny",
    "--device",
    "cpu",
    "--threads",
    "2",
    "--repeats",
    "1",
    "--context",
    "17",
    "--batch",
    "1,3",
    "--timeline",
];

#[test]
fn a_step_is_traced() {
    let prefix = prefix("timeline-cpu");
    let prefix = prefix.to_str().expect("UTF-8");
    let output = trail_rt(&[&SMALL[..], &[prefix, "--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    // The report is the same as without a timeline; the largest batch is shown.
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(2));
    assert_eq!(report["timeline"]["batch"], 3);
    assert!(report["timeline"]["step_us"].as_f64().is_some_and(|us| us > 0.0), "{report}");
    let written = Written::read(prefix);
    let lanes = written.lanes();
    let threads = ["probe, engine thread", "probe, thread 1"];
    assert_eq!(lanes, [&["forward pass", "tap"], &threads[..], &["engine thread"]].concat());
    written.check_order();
    let copy = written.only("tap copy", 0);
    assert!(written.only("upper layers, logits", 0).begin >= copy.end - 1e-3);
    let tasks = written.all("head tasks", 0);
    let published = written.only("smooth, publish", 0);
    assert!(!tasks.is_empty() && tasks.iter().all(|task| task.end >= copy.begin));
    // The pass ends with the remaining probe tasks, so before sampling.
    assert!(published.end <= written.only("sampling", 0).begin + 1e-3);
    assert!(tasks.iter().all(|task| task.begin <= published.begin));
    // The next plan uses the predictions.
    assert!(written.only("plan", 1).begin >= published.end - 1e-3);
}

#[test]
fn a_prefix_that_cannot_be_written_is_refused_before_anything_is_measured() {
    let output = trail_rt(&[&SMALL[..], &["/dev/null/x/step"]].concat());
    assert_refused(&output, 1, "/dev/null/x/step.json");
}

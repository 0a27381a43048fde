//! `bench ab` against a script in place of another build.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use crate::common::{assert_refused, trail_rt};

/// Writes a script that runs `body`. Returns its path.
fn script(name: &str, body: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    path.to_str().expect("UTF-8").to_owned()
}

/// Compares with `other` over two rounds of a short benchmark of the scheduler.
fn ab(other: &str, options: &[&str]) -> Output {
    let part = ["--", "scheduler", "--running", "4", "--waiting", "4", "--steps", "50"];
    trail_rt(&[&["bench", "ab", other, "--rounds", "2", "--json"], options, &part].concat())
}

fn report_of(us: &str) -> String {
    format!("echo '{{\"running\": 4, \"step_us\": {{\"p50\": {us}, \"p77\": 1}}}}'")
}

#[test]
fn common_times_are_compared_round_by_round() {
    let output = ab(&script("ab-slow", &report_of("1e9")), &["--worse", "1.02"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let figures = report["figures"].as_array().expect("figures");
    // Not `running`, which has no unit, nor p77, which one program lacks.
    assert_eq!(figures.len(), 1, "{report}");
    assert_eq!(figures[0]["figure"], "step_us/p50");
    assert_eq!(figures[0]["verdict"], "better");
    assert!(report["cpu_s"]["this"].as_f64().is_some_and(|seconds| seconds >= 0.0), "{report}");
}

#[test]
fn a_worse_figure_fails_after_the_report() {
    let other = script("ab-fast", &report_of("1e-9"));
    let output = ab(&other, &["--worse", "1.02"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"verdict\":\"worse\""));
    assert!(String::from_utf8_lossy(&output.stderr).contains("step_us/p50"));
    assert!(ab(&other, &[]).status.success(), "no limit was given");
}

#[test]
fn a_program_that_fails_or_prints_something_else_is_named() {
    let fails = script("ab-fails", "echo no device >&2; exit 3");
    assert_refused(&ab(&fails, &[]), 1, "no device");
    let talks = script("ab-talks", "echo hello");
    assert_refused(&ab(&talks, &[]), 1, "does not print JSON");
    assert_refused(&ab("/nonexistent/trail-rt", &[]), 1, "/nonexistent/trail-rt");
    let other = script("ab-none", &report_of("1"));
    assert_refused(&ab(&other, &["--figure", "nothing"]), 2, "no such figure");
}

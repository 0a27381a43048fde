//! `trail-rt bench kernels` on the emulator: the complete program.

use crate::common::{PROGRAM, trail_rt};
use serde_json::Value;
use std::process::Command;

/// The smallest run: durations are not asserted.
const SMALL: [&str; 10] = [
    "bench",
    "kernels",
    "--repeats",
    "1",
    "--window-ms",
    "0",
    "--read-mib",
    "1",
    "--mma-rounds",
    "1",
];

fn json(arguments: &[&str]) -> Value {
    let output = trail_rt(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn every_kernel_is_listed_as_proven_and_spills_no_more_than_its_target_allows() {
    let list = json(&["bench", "kernels", "--list", "--json"]);
    let kernels = list["kernels"].as_array().expect("an array");
    assert!(kernels.len() > 50, "{}", kernels.len());
    for kernel in kernels {
        let max = if kernel["arch"] == "sm_120" { 2 * 36 } else { 0 };
        assert!(kernel["spills"].as_u64().is_some_and(|bytes| bytes <= max), "{kernel}");
        assert!(kernel["registers"].as_u64().is_some_and(|count| count > 0), "{kernel}");
        let device = match kernel["arch"].as_str() {
            Some("sm_90a") => "emulator of Hopper",
            _ => "emulator",
        };
        let devices = kernel["proven_on"].as_array().expect("an array");
        assert!(devices.contains(&device.into()), "{kernel}");
    }
}

/// Returns the first row that satisfies `wanted`, and checks that its figures are plausible.
fn row<'a>(report: &'a Value, name: &str, wanted: impl Fn(&Value) -> bool) -> &'a Value {
    let rows = report["rows"].as_array().expect("an array");
    let row = rows.iter().find(|row| wanted(row));
    let row = row.unwrap_or_else(|| panic!("{name} in {report}"));
    assert!(row["us"]["median"].as_f64().is_some_and(|us| us > 0.0), "{row}");
    assert!(row["share"].as_f64().is_some_and(|share| share.is_finite() && share > 0.0), "{row}");
    row
}

#[test]
fn products_are_measured_and_their_results_checked() {
    let options = ["--shape", "tiny", "--part", "products", "--rows", "3,70", "--json"];
    let report = json(&[&SMALL[..], &options].concat());
    for (op, kernel) in [("qkv", "skinny_qkv_8"), ("o", "tiled_residual_")] {
        let named =
            |row: &Value| row["kernel"].as_str().is_some_and(|name| name.starts_with(kernel));
        let found = row(&report, kernel, |row| row["op"] == op && named(row));
        assert!(found["us"]["forecast"].as_f64().is_some_and(|us| us > 0.0), "{found}");
    }
}

/// Needs no device, and takes other machine code.
#[test]
fn times_are_forecast_from_machine_code() {
    let forecast = |arguments: &[&str]| {
        let options = ["bench", "kernels", "--forecast", "h200", "--rows", "1,64", "--json"];
        json(&[&options[..], arguments].concat())
    };
    let us = |report: &Value, kernel: &str| {
        let rows = report["rows"].as_array().expect("an array");
        let row = rows.iter().find(|row| row["kernel"] == kernel && row["op"] != "down");
        row.and_then(|row| row["us"]["forecast"].as_f64()).expect("a forecast")
    };
    let report = forecast(&[]);
    let steps = report["rows"].as_array().expect("an array");
    assert!(steps.iter().any(|row| row["op"] == "decode_step"), "{report}");
    // Other machine code: with less in flight.
    let mut reports = reports_of("sm_90a");
    reports["sm_90a"]["skinny_swiglu_64"]["pending_groups"] = 1.into();
    let file = std::env::temp_dir().join(format!("trail-sass-{}.json", std::process::id()));
    std::fs::write(&file, reports.to_string()).expect("a file");
    let other = forecast(&["--sass", file.to_str().expect("a path")]);
    std::fs::remove_file(&file).expect("the file");
    assert!(us(&other, "skinny_swiglu_64") > us(&report, "skinny_swiglu_64"));
    let missing = trail_rt(&["bench", "kernels", "--forecast", "a100", "--sass", "no-such-file"]);
    let error = String::from_utf8_lossy(&missing.stderr);
    assert!(!missing.status.success() && error.contains("no-such-file"), "{error}");
}

/// The manifest's reports of machine code for `target`, as `compile --report` prints them.
fn reports_of(target: &str) -> Value {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/ptx/manifest.json");
    let manifest = std::fs::read_to_string(manifest).expect("the manifest");
    let manifest: Value = serde_json::from_str(&manifest).expect("JSON");
    let mut reports = serde_json::Map::new();
    for module in manifest["modules"].as_object().expect("modules").values() {
        for (kernel, entry) in module["entries"].as_object().expect("entries") {
            if let Some(report) = entry["sass"].get(target) {
                reports.insert(kernel.clone(), report.clone());
            }
        }
    }
    serde_json::json!({ target: reports })
}

/// The tiny model's heads are narrower than those of any attention kernel; the demo model's are
/// not.
#[test]
fn attention_is_measured_over_contexts_that_shrink() {
    let options = ["--shape", "demo", "--part", "attention", "--json"];
    let shrunk = ["--most-rows", "20", "--most-context", "40"];
    let report = json(&[&SMALL[..], &options, &shrunk].concat());
    for (op, rows, context) in [
        ("attention_decode", 1, 40),
        ("attention_decode", 20, 40),
        ("attention_prefill", 20, 0),
        ("attention_prefill", 20, 20),
    ] {
        let extents = |row: &Value| row["rows"] == rows && row["context"] == context;
        let found = row(&report, op, |row| row["op"] == op && extents(row));
        assert!(found["kernel"].as_str().is_some_and(|name| name.contains("hd64")), "{found}");
    }
}

#[test]
fn small_kernels_are_measured() {
    let options = ["--shape", "tiny", "--part", "small", "--most-rows", "20", "--json"];
    let report = json(&[&SMALL[..], &options].concat());
    let ops = ["sample_greedy", "sample_top_p", "embed", "tap_mean", "probe"];
    for op in ops {
        let found = row(&report, op, |row| row["op"] == op);
        assert_eq!(found["context"], Value::Null, "{found}");
    }
}

/// A case that fails has a row, and the others have their times.
#[test]
fn a_failed_case_takes_no_other_along() {
    let options = ["--shape", "tiny", "--part", "small", "--most-rows", "20", "--json"];
    let mut command = Command::new(PROGRAM);
    command.args([&SMALL[..], &options].concat()).env("TRAIL_EMU_FAIL", "alloc:12:2");
    let output = crate::common::deadline::output(&mut command);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = report["rows"].as_array().expect("an array");
    let (failed, timed): (Vec<&Value>, Vec<&Value>) =
        rows.iter().partition(|row| row.get("error").is_some());
    assert!(failed.len() == 1 && timed.len() > 3, "{report}");
    assert!(timed.iter().all(|row| row["us"]["median"].is_number()), "{report}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.starts_with("error: 1 of ") && errors.contains("OUT_OF_MEMORY"), "{errors}");
}

#[test]
fn a_name_that_no_kernel_has_is_refused() {
    let options = ["--shape", "tiny", "--rows", "1", "--kernel", "foo"];
    let output = trail_rt(&[&SMALL[..], &options].concat());
    crate::common::assert_refused(&output, 2, "no kernel of this shape is named like \"foo\"");
}

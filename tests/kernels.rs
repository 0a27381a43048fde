//! `trail-rt bench kernels`, on the stand-in for the driver: the program itself, with nothing left out.

mod common;

use common::trail_rt;
use serde_json::Value;

// The program inherits the library path with the stand-in in front.
trail_cuda_emulator::on_emulator!();

/// The smallest run: nothing here is about time.
const SMALL: [&str; 12] = [
    "bench",
    "kernels",
    "--shape",
    "tiny",
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
fn every_portable_kernel_is_listed_as_proven_and_none_spills() {
    let list = json(&["bench", "kernels", "--list", "--json"]);
    let kernels = list["kernels"].as_array().expect("an array");
    assert!(kernels.len() > 50, "{}", kernels.len());
    for kernel in kernels {
        assert_eq!(kernel["spills"], 0, "{kernel}");
        assert!(kernel["registers"].as_u64().is_some_and(|count| count > 0), "{kernel}");
        if kernel["arch"] == "sm_80" {
            let devices = kernel["proven_on"].as_array().expect("an array");
            assert!(devices.contains(&"emulator".into()), "{kernel}");
        }
    }
}

#[test]
fn products_are_measured_and_their_results_checked() {
    let report = json(&[&SMALL[..], &["--rows", "3,70", "--json"]].concat());
    let rows = report["rows"].as_array().expect("an array");
    for (op, kernel) in [("qkv", "skinny_qkv_8"), ("o", "tiled_residual_")] {
        let row = rows.iter().find(|row| {
            row["op"] == op && row["kernel"].as_str().is_some_and(|name| name.starts_with(kernel))
        });
        let row = row.unwrap_or_else(|| panic!("{op} by {kernel} in {report}"));
        assert!(row["us"]["median"].as_f64().is_some_and(|us| us > 0.0), "{row}");
        assert!(row["share"].as_f64().is_some_and(f64::is_finite), "{row}");
    }
}

#[test]
fn a_name_that_no_kernel_has_is_refused() {
    let output = trail_rt(&[&SMALL[..], &["--rows", "1", "--kernel", "foo"]].concat());
    common::assert_refused(&output, 1, "no kernel of this shape is named like \"foo\"");
}

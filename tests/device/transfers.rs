//! `trail-rt bench load` and `bench swap` on the emulator: the complete program.

use crate::common::trail_rt;
use serde_json::Value;

fn json(arguments: &[&str]) -> Value {
    let output = trail_rt(&[&["bench"], arguments, &["--repeats", "1", "--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn figure(report: &Value, name: &str) -> f64 {
    let figure = report[name].as_f64().unwrap_or(f64::NAN);
    assert!(figure.is_finite() && figure > 0.0, "{name} in {report}");
    figure
}

/// A model from a file and a random one of another dtype; the program compares the uploaded weights
/// with the source.
#[test]
fn loading_is_measured_against_the_link_and_checked() {
    let small = ["load", "--link-mib", "1", "--load-threads", "2", "--piece-kib", "64"];
    let report = json(&small);
    assert_eq!((&report["model"], &report["dtype"]), (&"demo".into(), &"bf16".into()));
    let made_up = json(&[&small[..], &["--random-weights", "demo", "--dtype", "f32"]].concat());
    assert_eq!(made_up["dtype"], "f32");
    for report in [&report, &made_up] {
        for name in ["gb_per_s", "link_gb_per_s", "share_of_link", "device_bytes"] {
            figure(report, name);
        }
        figure(&report["seconds"], "median");
        // Embedding, output projection, and seven matrices in each of six layers.
        assert_eq!(report["checked_weights"], 16 * (2 + 6 * 7), "{report}");
    }
    assert!(figure(&made_up, "bytes") > figure(&report, "bytes"));
}

#[test]
fn swapping_is_measured_against_the_largest_copy_and_checked() {
    let report = json(&["swap", "--shape", "demo", "--blocks", "9", "--pool-blocks", "20"]);
    for direction in ["out", "in"] {
        for name in ["ms", "gb_per_s", "largest_copy_gb_per_s", "share"] {
            figure(&report[direction], name);
        }
    }
    assert_eq!((&report["checked_blocks"], &report["block_bytes"]), (&18.into(), &49_152.into()));
    figure(&report, "block_us_at_start");
}

#[test]
fn what_cannot_be_measured_is_refused_in_one_line() {
    let pool = ["bench", "swap", "--shape", "demo", "--blocks", "9", "--pool-blocks", "17"];
    crate::common::assert_refused(
        &trail_rt(&pool),
        2,
        "--pool-blocks must be at least twice --blocks",
    );
    let heads = ["bench", "load", "--random-weights", "tiny", "--link-mib", "1"];
    crate::common::assert_refused(
        &trail_rt(&heads),
        1,
        "head_dim = 16: the CUDA kernels take heads of 64",
    );
    let device = ["bench", "swap", "--shape", "demo", "--device", "cuda:7"];
    crate::common::assert_refused(
        &trail_rt(&device),
        1,
        "the properties of cuda:7: CUDA_ERROR_INVALID_DEVICE",
    );
}

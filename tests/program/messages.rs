//! Messages about arguments and files: tips, long values, devices.

use std::fs;

use crate::cli::{copy_of_demo, generate};
use crate::common::{assert_refused, trail_rt};

#[test]
fn a_tip_is_a_line_of_its_own() {
    let cases: [(&[&str], &str); 4] = [
        (&["generate", "hi"], "tip: give the text by --prompt TEXT"),
        (&["version"], "tip: --version prints the version"),
        (&["-v"], "tip: --version prints the version, --verbose is of serve"),
        (&["--modle", "x"], "tip: a similar argument exists: '--model'"),
    ];
    for (arguments, tip) in cases {
        let output = trail_rt(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = errors.lines().collect();
        assert_eq!((output.status.code(), lines.len()), (Some(2), 2), "{errors}");
        assert!(lines[0].starts_with("error: ") && lines[0].ends_with("--help"), "{errors}");
        assert_eq!(lines[1], tip);
    }
}

#[test]
fn a_long_value_of_a_file_is_cut() {
    let folder = copy_of_demo("long-value");
    let config = fs::read_to_string(folder.join("config.json")).expect("a configuration");
    let long = format!("\"hidden_act\": \"{}\"", "x".repeat(3 << 20));
    fs::write(folder.join("config.json"), config.replace("\"hidden_act\": \"silu\"", &long))
        .expect("written");
    let output = generate(&folder);
    assert_refused(&output, 1, "hidden_act");
    assert!(output.stderr.len() < 1000, "{} bytes", output.stderr.len());

    let prompts = folder.join("prompts.jsonl");
    fs::write(&prompts, format!("{{\"prompt\": 1, \"{}\": 2}}\n", "x".repeat(3 << 20)))
        .expect("written");
    let prompts = prompts.to_str().expect("UTF-8");
    let output = trail_rt(&["demo", "--prompt-file", prompts]);
    assert_refused(&output, 2, "line 1");
    assert!(output.stderr.len() < 1000, "{} bytes", output.stderr.len());
}

#[test]
fn a_device_without_an_end_is_refused() {
    let demo = ["demo", "--step-cost", "/dev/zero", "--prompts", "1", "--max-tokens", "1"];
    let output = trail_rt(&demo);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("more than 1 MiB"), "{errors}");
}

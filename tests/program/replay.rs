//! `trail-rt demo --record` and `trail-rt replay`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::trail_rt;
use serde_json::Value;

/// Records a small demonstration, and returns the logs of `fcfs` and `trail`.
fn record(name: &str) -> [PathBuf; 2] {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let log = folder.join("log.jsonl");
    let (folder, log) = (folder.to_str().expect("UTF-8"), log.to_str().expect("UTF-8"));
    let arguments = ["demo", "--prompts", "12", "--max-tokens", "40", "--max-running", "2"];
    let files = ["--out", folder, "--record", log, "--policies", "fcfs,trail"];
    let output = trail_rt(&[&arguments[..], &files].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ["log.fcfs.jsonl", "log.trail.jsonl"].map(|name| Path::new(folder).join(name))
}

fn replay(log: &Path, options: &[&str]) -> (Option<i32>, String, String) {
    let arguments = ["replay", log.to_str().expect("UTF-8")];
    let output = trail_rt(&[&arguments[..], options].concat());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_recorded_demonstration_is_replayed_and_compared() {
    // The second recording replaces the first.
    record("replay");
    for log in record("replay") {
        let (code, text, errors) = replay(&log, &[]);
        assert!(code == Some(0) && text.contains("the same as recorded under"), "{text}{errors}");
        let (code, text, errors) = replay(&log, &["--policy", "oracle", "--json"]);
        assert_eq!(code, Some(0), "{errors}");
        let object: Value = serde_json::from_str(&text).expect("one JSON object");
        let policies: Vec<_> = (0..3).map(|at| object["runs"][at]["policy"].as_str()).collect();
        assert_eq!((policies[2], policies[0] == policies[1]), (Some("oracle"), true), "{text}");
        assert!((0..3).all(|at| object["runs"][at]["requests"] == 12), "{text}");
        let (_, text, _) = replay(&log, &["--policy", "oracle"]);
        assert!(text.contains("difference"), "{text}");
    }
}

#[test]
fn damage_has_code_2_and_a_difference_code_1() {
    let [_, log] = record("replay-damaged");
    let text = fs::read_to_string(&log).expect("a log");
    for (damaged, code, line, why) in [
        (text.replacen("\"version\":2", "\"version\":3", 1), 2, 1, "version is 3"),
        (text.replacen("\"rows\":1", "\"rows\":7", 1), 1, 0, "has 7 rows"),
    ] {
        fs::write(&log, damaged).expect("written");
        let (got, _, errors) = replay(&log, &[]);
        assert_eq!((got, errors.lines().count()), (Some(code), 1), "{errors}");
        assert!(errors.contains(why), "{errors}");
        assert!(line == 0 || errors.contains(&format!(": line {line}: ")), "{errors}");
    }
    // As a full disk leaves it.
    fs::write(&log, &text[..text.len() - 9]).expect("written");
    let (code, out, errors) = replay(&log, &[]);
    assert!(code == Some(0) && out.contains("the same as recorded"), "{out}{errors}");
    assert!(errors.contains("is cut off: read up to line"), "{errors}");
    let (code, _, errors) = replay(Path::new("/nowhere/log.jsonl"), &[]);
    assert!(code == Some(2) && errors.contains("cannot read the log"), "{errors}");
}

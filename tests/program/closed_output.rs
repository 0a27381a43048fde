//! Commands whose stdout or stderr is closed or full.

use std::fs;
use std::process::Command;

use crate::common::{PROGRAM, deadline};

/// A reader that has left is no error, and a full disk is one, in one line: no panic, whatever the
/// command.
#[test]
fn a_closed_or_full_output_is_no_panic() {
    let out = std::env::temp_dir().join(format!("trail-closed-{}", std::process::id()));
    let out = out.to_str().expect("UTF-8");
    let demo = ["demo", "--prompts", "2", "--max-tokens", "4", "--policies", "fcfs", "--out", out];
    let commands: [&[&str]; 7] = [
        &["simulate", "--load", "0.9", "--requests", "50"],
        &["simulate", "--load", "0.9", "--requests", "50", "--json"],
        &["simulate", "--experiment", "list"],
        &["simulate", "--experiment", "list", "--json"],
        &demo,
        &["doctor"],
        &["theory", "--lambda", "0.5"],
    ];
    for arguments in commands {
        for (script, code) in [
            ("\"$0\" \"$@\" >/dev/full", 1),
            ("\"$0\" \"$@\" >&-", 0),
            ("\"$0\" \"$@\" >/dev/null 2>/dev/full", 0),
            ("{ \"$0\" \"$@\"; echo code $? >&2; } | true", 0),
        ] {
            let mut shell = Command::new("sh");
            let output = deadline::output(shell.args(["-c", script, PROGRAM]).args(arguments));
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{script} {arguments:?}: {errors}");
            assert!(!errors.contains("panicked"), "{script} {arguments:?}: {errors}");
            assert!(!script.contains("echo") || errors.contains("code 0\n"), "{errors}");
        }
    }
    let _ = fs::remove_dir_all(out);
}

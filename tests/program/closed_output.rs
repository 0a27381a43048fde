//! Commands whose stdout or stderr is closed or full.

use std::fs;
use std::io::pipe;
use std::process::{Command, Stdio};

use crate::common::{PROGRAM, deadline};

/// A reader that has left is no error, and a full disk is one, in one line: no panic, whatever the
/// command.
#[test]
fn a_closed_or_full_output_is_no_panic() {
    let out = std::env::temp_dir().join(format!("trail-closed-{}", std::process::id()));
    let out = out.to_str().expect("UTF-8");
    let demo = ["demo", "--prompts", "2", "--max-tokens", "4", "--policies", "fcfs", "--out", out];
    let commands: [&[&str]; 8] = [
        &["--help"],
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
        ] {
            let mut shell = Command::new("sh");
            check(shell.args(["-c", script, PROGRAM]).args(arguments), code);
        }
        // A reader that has left before the first byte.
        let (reader, writer) = pipe().expect("a pipe");
        drop(reader);
        check(Command::new(PROGRAM).args(arguments).stdout(writer), 0);
    }
    let _ = fs::remove_dir_all(out);
}

fn check(command: &mut Command, code: i32) {
    let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
    let output = deadline::end(child.expect("the program starts"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {errors}");
    assert!(!errors.contains("panicked"), "{command:?}: {errors}");
}

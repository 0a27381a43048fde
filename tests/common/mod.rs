//! The program under test, as a server and as a command.
#![allow(dead_code, unused_imports, reason = "each test program uses its part")]

pub(crate) mod deadline;
pub(crate) mod http;
pub(crate) mod scripted;
mod server;
pub(crate) mod timeline;
pub(crate) mod upstream;

pub(crate) use http::{Response, receive, send_with};
pub(crate) use server::{Server, pieces};

use std::process::{Command, Output};

/// The built program.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_trail-rt");

/// Runs `trail-rt` with `arguments` and waits for its end.
pub(crate) fn trail_rt(arguments: &[&str]) -> Output {
    deadline::output(Command::new(PROGRAM).args(arguments))
}

/// Asserts that a command failed with `code`, one line on stderr that contains `says`, and nothing
/// on stdout.
pub(crate) fn assert_refused(output: &Output, code: i32, says: &str) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.starts_with("error: ") && errors.contains(says), "{errors}");
    assert!(output.stdout.is_empty(), "partial output: {:?}", output.stdout);
}

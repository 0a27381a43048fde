//! Lines for the person at the terminal.

use std::fmt::Display;
use std::io::Write;

/// Writes one line to stderr. Unlike `eprintln!` it does not panic when stderr is closed: a missing
/// reader is no reason to stop.
pub fn notice(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

//! The `trail-rt` command line.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
// Binary crate: `pub` only marks a module's interface to its siblings.
#![allow(unreachable_pub)]
#![forbid(unsafe_code)]

mod answer;
mod cli;
mod commands;
mod interrupt;
mod plot;
mod prompts;
mod terminal;
mod terminal_modes;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use trail_cli::{SignalKind, flush_notices};

/// Time for the last lines to be read from stderr.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    // Beyond `ulimit -f` a write fails with its error, instead of ending the process in silence.
    let _ = interrupt::disarm(SignalKind::FileSize);
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let outcome = cli::parse(&arguments).and_then(|cli| Ok(commands::run(cli)?));
    let code = match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => exit.report(&arguments),
    };
    flush_notices(FLUSH_LIMIT);
    code
}

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

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::Signal;
use tokio::signal::unix::SignalKind;
use trail_cli::flush_notices;

/// Time for the last lines to be read from stderr.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    // Beyond `ulimit -f` a write fails with its error, instead of ending the process in silence.
    let _ = interrupt::disarm(SignalKind::from_raw(Signal::XFSZ.as_raw()));
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let outcome = cli::parse(&arguments).and_then(|cli| Ok(commands::run(cli)?));
    let code = match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => exit.report(&arguments),
    };
    flush_notices(FLUSH_LIMIT);
    code
}

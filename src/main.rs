//! The `trail-rt` command line.

// Binary crate: `pub` only marks a module's interface to its siblings.
#![allow(unreachable_pub)]
#![forbid(unsafe_code)]

mod answer;
mod cli;
mod commands;
mod interrupt;
mod plot;
mod prompts;
mod scroll_region;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let outcome = cli::parse(&arguments).and_then(|cli| Ok(commands::run(cli)?));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => exit.report(&arguments),
    }
}

//! The `trail-rt` command line.

// Binary crate: `pub` only marks a module's interface to its siblings.
#![allow(unreachable_pub)]
#![forbid(unsafe_code)]

mod cli;
mod commands;
mod detokenizer;
mod random;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(exit) => return exit.report(),
    };
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            trail_setup::notice(format_args!("error: {error}"));
            ExitCode::from(error.code())
        }
    }
}

//! The `trail-rt` command line.

// A program has no outside: `pub` says what a module offers to the others.
#![allow(unreachable_pub)]

mod answer;
mod cli;
mod commands;
mod error;
mod locate;
mod machine;
mod notice;
mod random;
mod server;
mod setup;

use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(exit) => return exit.report(),
    };
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            notice::notice(format_args!("error: {error}"));
            ExitCode::from(error.code())
        }
    }
}

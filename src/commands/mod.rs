//! The subcommands, one file each.

pub mod bench;
pub mod demo;
pub mod doctor;
mod drive;
pub mod generate;
mod output;
pub mod serve;
mod spread;

use crate::cli::{Cli, Command};
use crate::error::Error;

/// Runs the requested command.
pub fn run(mut cli: Cli) -> Result<(), Error> {
    let command = cli.take_command()?;
    let Cli { model, engine, json, .. } = &cli;
    match command {
        Command::Serve(args) => serve::run(model, engine, &args, *json),
        Command::Generate(args) => generate::run(model, engine, &args, *json),
        Command::Bench(args) => bench::run(model, engine, &args, *json),
        Command::Demo(args) => demo::run(model, engine, &args, *json),
        Command::Doctor => doctor::run(*json),
    }
}

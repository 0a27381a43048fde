//! The subcommands, one file each.

mod access_args;
pub mod advise;
pub mod chat;
pub mod completions;
mod decision_logs;
pub mod demo;
pub mod doctor;
mod doctor_gpu;
pub mod generate;
mod http_plot;
pub mod inspect;
mod load;
mod log_args;
pub mod man_pages;
pub mod predictor;
pub mod probe;
pub mod proxy;
pub mod pull;
pub mod replay;
mod sampling_args;
pub mod serve;
mod served_models;
pub mod simulate;
pub mod theory;

use trail_cli::Error;

use crate::cli::{Cli, Command, definition};

/// Runs the requested command.
pub fn run(mut cli: Cli) -> Result<(), Error> {
    let command = cli.take_command()?;
    let Cli { model, engine, json, .. } = &cli;
    match command {
        Command::Serve(args) => serve::run(model, engine, &args, *json),
        Command::Proxy(args) => proxy::run(engine, &args, *json),
        Command::Generate(args) => generate::run(model, engine, &args, *json),
        Command::Chat(args) => chat::run(model, engine, &args, *json),
        Command::Pull(args) => pull::run(&args, *json),
        Command::Inspect(args) => inspect::run(model, engine, &args, *json),
        Command::Probe(args) => probe::run(model, engine, &args, *json),
        Command::Predictor(args) => predictor::run(model, &args, *json),
        Command::Bench(args) => trail_bench::run(model, engine, &args, *json, http_plot::draw),
        Command::Demo(args) => demo::run(model, engine, &args, *json),
        Command::Simulate(args) => simulate::run(model, engine, &args, *json),
        Command::Replay(args) => replay::run(engine, &args, *json),
        Command::Advise(args) => advise::run(engine, &args, *json),
        Command::Doctor(args) => doctor::run(model, engine, &args, *json),
        Command::Theory(args) => theory::run(engine, &args, *json),
        Command::Completions(args) => completions::run(&args, definition(true), *json),
        Command::ManPages(args) => man_pages::run(&args, &definition(true), *json),
    }
}

//! `trail-rt probe`: trains a model's length probe, and says how good it is.

mod activations;
mod collect;

use clap::{Args, Subcommand};
use trail_setup::{EngineArgs, Error, ModelArgs};

use collect::CollectArgs;

/// Options of `trail-rt probe`.
#[derive(Args, Debug)]
pub struct ProbeArgs {
    #[command(subcommand)]
    part: Part,
}

/// The parts, in the order of their use.
#[derive(Subcommand, Debug)]
enum Part {
    /// Answer prompts, and keep activations with the numbers of tokens that remained
    Collect(CollectArgs),
}

/// Runs the part that is named.
pub fn run(
    model: &ModelArgs,
    engine: &EngineArgs,
    args: &ProbeArgs,
    json: bool,
) -> Result<(), Error> {
    match &args.part {
        Part::Collect(args) => collect::run(model, engine, args, json),
    }
}

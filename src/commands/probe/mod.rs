//! `trail-rt probe`: trains a model's length probe, and says how good it is.

mod activations;
mod answers;
mod collect;
mod collection;
pub(super) mod collections;
mod eval;
mod fit;
mod inspect;
pub mod layers;
mod train;

use clap::{Args, Subcommand};
use trail_cli::{EngineArgs, Error, ModelArgs};

use collect::CollectArgs;
use eval::EvalArgs;
use fit::FitArgs;
use inspect::InspectArgs;
use train::TrainArgs;

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
    /// Train a probe on what was collected, on one layer or on the best of several
    Train(TrainArgs),
    /// Fit the filter of a probe to other answers
    Fit(FitArgs),
    /// Print what a probe file says about itself
    Inspect(InspectArgs),
    /// Say how good a probe is, on prompts that it was not trained on
    Eval(EvalArgs),
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
        Part::Train(args) => train::run(engine, args, json),
        Part::Fit(args) => fit::run(model, args, json),
        Part::Inspect(args) => inspect::run(args, json),
        Part::Eval(args) => eval::run(model, engine, args, json),
    }
}

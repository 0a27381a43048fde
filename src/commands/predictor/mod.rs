//! `trail-rt predictor`: predictors of an answer's length from its prompt alone.

mod eval;
mod prompts;
mod train;

use clap::{Args, Subcommand};
use trail_cli::{Error, ModelArgs};

use eval::EvalArgs;
use train::TrainArgs;

/// Options of `trail-rt predictor`.
#[derive(Args, Debug)]
pub struct PredictorArgs {
    #[command(subcommand)]
    part: Part,
}

/// The parts, in the order of their use.
#[derive(Subcommand, Debug)]
enum Part {
    /// Train on the prompts and answers that trail-rt probe collect made
    Train(TrainArgs),
    /// Say how good predictors are, on held-out prompts that trail-rt probe collect answered
    Eval(EvalArgs),
}

/// Runs the part that is named.
pub fn run(model: &ModelArgs, args: &PredictorArgs, json: bool) -> Result<(), Error> {
    match &args.part {
        Part::Train(args) => train::run(model, args, json),
        Part::Eval(args) => eval::run(model, args, json),
    }
}

//! Options of `trail-rt probe eval`.

use std::path::PathBuf;

use clap::Args;
use trail_cli::LoraArgs;

use crate::commands::probe::answers::{self, AnswerArgs};

/// Options of `trail-rt probe eval`.
#[derive(Args, Debug)]
pub struct EvalArgs {
    /// Held-out prompts, one JSON object with a "prompt" a line [default: prompts.jsonl beside the
    /// model]
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub(super) prompts: Option<PathBuf>,
    /// Answers that trail-rt probe collect made of held-out prompts with --rows 0, in place of new
    /// ones
    #[arg(long, value_name = "DIR")]
    pub(super) data: Option<PathBuf>,
    /// Prompts to answer [default: 200, or as many as the file has]
    #[arg(long, value_name = "N", value_parser = answers::requests)]
    pub(super) requests: Option<usize>,
    /// Options of the answers.
    #[command(flatten)]
    pub(super) answers: AnswerArgs,
    /// The adapter of the answers: the report has the figures with it and without.
    #[command(flatten)]
    pub(super) lora: LoraArgs,
    /// File for the predictions of every token, for simulate --trace or --noise-traces
    #[arg(long, value_name = "FILE")]
    pub(super) traces: Option<PathBuf>,
    /// File for a plot: errors by age, reliability, and predicted against true bins (SVG)
    #[arg(long, value_name = "FILE")]
    pub(super) plot: Option<PathBuf>,
    /// Replace files of another origin
    #[arg(long)]
    pub(super) force: bool,
}

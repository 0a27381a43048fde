//! Options of `trail-rt probe collect`.

use std::path::PathBuf;

use clap::Args;
use trail_probe::MAX_BINS;

use crate::commands::probe::answers::{self, AnswerArgs};
use crate::commands::probe::layers::Layers;

/// Options of `trail-rt probe collect`.
#[derive(Args, Debug)]
pub struct CollectArgs {
    /// Prompts, one JSON object with a "prompt" a line
    #[arg(long, value_name = "FILE")]
    pub(super) prompts: PathBuf,
    /// Folder for the shards; a run that was stopped goes on there
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Layers whose output is kept, from 0: a list such as 9,10,11, or all
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub(super) layers: Layers,
    /// Rows of an answer, one at random from each of N parts, up to 64, that grow by one factor; 0
    /// for all
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(0..=MAX_BINS as i64))]
    pub(super) rows: u32,
    /// Prompts to answer [default: all after the first]
    #[arg(long, value_name = "N", value_parser = answers::requests)]
    pub(super) requests: Option<usize>,
    /// Options of the answers.
    #[command(flatten)]
    pub(super) answers: AnswerArgs,
    /// Answers of a shard
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = answers::requests)]
    pub(super) shard: usize,
}

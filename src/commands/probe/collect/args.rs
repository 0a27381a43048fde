//! Options of `trail-rt probe collect`.

use std::path::PathBuf;

use clap::Args;
use trail_setup::{Error, count};

use crate::prompts::Prompt;

/// Most prompts of a run, rows of an answer, and tokens of an answer.
const MANY: usize = 1 << 24;

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
    layers: String,
    /// Rows of an answer, one at random from each of N equal parts; 0 for all
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(super) rows: usize,
    /// First prompt of the file, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) first: usize,
    /// Prompts to answer [default: all after the first]
    #[arg(long, value_name = "N", value_parser = count::<MANY>)]
    requests: Option<usize>,
    /// Most output tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(1..=MANY as i64))]
    pub(super) max_tokens: u32,
    /// Temperature of the answers
    #[arg(long, default_value_t = 1.0, value_parser = temperature)]
    pub(super) temperature: f32,
    /// Seed of the answers and of the choice of rows
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Answers of a shard
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = count::<MANY>)]
    pub(super) shard: usize,
}

impl CollectArgs {
    /// The layers that are named, ascending, of a model of `num_layers`.
    pub(super) fn layers(&self, num_layers: usize) -> Result<Vec<usize>, Error> {
        if self.layers == "all" {
            return Ok((0..num_layers).collect());
        }
        let layer =
            |text: &str| text.trim().parse().ok().filter(|&layer: &usize| layer < num_layers);
        let layers: Option<Vec<usize>> = self.layers.split(',').map(layer).collect();
        let mut layers = layers.ok_or_else(|| {
            Error::usage(format!(
                "--layers is {:?}: give all, or layers from 0 to {} with commas between",
                self.layers,
                num_layers - 1
            ))
        })?;
        layers.sort_unstable();
        layers.dedup();
        Ok(layers)
    }

    /// The prompts that are named, with their places in the file.
    pub(super) fn selected(&self, prompts: Vec<Prompt>) -> Result<Vec<(usize, Prompt)>, Error> {
        let found = prompts.len();
        let after = found.saturating_sub(self.first);
        let requests = self.requests.unwrap_or(after);
        if requests == 0 || requests > after {
            return Err(Error::usage(format!(
                "--first is {}, --requests {requests}, and {} has {found} prompts: ask for fewer",
                self.first,
                self.prompts.display()
            )));
        }
        Ok(prompts.into_iter().enumerate().skip(self.first).take(requests).collect())
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value| (0.0..=100.0).contains(value));
    value.ok_or_else(|| "a number from 0 to 100".into())
}

//! The options of `trail-rt generate`.

use clap::Args;
use trail_cli::LoraArgs;
use trail_runtime::engine::{Request, SamplingParams};

use crate::commands::sampling_args::SamplingArgs;

/// Tokens of an answer whose length was not given.
const DEFAULT_MAX_TOKENS: u32 = 256;

/// Options of `trail-rt generate`.
#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// The prompt; `-` reads it from stdin. Rendered as one user turn of the model's chat template,
    /// if the model has one
    #[arg(
        long,
        value_name = "TEXT",
        required_unless_present = "prompt_ids",
        conflicts_with = "prompt_ids"
    )]
    pub prompt: Option<String>,
    /// The prompt as token ids, without template or BOS token added
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub prompt_ids: Option<Vec<u32>>,
    /// Encode the prompt without the chat template
    #[arg(long)]
    pub raw: bool,
    /// Options of sampling.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// The adapter of the answer.
    #[command(flatten)]
    pub lora: LoraArgs,
    /// With --json, also print the N most likely tokens at each position
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub logprobs: u8,
}

impl GenerateArgs {
    /// Builds the request. The context has `room` for tokens after the prompt.
    pub fn request(&self, default: &SamplingParams, prompt: Vec<u32>, room: usize) -> Request {
        let default_tokens = room.clamp(1, DEFAULT_MAX_TOKENS as usize) as u32;
        let max_tokens = self.sampling.max_tokens().unwrap_or(default_tokens);
        let mut request = self.sampling.request(default, prompt, max_tokens);
        request.sampling.top_logprobs = self.logprobs;
        request
    }
}

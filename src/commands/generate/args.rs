//! The options of `trail-rt generate`.

use clap::Args;
use trail_runtime::engine::{Request, SamplingParams};

use crate::random;

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
    /// Maximum number of tokens to generate [default: 256, or what the context has left]
    #[arg(long, value_name = "N")]
    max_tokens: Option<u32>,
    /// Sampling temperature; 0 always takes the most likely token
    #[arg(long, value_name = "T", default_value_t = 1.0, allow_negative_numbers = true)]
    temperature: f32,
    /// Sample from the K most likely tokens; 0 from all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: u32,
    /// Sample from the smallest set of most likely tokens that reaches this probability
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f32,
    /// Drop tokens less likely than this share of the most likely token's probability
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    min_p: f32,
    /// Repetition penalty: above 1 discourages tokens of the prompt and the answer
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    repetition_penalty: f32,
    /// Above 0 discourages tokens that are already in the answer
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Above 0 discourages tokens in proportion to their count in the answer
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Random seed: the same seed gives the same answer [default: random]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<i64>,
    /// Stop string: ends the answer before this text; can be repeated
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Stop tokens: end the answer at any of these ids
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    stop_token_ids: Vec<u32>,
    /// With --json, also print the N most likely tokens at each position
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub logprobs: u8,
    /// Ignore the end-of-sequence token and generate --max-tokens tokens
    #[arg(long)]
    ignore_eos: bool,
}

impl GenerateArgs {
    /// Builds the request. The context has `room` for tokens after the prompt.
    pub fn request(&self, prompt: Vec<u32>, room: usize) -> Request {
        let default = room.clamp(1, DEFAULT_MAX_TOKENS as usize) as u32;
        let sampling = SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed.map_or_else(random::number, |seed| seed as u64),
            top_logprobs: self.logprobs,
        };
        Request {
            sampling,
            stop_tokens: self.stop_token_ids.clone(),
            ignore_eos: self.ignore_eos,
            ..Request::new(prompt, self.max_tokens.unwrap_or(default))
        }
    }
}

//! Options of sampling, common to `generate` and `chat`.

use clap::Args;
use trail_cli::Error;
use trail_runtime::engine::{Request, SamplingParams};
use trail_runtime::text::StopMatcher;

use trail_cli::random;

/// Options of sampling.
#[derive(Args, Debug)]
pub struct SamplingArgs {
    /// Maximum number of tokens to generate [default: 256 (chat: no bound), or what the context
    /// has left]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// Sampling temperature; 0 always takes the most likely token [default: the model's, or 1]
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Sample from the K most likely tokens; 0 from all [default: the model's, or 0]
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Sample from the smallest set of most likely tokens that reaches this probability [default:
    /// the model's, or 1]
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Drop tokens less likely than this share of the most likely token's probability [default:
    /// the model's, or 0]
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Repetition penalty: above 1 discourages tokens of the prompt and the answer [default: the
    /// model's, or 1]
    #[arg(long, value_name = "X")]
    repetition_penalty: Option<f32>,
    /// Above 0 discourages tokens that are already in the answer
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    presence_penalty: f32,
    /// Above 0 discourages tokens in proportion to their count in the answer
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    frequency_penalty: f32,
    /// Random seed: the same seed gives the same answer [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<i64>,
    /// Stop string: ends the answer before this text; can be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Stop tokens: end the answer at any of these ids
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    stop_token_ids: Vec<u32>,
    /// Ignore the end-of-sequence token and generate --max-tokens tokens
    #[arg(long)]
    ignore_eos: bool,
}

impl SamplingArgs {
    /// Returns true if a stop string was given, which needs the answer's text.
    pub fn has_stops(&self) -> bool {
        !self.stop.is_empty()
    }

    /// A matcher of the stop strings.
    pub fn stops(&self) -> Result<StopMatcher, Error> {
        StopMatcher::new(self.stop.clone()).map_err(Error::usage)
    }

    /// The number of tokens asked for.
    pub fn max_tokens(&self) -> Option<u32> {
        self.max_tokens
    }

    /// Builds the request for up to `max_tokens` tokens after `prompt`, with the parameters of
    /// `default` where none is given.
    pub fn request(&self, default: &SamplingParams, prompt: Vec<u32>, max_tokens: u32) -> Request {
        let sampling = SamplingParams {
            logit_bias: Vec::new(),
            temperature: self.temperature.unwrap_or(default.temperature),
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(default.repetition_penalty),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed.map_or_else(random::u64, |seed| seed as u64),
            top_logprobs: 0,
            prompt_logprobs: None,
        };
        Request {
            sampling,
            stop_tokens: self.stop_token_ids.clone(),
            ignore_eos: self.ignore_eos,
            ..Request::new(prompt, max_tokens)
        }
    }
}

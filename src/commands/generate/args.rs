//! The options of `trail-rt generate`.

use clap::Args;
use trail_runtime::engine::{Request, SamplingParams};

use crate::random;

/// Options of `trail-rt generate`.
#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// The prompt, `-` to read it from stdin. It becomes one user turn of the model's chat template,
    /// if the model has one
    #[arg(
        long,
        value_name = "TEXT",
        required_unless_present = "prompt_ids",
        conflicts_with = "prompt_ids"
    )]
    pub prompt: Option<String>,
    /// The prompt as token ids, taken as they are
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub prompt_ids: Option<Vec<u32>>,
    /// Take the prompt as it is, without the chat template
    #[arg(long)]
    pub raw: bool,
    /// Most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_tokens: u32,
    /// 0 takes the most likely token; higher is more varied
    #[arg(long, value_name = "T", default_value_t = 1.0, allow_negative_numbers = true)]
    temperature: f32,
    /// Choose among the K most likely tokens; 0 among all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: u32,
    /// Choose among the most likely tokens that together reach this probability
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f32,
    /// Leave out tokens less likely than this share of the most likely one
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    min_p: f32,
    /// Above 1 discourages tokens that were in the prompt or the answer
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    repetition_penalty: f32,
    /// Above 0 discourages tokens that were in the answer
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Above 0 discourages tokens by how often they were in the answer
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Key of the randomness: the same seed gives the same answer [default: a random one]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// End the answer before this text; can be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// End the answer at these tokens
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    stop_token_ids: Vec<u32>,
    /// With --json, also the N most likely tokens at each position
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub logprobs: u8,
    /// Go on to --max-tokens, whatever comes
    #[arg(long)]
    ignore_eos: bool,
}

impl GenerateArgs {
    /// The request, its prompt left out.
    pub fn request(&self) -> Request {
        let sampling = SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed.unwrap_or_else(random::number),
            top_logprobs: self.logprobs,
        };
        Request {
            sampling,
            stop_tokens: self.stop_token_ids.clone(),
            ignore_eos: self.ignore_eos,
            ..Request::new(Vec::new(), self.max_tokens)
        }
    }
}

//! Request fields that both endpoints share.

use serde::Deserialize;
use trail_runtime::backend::BLOCK_TOKENS;
use trail_runtime::engine::{Request, SamplingParams};
use trail_runtime::text::StopMatcher;

use super::choice::Choice;
use super::error::ApiError;
use super::state::ServerState;
use crate::random;

/// Maximum number of choices of one request: `n` times the number of prompts.
pub const MAX_CHOICES: usize = 128;

/// Sampling parameters and response options of a request.
#[derive(Deserialize, Clone, Debug)]
pub struct Options {
    /// Name of the model.
    pub model: Option<String>,
    /// True to stream the answer.
    pub stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    n: Option<usize>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    seed: Option<i64>,
    stop: Option<Stop>,
    stop_token_ids: Option<Vec<u32>>,
    ignore_eos: Option<bool>,
}

#[derive(Deserialize, Clone, Debug)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(untagged, expecting = "expected a string or an array of strings")]
enum Stop {
    One(String),
    Many(Vec<String>),
}

/// Prompts, and the options that each endpoint spells in its own way.
pub struct Prompts {
    /// Token ids of each prompt.
    pub ids: Vec<Vec<u32>>,
    /// Name of the request field that holds the prompts, for error messages.
    pub field: &'static str,
    /// Default of `max_tokens`; `None` for the rest of the context.
    pub default_max_tokens: Option<u32>,
    /// Log-probabilities per position: `None` for none, else the number of most likely tokens.
    pub top_logprobs: Option<u8>,
}

impl Options {
    /// Returns true if a stream ends with a usage chunk.
    pub fn include_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// Submits one engine request for each choice: all, or none if one is rejected.
    pub fn submit(&self, state: &ServerState, prompts: &Prompts) -> Result<Vec<Choice>, ApiError> {
        let n = self.n.unwrap_or(1);
        let choices = n.saturating_mul(prompts.ids.len());
        if n == 0 || choices > MAX_CHOICES {
            let message =
                format!("n times the prompts is {choices}: ask for 1 to {MAX_CHOICES} answers");
            return Err(ApiError::invalid_field("n", message));
        }
        let seed = self.seed.map_or_else(random::number, |seed| seed as u64);
        (0..choices)
            .map(|index| {
                // The n answers to one prompt differ by their seeds; the first has the given seed.
                let sampling = self.sampling(prompts, seed.wrapping_add((index % n) as u64));
                let request = self.request(state, prompts, &prompts.ids[index / n], sampling)?;
                let stops = self.stops()?;
                Choice::submit(state, index, request, stops, prompts.top_logprobs.is_some())
            })
            .collect()
    }

    fn request(
        &self,
        state: &ServerState,
        prompts: &Prompts,
        prompt: &[u32],
        sampling: SamplingParams,
    ) -> Result<Request, ApiError> {
        let context = state.engine.model().config.max_context;
        let capacity = context.min(state.engine.kv_blocks() * BLOCK_TOKENS);
        let room = capacity.saturating_sub(prompt.len());
        let asked = self.max_completion_tokens.or(self.max_tokens).or(prompts.default_max_tokens);
        if room == 0 || asked.is_some_and(|asked| asked as usize > room) {
            let message = format!(
                "this server has room for {capacity} tokens in a request, the prompt has {} and the answer {}: shorten the prompt or lower max_tokens",
                prompt.len(),
                asked.map_or("none left".into(), |asked| asked.to_string()),
            );
            return Err(ApiError::too_long(prompts.field, message));
        }
        Ok(Request {
            sampling,
            stop_tokens: self.stop_token_ids.clone().unwrap_or_default(),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            ..Request::new(prompt.to_vec(), asked.unwrap_or(room as u32))
        })
    }

    fn sampling(&self, prompts: &Prompts, seed: u64) -> SamplingParams {
        let default = SamplingParams::default();
        // As in vLLM, -1 means "all", like 0; so does a value above the vocabulary size.
        let top_k = self.top_k.map(|k| k.clamp(0, i64::from(u32::MAX)) as u32);
        SamplingParams {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_k: top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(default.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
            seed,
            top_logprobs: prompts.top_logprobs.unwrap_or(0),
        }
    }

    fn stops(&self) -> Result<StopMatcher, ApiError> {
        let stops = match &self.stop {
            None => Vec::new(),
            Some(Stop::One(stop)) => vec![stop.clone()],
            Some(Stop::Many(stops)) => stops.clone(),
        };
        StopMatcher::new(stops).map_err(|why| ApiError::invalid_field("stop", why))
    }
}

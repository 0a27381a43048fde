//! Sampling parameters, by vLLM's names.

use pyo3::prelude::*;
use trail_cli::TextOptions;
use trail_runtime::engine::{Request, SamplingParams};

use crate::error;

/// The attributes of `trail_rt.SamplingParams`.
#[derive(FromPyObject)]
pub(crate) struct Params {
    temperature: f32,
    top_p: f32,
    top_k: i64,
    min_p: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    repetition_penalty: f32,
    seed: Option<i64>,
    max_tokens: Option<u32>,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_token_ids: Vec<u32>,
    ignore_eos: bool,
    skip_special_tokens: bool,
    include_stop_str_in_output: bool,
    length_hint: Option<u32>,
}

impl Params {
    /// A request for an answer to `prompt`, in a context of `max_context` tokens.
    pub(crate) fn request(&self, prompt: Vec<u32>, max_context: usize) -> PyResult<Request> {
        let top_k = match self.top_k {
            -1 => 0,
            top_k => u32::try_from(top_k).map_err(|_| {
                error::request(format!("top_k is {top_k}: give a number of tokens, or 0 for all"))
            })?,
        };
        let left = max_context.saturating_sub(prompt.len()).max(1);
        let max_tokens = self.max_tokens.unwrap_or(left as u32);
        Ok(Request {
            stop_tokens: self.stop_token_ids.clone(),
            ignore_eos: self.ignore_eos,
            length_hint: self.length_hint,
            sampling: SamplingParams {
                temperature: self.temperature,
                top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                repetition_penalty: self.repetition_penalty,
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                seed: self.seed.map_or_else(trail_cli::random::u64, |seed| seed as u64),
                ..SamplingParams::default()
            },
            ..Request::new(prompt, max_tokens)
        })
    }

    /// The text of the answer beside that of ordinary tokens.
    pub(crate) fn text_options(&self) -> TextOptions {
        TextOptions {
            keep_special: !self.skip_special_tokens,
            include_stop: self.include_stop_str_in_output,
            ..TextOptions::default()
        }
    }
}

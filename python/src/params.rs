//! Sampling parameters, by vLLM's names.

use std::ops::RangeInclusive;

use pyo3::prelude::*;
use trail_cli::TextOptions;
use trail_runtime::engine::{Request, SamplingParams};

use crate::error;

/// Characters of a wrong value that its error shows.
const MAX_SHOWN: usize = 80;

/// Priorities that the scheduler tells apart.
pub(crate) const PRIORITIES: RangeInclusive<i32> = -127..=127;

/// The attributes of `trail_rt.SamplingParams`.
pub(crate) struct Params {
    temperature: f32,
    top_p: f32,
    top_k: i64,
    min_p: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    repetition_penalty: f32,
    seed: Option<Seed>,
    max_tokens: Option<u32>,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_token_ids: Vec<u32>,
    ignore_eos: bool,
    skip_special_tokens: bool,
    include_stop_str_in_output: bool,
    length_hint: Option<u32>,
}

/// 64 bits, as Python has them with a sign or without.
#[derive(Clone, Copy, FromPyObject)]
enum Seed {
    Signed(i64),
    Unsigned(u64),
}

impl Seed {
    fn bits(self) -> u64 {
        match self {
            Seed::Signed(seed) => seed as u64,
            Seed::Unsigned(seed) => seed,
        }
    }
}

/// One string that ends an answer, or several.
#[derive(FromPyObject)]
enum Stops {
    One(String),
    Several(Vec<String>),
}

/// `value` of the argument `name`, which must be `expected`.
pub(crate) fn argument<'a, 'py, T: FromPyObject<'a, 'py>>(
    name: &str,
    value: &'a Bound<'py, PyAny>,
    expected: &str,
) -> PyResult<T> {
    value.extract().map_err(|_| wrong(name, value, expected))
}

fn wrong(name: &str, value: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    let text: String = value.repr().map(|text| text.to_string()).unwrap_or_default();
    let text: String = text.chars().take(MAX_SHOWN).collect();
    error::request(format!("{name} is {text}: give {expected}"))
}

/// The priority of a request.
pub(crate) fn priority(value: &Bound<'_, PyAny>) -> PyResult<i32> {
    let priority = value.extract().ok().filter(|priority| PRIORITIES.contains(priority));
    priority.ok_or_else(|| wrong("priority", value, "a number from -127 to 127, lower first"))
}

impl Params {
    /// Reads the attributes; an error names the one that is wrong, with its value.
    pub(crate) fn read(params: &Bound<'_, PyAny>) -> PyResult<Params> {
        let of = |name: &str| {
            params.getattr(name).map_err(|_| {
                let kind = params.get_type().to_string();
                error::request(format!("sampling_params is of {kind}: give a SamplingParams"))
            })
        };
        let number = |name| argument(name, &of(name)?, "a number");
        let switch = |name| argument(name, &of(name)?, "True or False");
        let tokens = |name| argument(name, &of(name)?, "a number of tokens, or None");
        let stop: Option<Stops> =
            argument("stop", &of("stop")?, "a text, a list of texts, or None")?;
        let stop_tokens: Option<Vec<u32>> =
            argument("stop_token_ids", &of("stop_token_ids")?, "a list of token ids, or None")?;
        Ok(Params {
            temperature: number("temperature")?,
            top_p: number("top_p")?,
            top_k: argument("top_k", &of("top_k")?, "a number of tokens, or 0 for all")?,
            min_p: number("min_p")?,
            presence_penalty: number("presence_penalty")?,
            frequency_penalty: number("frequency_penalty")?,
            repetition_penalty: number("repetition_penalty")?,
            seed: argument("seed", &of("seed")?, "a number of 64 bits, or None")?,
            max_tokens: tokens("max_tokens")?,
            stop: match stop {
                None => Vec::new(),
                Some(Stops::One(text)) => vec![text],
                Some(Stops::Several(texts)) => texts,
            },
            stop_token_ids: stop_tokens.unwrap_or_default(),
            ignore_eos: switch("ignore_eos")?,
            skip_special_tokens: switch("skip_special_tokens")?,
            include_stop_str_in_output: switch("include_stop_str_in_output")?,
            length_hint: tokens("length_hint")?,
        })
    }

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
                seed: self.seed.map_or_else(trail_cli::random::u64, Seed::bits),
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

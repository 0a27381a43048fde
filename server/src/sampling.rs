//! Request fields that both endpoints share.

use std::sync::Arc;

use serde::Deserialize;
use trail_runtime::backend::BLOCK_TOKENS;
use trail_runtime::engine::{Request, SamplingParams, SubmitError};
use trail_runtime::text::StopMatcher;

use crate::access::Access;
use crate::choice::{Choice, Opening};
use crate::error::ApiError;
use crate::intake::{BodyPermit, HasLeft};
use crate::length_hint::LengthHint;
use crate::one_or_many::OneOrMany;
use crate::state::ServerState;
use trail_cli::TextOptions;
use trail_cli::random;

/// Maximum number of choices of one request: `n` times the number of prompts.
pub(crate) const MAX_CHOICES: usize = 128;

/// Maximum number of stop tokens of one request.
const MAX_STOP_TOKENS: usize = 1024;

/// Sampling parameters and response options of a request.
#[derive(Deserialize, Clone, Debug)]
pub(crate) struct Options {
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
    stop: Option<OneOrMany<String>>,
    stop_token_ids: Option<Vec<u32>>,
    ignore_eos: Option<bool>,
    skip_special_tokens: Option<bool>,
    include_stop_str_in_output: Option<bool>,
    /// NVIDIA's extension of the request, as in Dynamo. Nothing is said of its form unless a
    /// predictor reads it.
    #[serde(default)]
    nvext: LengthHint,
}

#[derive(Deserialize, Clone, Debug)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// Prompts, and the options that each endpoint spells in its own way.
pub(crate) struct Prompts {
    /// Token ids of each prompt.
    pub ids: Vec<Vec<u32>>,
    /// Name of the request field that holds the prompts, for error messages.
    pub field: &'static str,
    /// Default of `max_tokens`; `None` for the rest of the context.
    pub default_max_tokens: Option<u32>,
    /// Log-probabilities per position: `None` for none, else the number of most likely tokens.
    pub top_logprobs: Option<u8>,
    /// Name of the request field that holds their number, for error messages.
    pub top_logprobs_field: &'static str,
    /// Text before each answer, one per prompt; empty for none.
    pub echo: Vec<String>,
}

impl Options {
    /// Returns true if a stream ends with a usage chunk.
    pub(crate) fn include_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// Submits one engine request for each choice: all, or none if one is rejected. Predictions
    /// that take long are made where texts are tokenized, under the same bounds.
    pub(crate) async fn submit(
        &self,
        state: &Arc<ServerState>,
        access: &Arc<Access>,
        prompts: Prompts,
        permit: BodyPermit,
    ) -> Result<Vec<Choice>, ApiError> {
        if !state.engine.predicts_slowly() {
            return self.submit_all(state, access, &prompts, &|| false);
        }
        let (options, state, access) = (self.clone(), state.clone(), access.clone());
        let (choices, _) = permit
            .run(move |has_left| options.submit_all(&state, &access, &prompts, has_left))
            .await?;
        choices
    }

    fn submit_all(
        &self,
        state: &ServerState,
        access: &Arc<Access>,
        prompts: &Prompts,
        has_left: HasLeft,
    ) -> Result<Vec<Choice>, ApiError> {
        let n = self.n.unwrap_or(1);
        let count = n.saturating_mul(prompts.ids.len());
        if n == 0 || count > MAX_CHOICES {
            let message =
                format!("n times the prompts is {count}: ask for 1 to {MAX_CHOICES} answers");
            return Err(ApiError::invalid_field("n", message));
        }
        let seed = self.seed.map_or_else(random::u64, |seed| seed as u64);
        let submit = |index: usize, initial_prediction| {
            let sampling = self.sampling(prompts, seed_of_answer(seed, (index % n) as u64));
            let request = self.request(state, prompts, index / n, sampling)?;
            let request = Request { initial_prediction, ..request };
            Choice::submit(state, access, self.opening(prompts, index, index / n)?, request)
                .map_err(|error| self.refusal(prompts, error))
        };
        let mut choices: Vec<Choice> = Vec::with_capacity(count);
        for index in 0..count {
            if has_left() {
                return Err(ApiError::interrupted());
            }
            // All answers to a prompt have the first one's prediction.
            let same_prompt = choices.last().filter(|_| !index.is_multiple_of(n));
            let prediction = same_prompt.and_then(Choice::initial_prediction);
            // The choices before a refused one are dropped, too: none of the request is answered.
            let choice = submit(index, prediction).inspect_err(|_| access.fail("rejected"))?;
            choices.push(choice);
        }
        Ok(choices)
    }

    /// The form in which choice `index`, an answer to prompt `prompt`, is reported.
    fn opening(&self, prompts: &Prompts, index: usize, prompt: usize) -> Result<Opening, ApiError> {
        Ok(Opening {
            index,
            echo: prompts.echo.get(prompt).cloned().unwrap_or_default(),
            scored: prompts.top_logprobs.is_some(),
            stops: self.stops()?,
            text: TextOptions {
                keep_special: !self.skip_special_tokens.unwrap_or(true),
                include_stop: self.include_stop_str_in_output.unwrap_or(false),
            },
        })
    }

    /// The engine's refusal, in the endpoint's names of fields.
    fn refusal(&self, prompts: &Prompts, error: SubmitError) -> ApiError {
        match error {
            SubmitError::Sampling(why) if why.starts_with("top_logprobs ") => {
                ApiError::invalid_field(prompts.top_logprobs_field, why)
            }
            error => ApiError::of_submission(error, prompts.field, self.max_tokens_field()),
        }
    }

    /// The name under which the answer's length was requested.
    fn max_tokens_field(&self) -> &'static str {
        match self.max_completion_tokens {
            Some(_) => "max_completion_tokens",
            None => "max_tokens",
        }
    }

    fn request(
        &self,
        state: &ServerState,
        prompts: &Prompts,
        prompt: usize,
        sampling: SamplingParams,
    ) -> Result<Request, ApiError> {
        let prompt = &prompts.ids[prompt];
        let context = state.engine.model().config.max_context;
        let capacity = context.min(state.engine.kv_blocks() * BLOCK_TOKENS);
        let room = capacity.saturating_sub(prompt.len());
        let asked = self.max_completion_tokens.or(self.max_tokens);
        if room == 0 || asked.is_some_and(|asked| asked as usize > room) {
            let prompt = prompt.len();
            let (answer, remedy) = match asked {
                Some(asked) if room > 0 => {
                    let lower = format!("shorten the prompt or lower {}", self.max_tokens_field());
                    (format!("the answer {asked}"), lower)
                }
                _ => ("the answer needs one".to_owned(), "shorten the prompt".to_owned()),
            };
            let message = format!(
                "this server has room for {capacity} tokens in a request, the prompt has {prompt} \
                 and {answer}: {remedy}"
            );
            return Err(ApiError::too_long(prompts.field, message));
        }
        let default = prompts.default_max_tokens.map_or(room, |tokens| room.min(tokens as usize));
        let stop_tokens = self.stop_token_ids.clone().unwrap_or_default();
        if stop_tokens.len() > MAX_STOP_TOKENS {
            let message = format!(
                "stop_token_ids must have at most {MAX_STOP_TOKENS} ids, not {}",
                stop_tokens.len()
            );
            return Err(ApiError::invalid_field("stop_token_ids", message));
        }
        Ok(Request {
            sampling,
            stop_tokens,
            length_hint: self.length_hint(state)?,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            ..Request::new(prompt.to_vec(), asked.unwrap_or(default as u32))
        })
    }

    /// The client's estimate of the answer's length, tokens, if the predictor reads it: without one
    /// that does, `nvext` is like any field that this server does not know.
    fn length_hint(&self, state: &ServerState) -> Result<Option<u32>, ApiError> {
        if !state.engine.predictor().is_some_and(|predictor| predictor.reads_hint()) {
            return Ok(None);
        }
        match self.nvext {
            LengthHint::Absent => Ok(None),
            LengthHint::Tokens(tokens) => Ok(Some(tokens)),
            LengthHint::Malformed => {
                let field = "nvext.agent_hints.osl";
                let message =
                    format!("'{field}' must be a number of tokens from 0 to {}", u32::MAX);
                Err(ApiError::invalid_field(field, message))
            }
        }
    }

    fn sampling(&self, prompts: &Prompts, seed: u64) -> SamplingParams {
        let default = SamplingParams::default();
        // As in vLLM, -1 means "all", like 0; so does a value above the vocabulary size.
        let top_k = self.top_k.map(|k| k.clamp(0, i64::from(u32::MAX)) as u32);
        SamplingParams {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_k: top_k.unwrap_or(default.top_k),
            // As in OpenAI's interface, 0 takes the most likely token.
            top_p: match self.top_p.unwrap_or(default.top_p) {
                0.0 => f32::MIN_POSITIVE,
                top_p => top_p,
            },
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
            Some(OneOrMany::One(stop)) => vec![stop.clone()],
            Some(OneOrMany::Many(stops)) => stops.clone(),
        };
        StopMatcher::new(stops).map_err(|why| ApiError::invalid_field("stop", why))
    }
}

/// The seed of answer `index` to one prompt. The first has the request's own; the others' do not
/// meet those of other seeds as consecutive numbers would.
fn seed_of_answer(seed: u64, index: u64) -> u64 {
    // Steele, Lea and Flood's SplitMix64 finalizer, a bijection, of both after another.
    let mix = |mut x: u64| {
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    };
    match index {
        0 => seed,
        index => mix(mix(seed.wrapping_add(0x9E37_79B9_7F4A_7C15)) ^ index),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::seed_of_answer;

    #[test]
    fn seeds_of_several_answers_do_not_overlap() {
        let signed = [-3i64, -2, -1, 0, 1, 2, 3, 4, 5, i64::MIN, i64::MAX];
        let seeds = signed.map(|seed| seed as u64);
        assert!(seeds.iter().all(|&seed| seed_of_answer(seed, 0) == seed));
        let all: HashSet<u64> =
            seeds.iter().flat_map(|&seed| (0..128).map(move |n| seed_of_answer(seed, n))).collect();
        assert_eq!(all.len(), seeds.len() * 128);
    }
}

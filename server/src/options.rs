//! Request fields that both endpoints share.

use serde::Deserialize;
use trail_runtime::backend::BLOCK_TOKENS;
use trail_runtime::engine::{Request, SamplingParams};
use trail_runtime::text::StopMatcher;

use crate::error::ApiError;
use crate::length_hint::LengthHint;
use crate::one_or_many::OneOrMany;
use crate::prompts::Prompts;
use crate::state::ServerState;

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
    pub n: Option<usize>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    pub seed: Option<i64>,
    stop: Option<OneOrMany<String>>,
    stop_token_ids: Option<Vec<u32>>,
    ignore_eos: Option<bool>,
    pub skip_special_tokens: Option<bool>,
    pub include_stop_str_in_output: Option<bool>,
    /// NVIDIA's extension of the request, as in Dynamo. Its form is validated only if a
    /// predictor reads it.
    #[serde(default)]
    nvext: LengthHint,
}

#[derive(Deserialize, Clone, Debug)]
struct StreamOptions {
    include_usage: Option<bool>,
}

impl Options {
    /// Returns true if a stream ends with a usage chunk.
    pub(crate) fn include_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// The name under which the answer's length was requested.
    pub(crate) fn max_tokens_field(&self) -> &'static str {
        match self.max_completion_tokens {
            Some(_) => "max_completion_tokens",
            None => "max_tokens",
        }
    }

    pub(crate) fn request(
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

    /// The sampling parameters, those of `default` where the request names none.
    pub(crate) fn sampling(
        &self,
        default: &SamplingParams,
        prompts: &Prompts,
        seed: u64,
    ) -> SamplingParams {
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

    pub(crate) fn stops(&self) -> Result<StopMatcher, ApiError> {
        let stops = match &self.stop {
            None => Vec::new(),
            Some(OneOrMany::One(stop)) => vec![stop.clone()],
            Some(OneOrMany::Many(stops)) => stops.clone(),
        };
        StopMatcher::new(stops).map_err(|why| ApiError::invalid_field("stop", why))
    }
}

//! Request fields that both endpoints share.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use trail_runtime::engine::{Request, SamplingParams};
use trail_runtime::text::StopMatcher;
use utoipa::ToSchema;

use crate::access::Access;
use crate::api_keys::ApiKey;
use crate::body::Body;
use crate::constraint::AnswerRules;
use crate::error::ApiError;
use crate::length_hint::LengthHint;
use crate::number::{Count, Int64, Priority, Real, TopK, TopLogprobs};
use crate::one_or_many::OneOrMany;
use crate::openapi::Schemas;
use crate::prompts::Prompts;
use crate::served_model::ServedModel;
use crate::state::ServerState;
use crate::structured_outputs::{OutputForm, excluding};
use crate::time_limits::TimeLimits;

/// Maximum number of stop tokens of one request.
const MAX_STOP_TOKENS: usize = 1024;

/// Longest `cache_salt`, bytes.
const MAX_SALT: usize = 256;

/// Sampling parameters and response options of a request.
#[derive(Deserialize, ToSchema, Clone, Debug)]
pub(crate) struct Options {
    /// Name of the model.
    pub model: Option<String>,
    /// True to stream the answer.
    pub stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 128)]
    pub n: Option<Count>,
    max_tokens: Option<Count>,
    max_completion_tokens: Option<Count>,
    #[schema(value_type = Option<f32>, minimum = 0.0, maximum = 100.0)]
    temperature: Option<Real>,
    #[schema(value_type = Option<f32>, minimum = 0.0, maximum = 1.0)]
    top_p: Option<Real>,
    top_k: Option<TopK>,
    #[schema(value_type = Option<f32>, minimum = 0.0, maximum = 1.0)]
    min_p: Option<Real>,
    #[schema(value_type = Option<f32>, minimum = 0.01, maximum = 100.0)]
    repetition_penalty: Option<Real>,
    #[schema(value_type = Option<f32>, minimum = -2.0, maximum = 2.0)]
    presence_penalty: Option<Real>,
    #[schema(value_type = Option<f32>, minimum = -2.0, maximum = 2.0)]
    frequency_penalty: Option<Real>,
    pub seed: Option<Int64>,
    stop: Option<Stops>,
    stop_token_ids: Option<Vec<Count>>,
    /// Requests of different salts share no KV block.
    #[schema(min_length = 1, max_length = 256)]
    cache_salt: Option<String>,
    ignore_eos: Option<bool>,
    pub skip_special_tokens: Option<bool>,
    pub include_stop_str_in_output: Option<bool>,
    /// vLLM: token ids of prompt and answer in the response.
    pub return_token_ids: Option<bool>,
    /// The name under which the answer's length was requested, where it is no OpenAI's.
    #[serde(skip)]
    max_tokens_name: Option<&'static str>,
    /// Extensions of this server.
    trail: Option<TrailFields>,
    /// Milliseconds from the arrival in which the answer must be complete.
    #[schema(value_type = Option<u32>)]
    deadline_ms: Option<Count>,
    /// Milliseconds from the arrival in which the answer must begin.
    #[schema(value_type = Option<u32>)]
    max_wait_ms: Option<Count>,
    /// Requests of a lower one are served before, as in vLLM.
    #[schema(value_type = Option<i32>, minimum = -127, maximum = 127)]
    priority: Option<Priority>,
    /// NVIDIA's extension of the request, as in Dynamo. Its form is validated only if a
    /// predictor reads it.
    #[serde(default)]
    #[schema(value_type = Value)]
    nvext: LengthHint,
    /// The allowed answers, in other fields of the body.
    #[serde(skip)]
    pub rules: AnswerRules,
}

/// Stop strings.
type Stops = OneOrMany<String>;

#[derive(Deserialize, ToSchema, Clone, Debug)]
#[serde(expecting = "an object")]
struct StreamOptions {
    include_usage: Option<bool>,
    /// vLLM: counts in every chunk, if there are any.
    continuous_usage_stats: Option<bool>,
}

/// Fields of this server's own.
#[derive(Deserialize, ToSchema, Clone, Copy, Debug)]
#[serde(expecting = "an object")]
struct TrailFields {
    /// Chunks of a stream report what is expected of the rest.
    progress: Option<bool>,
}

impl Options {
    /// True if chunks of a stream report what is expected of the rest.
    pub(crate) fn progress(&self) -> bool {
        self.trail.and_then(|trail| trail.progress).unwrap_or(false)
    }

    /// The times by which the client wants the answer.
    pub(crate) fn time_limits(&self) -> TimeLimits {
        let time = |ms: Option<Count>| ms.map(|ms| Duration::from_millis(ms.get().into()));
        TimeLimits { deadline: time(self.deadline_ms), max_wait: time(self.max_wait_ms) }
    }

    /// Fields that [`of_message`](Self::of_message) drops.
    pub(crate) const IGNORED_BY_MESSAGES: &[&str] = &["n", "stop", "max_completion_tokens"];
    /// Fields that [`of_response`](Self::of_response) drops.
    pub(crate) const IGNORED_BY_RESPONSES: &[&str] =
        &["n", "stop", "max_tokens", "max_completion_tokens"];

    /// Reads the options of a request.
    pub(crate) fn read(body: &Body) -> Result<Options, ApiError> {
        Ok(Options { rules: AnswerRules::read(body)?, ..body.read()? })
    }

    /// The schemas of what is read.
    pub(crate) fn schemas_read(schemas: &mut Schemas) -> [Value; 3] {
        let [form, tokens] = AnswerRules::schemas_read(schemas);
        [schemas.fields::<Options>(), form, tokens]
    }

    /// Returns true if a stream ends with a usage chunk.
    pub(crate) fn include_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// Returns true if every chunk of a stream has the counts so far.
    pub(crate) fn continuous_usage(&self) -> bool {
        let options = self.stream_options.as_ref();
        self.include_usage()
            && options.and_then(|options| options.continuous_usage_stats).unwrap_or(false)
    }

    /// These options of a request of Anthropic's API, whose stop strings have another name.
    pub(crate) fn of_message(self, stop_sequences: Option<Vec<String>>) -> Options {
        let stop = stop_sequences.map(OneOrMany::Many);
        Options { stop, n: None, max_completion_tokens: None, ..self }
    }

    /// These options of a request to OpenAI's Responses API, whose length has another name.
    pub(crate) fn of_response(self, max_output_tokens: Option<Count>) -> Options {
        let max_tokens_name = Some("max_output_tokens");
        let max_completion_tokens = None;
        Options {
            n: None,
            stop: None,
            max_tokens: max_output_tokens,
            max_completion_tokens,
            max_tokens_name,
            ..self
        }
    }

    /// The number of `prompt_logprobs`, which a stream cannot have, as in vLLM.
    pub(crate) fn prompt_logprobs(
        &self,
        asked: Option<TopLogprobs>,
    ) -> Result<Option<u8>, ApiError> {
        let field = "prompt_logprobs";
        match asked {
            Some(_) if self.stream.unwrap_or(false) => Err(ApiError::invalid_field(
                field,
                "'prompt_logprobs' is not supported with 'stream': leave one out",
            )),
            asked => Ok(asked.map(TopLogprobs::get)),
        }
    }

    /// The name under which the answer's length was requested.
    pub(crate) fn max_tokens_field(&self) -> &'static str {
        match self.max_completion_tokens {
            Some(_) => "max_completion_tokens",
            None => self.max_tokens_name.unwrap_or("max_tokens"),
        }
    }

    /// These options with the `form` of the answer in a field of one API alone.
    pub(crate) fn in_form(mut self, form: Option<OutputForm>) -> Result<Options, ApiError> {
        match (&self.rules.form, form) {
            (Some(other), Some(form)) if other.spec != form.spec => {
                Err(excluding(other.field, form.field))
            }
            (Some(_), _) | (_, None) => Ok(self),
            (None, form) => {
                self.rules.form = form;
                Ok(self)
            }
        }
    }

    pub(crate) fn request(
        &self,
        state: &ServerState,
        model: &ServedModel,
        access: &Access,
        prompts: &Prompts,
        prompt: usize,
        sampling: SamplingParams,
    ) -> Result<Request, ApiError> {
        let prompt = &prompts.ids[prompt];
        let capacity = model.capacity;
        let room = capacity.saturating_sub(prompt.len());
        let asked = self.max_completion_tokens.or(self.max_tokens).map(Count::get);
        if asked == Some(0) && !prompts.are_reported() {
            let field = self.max_tokens_field();
            let message = format!(
                "'{field}' is 0: ask for at least one token, or for 'echo' or 'prompt_logprobs'"
            );
            return Err(ApiError::invalid_field(field, message));
        }
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
        if let (Some(least), Some(max)) = (self.rules.tokens.min_tokens, asked)
            && least.get() > max
        {
            let message = format!("'min_tokens' must be at most {}", self.max_tokens_field());
            return Err(ApiError::invalid_field("min_tokens", message));
        }
        let default = prompts.default_max_tokens.map_or(room, |tokens| room.min(tokens as usize));
        Ok(Request {
            sampling,
            stop_tokens: self.stop_tokens()?,
            length_hint: self.length_hint(model)?,
            // A grammar allows the end where it is complete.
            ignore_eos: self.ignore_eos.unwrap_or(false) && !self.rules.has_grammar(prompts),
            cache_salt: self.cache_salt(access.key().filter(|_| state.salts_by_key))?,
            expected: prompts.expected.clone(),
            priority: access.priority(self.priority)?,
            ..Request::new(prompt.to_vec(), asked.unwrap_or(default as u32))
        })
    }

    /// The hash of `key`, which has one length, and the request's own salt. An empty one of those
    /// is refused, as by vLLM: the client would share with all who give none.
    fn cache_salt(&self, key: Option<&ApiKey>) -> Result<Vec<u8>, ApiError> {
        let of_key = key.map_or(&[][..], |key| key.hash.bytes());
        let Some(salt) = &self.cache_salt else { return Ok(of_key.to_vec()) };
        if salt.is_empty() || salt.len() > MAX_SALT {
            let message = format!("cache_salt must have 1 to {MAX_SALT} bytes, not {}", salt.len());
            return Err(ApiError::invalid_field("cache_salt", message));
        }
        Ok([of_key, salt.as_bytes()].concat())
    }

    fn stop_tokens(&self) -> Result<Vec<u32>, ApiError> {
        let ids = self.stop_token_ids.as_deref().unwrap_or_default();
        if ids.len() > MAX_STOP_TOKENS {
            let message = format!(
                "stop_token_ids must have at most {MAX_STOP_TOKENS} ids, not {}",
                ids.len()
            );
            return Err(ApiError::invalid_field("stop_token_ids", message));
        }
        Ok(ids.iter().map(|id| id.get()).collect())
    }

    /// The client's estimate of the answer's length, tokens, if the predictor reads it: without one
    /// that does, `nvext` is like any field that this server does not know.
    fn length_hint(&self, model: &ServedModel) -> Result<Option<u32>, ApiError> {
        if !model.engine.predictor().is_some_and(|predictor| predictor.reads_hint()) {
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
        let top_k = self.top_k.map(|k| i64::from(k).clamp(0, i64::from(u32::MAX)) as u32);
        let or = |real: Option<Real>, default| real.map_or(default, |real| real.0);
        SamplingParams {
            temperature: or(self.temperature, default.temperature),
            top_k: top_k.unwrap_or(default.top_k),
            // As in OpenAI's interface, 0 takes the most likely token.
            top_p: match or(self.top_p, default.top_p) {
                0.0 => f32::MIN_POSITIVE,
                top_p => top_p,
            },
            min_p: or(self.min_p, default.min_p),
            repetition_penalty: or(self.repetition_penalty, default.repetition_penalty),
            presence_penalty: or(self.presence_penalty, default.presence_penalty),
            frequency_penalty: or(self.frequency_penalty, default.frequency_penalty),
            seed,
            logit_bias: Vec::new(),
            top_logprobs: prompts.top_logprobs.unwrap_or(0),
            prompt_logprobs: prompts.scored_top(),
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

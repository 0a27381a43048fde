//! Generation requests.

use std::sync::Arc;

use trail_scheduler::{NewRequest, RequestId};

use super::constraint::Constraint;
use crate::backend::SamplingParams;
use crate::model::Adapter;

/// A function that is called after every event of a request.
pub type Notify = Arc<dyn Fn() + Send + Sync>;

/// One generation request, in tokens.
#[derive(Clone)]
pub struct Request {
    /// Prompt token ids; at least one.
    pub prompt: Vec<u32>,
    /// Number of tokens at the end of `prompt` that another engine generated for the same answer,
    /// before the request moved here: they are output for penalties, predictions and the request's
    /// age, and `max_tokens` counts them. 0 for a new request.
    pub generated: u32,
    /// Most tokens of the answer. 0: the request ends after its prompt, with
    /// [`super::FinishReason::Length`].
    pub max_tokens: u32,
    /// Parameters of sampling.
    pub sampling: SamplingParams,
    /// Tokens that end the answer, beside the model's own end-of-sequence tokens.
    pub stop_tokens: Vec<u32>,
    /// The set of allowed answers; `None`: all. Needs a backend with
    /// [`Backend::takes_masks`](crate::backend::Backend::takes_masks).
    pub constraint: Option<Arc<dyn Constraint>>,
    /// Continue past the model's end-of-sequence tokens; `stop_tokens` still end the answer. An
    /// answer that a constraint has completed goes on with end tokens alone.
    pub ignore_eos: bool,
    /// Exact output length, tokens, at most `max_tokens`: the answer ends there, whatever its
    /// tokens. Hidden from the policies. For experiments.
    pub forced_length: Option<u32>,
    /// True output length, tokens, from a recorded run. For the `oracle` policy.
    pub true_length: Option<u32>,
    /// Predictions to replay in place of the probe's: expected remaining tokens, by tokens
    /// generated. For experiments.
    pub predictions: Option<Arc<[f32]>>,
    /// Output length to replay in place of the prompt-only predictor's, tokens. For experiments.
    pub initial_prediction: Option<f32>,
    /// The client's estimate of the output length, tokens; read by a predictor that asks for it.
    pub length_hint: Option<u32>,
    /// Tokens that the answer is expected to repeat in part: speculation proposes them too, up to
    /// the first that is not in the vocabulary.
    pub expected: Vec<u32>,
    /// KV blocks of equal tokens are shared with other requests of the same salt. False: none is,
    /// as where [`SamplingParams::prompt_logprobs`] needs every row of the prompt.
    pub shares_prefix: bool,
    /// Requests of different salts share no KV block.
    pub cache_salt: Vec<u8>,
    /// The adapter of the answer, loaded for the engine's model; `None`: the model as it is. KV
    /// blocks are shared with requests of the same adapter alone. Needs a backend with
    /// [`Backend::takes_adapters`](crate::backend::Backend::takes_adapters).
    pub adapter: Option<Arc<Adapter>>,
    /// Requests of one priority precede those of the next, -127 to 127, and are ranked by the
    /// policy among themselves: lower goes first, as in vLLM. One that may not be preempted keeps
    /// its place.
    pub priority: i32,
    /// Called after every event on the engine's thread; must not block.
    pub notify: Option<Notify>,
}

impl Request {
    /// A request for up to `max_tokens` tokens after `prompt`, with default sampling.
    pub fn new(prompt: Vec<u32>, max_tokens: u32) -> Self {
        Request {
            prompt,
            generated: 0,
            max_tokens,
            sampling: SamplingParams::default(),
            stop_tokens: Vec::new(),
            constraint: None,
            ignore_eos: false,
            forced_length: None,
            true_length: None,
            predictions: None,
            initial_prediction: None,
            length_hint: None,
            expected: Vec::new(),
            shares_prefix: true,
            cache_salt: Vec::new(),
            adapter: None,
            priority: 0,
            notify: None,
        }
    }

    /// The prompt without the tokens that were generated; empty if those are all.
    pub(super) fn own_prompt(&self) -> &[u32] {
        &self.prompt[..self.prompt.len().saturating_sub(self.generated as usize)]
    }

    /// True if its KV blocks are shared.
    pub(super) fn shares_blocks(&self) -> bool {
        self.shares_prefix && self.sampling.prompt_logprobs.is_none()
    }

    /// The request in the scheduler's terms.
    pub(super) fn to_scheduler(&self, id: u64, arrival_s: f64) -> NewRequest {
        NewRequest {
            id: RequestId(id),
            // More tokens than fit in 32 bits are more than any context has.
            prompt_tokens: u32::try_from(self.own_prompt().len()).unwrap_or(u32::MAX),
            // A request of none ends where the first one would be sent.
            max_tokens: self.max_tokens.max(1),
            generated: self.generated,
            arrival_s,
            initial_prediction: None,
            true_length: self.true_length,
            priority: self.priority,
            ..NewRequest::default()
        }
    }
}

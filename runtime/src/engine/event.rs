//! What a caller hears back.

/// Most alternatives that can be reported beside a chosen token (OpenAI's limit).
pub const MAX_TOP_LOGPROBS: usize = 20;

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence or stop token was generated.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The caller cancelled, or dropped its handle.
    Cancelled,
    /// The engine stopped before the answer was complete.
    Shutdown,
}

impl FinishReason {
    /// The name used in JSON (`stop`, `length`, `cancelled`, `shutdown`).
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
            FinishReason::Shutdown => "shutdown",
        }
    }
}

/// One generated token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenEvent {
    /// The token.
    pub id: u32,
    /// Natural-log probability of the token under the model (before temperature and truncation).
    pub logprob: f32,
    /// The most likely tokens and their log-probabilities, best first; the first `num_top` are valid.
    pub top: [(u32, f32); MAX_TOP_LOGPROBS],
    /// Valid entries of `top`.
    pub num_top: u8,
}

/// What happens to a request, in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A token was generated. A stop or end-of-sequence token is reported too, before `Finished`.
    Token(TokenEvent),
    /// A new prediction: expected tokens still to come after `generated` tokens.
    Prediction {
        /// Tokens generated when the activation was tapped.
        generated: u32,
        /// Expected remaining tokens.
        remaining: f32,
    },
    /// The request lost its place; it keeps its tokens and will go on.
    Preempted {
        /// Whether its KV blocks were freed, so that they must be recomputed.
        evicted: bool,
    },
    /// The last event.
    Finished {
        /// Why.
        reason: FinishReason,
    },
}

//! What a caller hears back.

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
    /// The engine broke down before the answer was complete: [`crate::engine::Engine::fault`] says why.
    Failed,
}

impl FinishReason {
    /// The name used in JSON (`stop`, `length`, `cancelled`, `shutdown`, `failed`).
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
            FinishReason::Shutdown => "shutdown",
            FinishReason::Failed => "failed",
        }
    }
}

/// What happens to a request, in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// One of the most likely tokens at the next position, where asked for: they come best first,
    /// before the [`Event::Token`] that was chosen there.
    Alternative {
        /// The token.
        id: u32,
        /// Natural-log probability under the model (before penalties, temperature and truncation).
        logprob: f32,
    },
    /// A token was generated. A stop or end-of-sequence token is reported too, before `Finished`.
    Token {
        /// The token.
        id: u32,
        /// Natural-log probability under the model (before penalties, temperature and truncation).
        logprob: f32,
    },
    /// A new prediction from the probe.
    Prediction {
        /// Tokens generated when the activation was tapped; 0 for the prompt.
        generated: u32,
        /// Expected tokens still to come at that point.
        remaining: f32,
    },
    /// The request lost its place in the batch; it keeps its tokens and will go on.
    Preempted {
        /// Whether its KV blocks were freed, so that they must be computed again.
        evicted: bool,
    },
    /// The last event.
    Finished {
        /// Why.
        reason: FinishReason,
    },
}

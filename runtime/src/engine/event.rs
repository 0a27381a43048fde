//! Events of a request, as its caller receives them.

/// Reason for the end of an answer.
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
    /// The engine broke down before the answer was complete; [`crate::engine::Engine::fault`] is
    /// the cause.
    Failed,
    /// The logits of a step were not finite, so that no token could be sampled: a fault of this
    /// request alone. [`super::NonFiniteLogits`] is the message.
    Error,
    /// The request's constraint went beyond its limits, or allowed no token.
    Constraint,
    /// Given up before it started, as the engine was full and all others ranked before it
    /// ([`super::WhenFull::Shed`]).
    Overloaded,
}

impl FinishReason {
    /// The name used in JSON (`stop`, `length`, `cancelled`, `shutdown`, `failed`, `error`,
    /// `constraint`, `overloaded`).
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
            FinishReason::Shutdown => "shutdown",
            FinishReason::Failed => "failed",
            FinishReason::Error => "error",
            FinishReason::Constraint => "constraint",
            FinishReason::Overloaded => "overloaded",
        }
    }
}

/// An event of a request. Events arrive in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A token of the prompt, if requested: each but the first, in order, before the answer.
    PromptToken {
        /// Token id.
        id: u32,
        /// Natural-log probability under the model, after the tokens before it.
        logprob: f32,
        /// Rank among all tokens: 1 for the most likely one.
        rank: u32,
    },
    /// One of the most likely tokens at the next position, if requested: best first, before the
    /// [`Event::Token`] that was sampled there, or the [`Event::PromptToken`].
    Alternative {
        /// Token id.
        id: u32,
        /// Natural-log probability under the model (before penalties, temperature and truncation).
        logprob: f32,
    },
    /// A token was generated. A stop or end-of-sequence token is reported too, before `Finished`.
    Token {
        /// Token id.
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
    /// Preempted. Generated tokens are kept; the request resumes later.
    Preempted {
        /// True if its KV blocks were freed, so that its KV must be recomputed.
        evicted: bool,
        /// Number of preemptions that this event reports. The first one after a token is reported
        /// at once, further ones together, with the next token.
        times: u32,
    },
    /// The last event.
    Finished {
        /// Reason for the end.
        reason: FinishReason,
    },
}

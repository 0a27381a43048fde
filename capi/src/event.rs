//! Events of a request.

use std::ffi::c_char;

use trail_runtime::engine::{Event, FinishReason};

/// Kind of an event.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrailEventKind {
    /// None came in time.
    None = 0,
    /// A token: `token`, `logprob` and `text`.
    Token = 1,
    /// A prediction: `generated` and `remaining`.
    Prediction = 2,
    /// Another request has its place for now; it goes on later.
    Preempted = 3,
    /// The end: `reason`, and `text` that was held back. No event comes after it.
    Finished = 4,
}

/// Reason for the end of an answer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrailFinishReason {
    /// It has not ended.
    None = 0,
    /// An end-of-sequence token, a stop token or a stop string came.
    Stop = 1,
    /// It has `max_tokens`.
    Length = 2,
    /// It was cancelled.
    Cancelled = 3,
    /// The engine stopped.
    Shutdown = 4,
    /// The engine broke down, or no token could be sampled.
    Failed = 5,
    /// It was given up, as the engine was full.
    Overloaded = 6,
}

/// An event of a request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TrailEvent {
    /// Its kind, which says what of the others counts.
    pub kind: TrailEventKind,
    /// Reason of the end.
    pub reason: TrailFinishReason,
    /// Token id.
    pub token: u32,
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
    /// Tokens that there were when the prediction was made.
    pub generated: u32,
    /// Tokens expected to come after these.
    pub remaining: f32,
    /// Text that is now certain: UTF-8 that ends in a zero byte, often empty, and never NULL. It is
    /// valid until the next poll of its request.
    pub text: *const c_char,
    /// Bytes of the text, without the zero byte at its end.
    pub text_len: usize,
}

impl TrailEvent {
    /// `event` with a text.
    pub(crate) fn new(event: Option<Event>, text: &[u8]) -> TrailEvent {
        debug_assert_eq!(text.last(), Some(&0), "the end of a text of C");
        let none = TrailEvent {
            kind: TrailEventKind::None,
            reason: TrailFinishReason::None,
            token: 0,
            logprob: 0.0,
            generated: 0,
            remaining: 0.0,
            text: text.as_ptr().cast(),
            text_len: text.len() - 1,
        };
        match event {
            Some(Event::Token { id, logprob }) => {
                TrailEvent { kind: TrailEventKind::Token, token: id, logprob, ..none }
            }
            Some(Event::Prediction { generated, remaining }) => {
                TrailEvent { kind: TrailEventKind::Prediction, generated, remaining, ..none }
            }
            Some(Event::Preempted { .. }) => TrailEvent { kind: TrailEventKind::Preempted, ..none },
            Some(Event::Finished { reason }) => {
                TrailEvent { kind: TrailEventKind::Finished, reason: reason.into(), ..none }
            }
            // Not asked for.
            Some(Event::PromptToken { .. } | Event::Alternative { .. }) | None => none,
        }
    }
}

impl From<FinishReason> for TrailFinishReason {
    fn from(reason: FinishReason) -> TrailFinishReason {
        match reason {
            FinishReason::Stop => TrailFinishReason::Stop,
            FinishReason::Length => TrailFinishReason::Length,
            FinishReason::Cancelled => TrailFinishReason::Cancelled,
            FinishReason::Shutdown => TrailFinishReason::Shutdown,
            FinishReason::Overloaded => TrailFinishReason::Overloaded,
            FinishReason::Failed | FinishReason::Error | FinishReason::Constraint => {
                TrailFinishReason::Failed
            }
        }
    }
}

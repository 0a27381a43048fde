//! The engine: takes requests, schedules, runs the model, samples, sends tokens.

mod event;
mod request;
mod sampling;

pub use event::{Event, FinishReason, MAX_TOP_LOGPROBS, TokenEvent};
pub use request::{Request, SamplingParams};
pub use sampling::{History, Sampler, validate as validate_sampling};

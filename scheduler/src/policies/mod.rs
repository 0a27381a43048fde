//! The policies, one per file, with source and defaults. Notes in the files: (paper) is printed in
//! the paper, (code) was read in published code, (own) is this project's choice where both are
//! silent.

mod bounded;
mod classification;
mod express;
mod fcfs;
mod gittins;
mod isrtf;
mod kind;
mod kind_text;
mod ltr;
mod mlfq;
mod oracle;
mod po;
mod ranking;
mod recent;
mod rr;
mod rr_sjf;
mod sjf;
mod tail_bound;
#[cfg(test)]
mod testing;
mod trail;
mod trail_auto;
mod trail_bert;

pub use classification::Classification;
pub use fcfs::Fcfs;
pub use gittins::Gittins;
pub use isrtf::Isrtf;
pub use kind::{Needs, PolicyKind};
pub use ltr::Ltr;
pub use mlfq::{MAX_LEVELS, Mlfq};
pub use oracle::Oracle;
pub use po::Po;
pub use ranking::Ranking;
pub use rr::Rr;
pub use rr_sjf::RrSjf;
pub use sjf::Sjf;
pub use trail::{DEFAULT_C, InitialLength, Trail};
pub use trail_auto::TrailAuto;
pub use trail_bert::TrailBert;

use crate::request::RequestState;

/// Output tokens assumed for a request without a prediction.
///
/// In the middle on purpose, near the mean of the Alpaca trace under a cap of 512 (265). At 0, each
/// arrival would be prefilled at once to learn its length and the cache would fill with paused KV;
/// at infinity, it would never be prefilled and hence never be predicted.
pub const UNKNOWN_LENGTH_TOKENS: f32 = 256.0;

/// True if the request has generated floor(c r) output tokens, during which it may be preempted
/// (TRAIL, section 3.3).
///
/// In f32 on purpose: there 0.7 * 10 is 7, as the reader expects, where f64 arithmetic on the
/// widened 0.7 gives 6.99... Compared without rounding: generated >= floor(x) if generated + 1 > x.
fn is_past(c: f32, length: f32, request: &RequestState) -> bool {
    request.generated as f32 + 1.0 > c * length
}

/// r if known, else [`UNKNOWN_LENGTH_TOKENS`]; at most `max_tokens`.
fn expected_length(request: &RequestState) -> f32 {
    request.first_prediction.unwrap_or(UNKNOWN_LENGTH_TOKENS).min(request.max_tokens as f32)
}

/// Tokens left of r, at least one: the expectation of a request that nothing refines.
fn left_of_first(request: &RequestState) -> f32 {
    (expected_length(request) - request.generated as f32).max(1.0)
}

#[cfg(test)]
pub(crate) fn request(seq: u64, initial_prediction: Option<f32>) -> RequestState {
    let new = crate::NewRequest {
        id: crate::RequestId(seq),
        prompt_tokens: 8,
        max_tokens: 512,
        arrival_s: seq as f64,
        initial_prediction,
        true_length: Some(100),
        ..crate::NewRequest::default()
    };
    RequestState::new(crate::RequestIdx(seq as u32), 0, seq, &new)
}

//! Shortest remaining processing time with the true lengths: the bound for every predictor.

use super::window;
use crate::{Key, Policy, RequestState};

/// SRPT. A request whose true length is not known counts with its `max_tokens`.
///
/// Source: the oracle columns of TRAIL's evaluation; Schrage 1968 for its optimality.
#[derive(Clone, Copy, Debug, Default)]
pub struct Oracle {
    /// None: preemptable to the last token. Some(c): only during the first floor(c length) tokens,
    /// like for like with [`super::Trail`].
    pub c: Option<f32>,
}

fn true_length(request: &RequestState) -> u32 {
    request.true_length.unwrap_or(request.max_tokens).min(request.max_tokens)
}

impl Policy for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn key(&self, request: &RequestState) -> Key {
        if request.started && !self.preemptable(request) {
            return Key::pinned(request);
        }
        let remaining = true_length(request).saturating_sub(request.generated);
        Key::new(Key::OPEN, remaining as f32, request.seq)
    }

    fn preemptable(&self, request: &RequestState) -> bool {
        self.c.is_none_or(|c| request.generated < window(c, true_length(request) as f32))
    }
}

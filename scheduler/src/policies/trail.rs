//! Shortest predicted remaining processing time with limited preemption.

use super::{UNKNOWN_LENGTH_TOKENS, expected_length, window};
use crate::{Key, Policy, RequestState};

/// TRAIL: a request may be preempted only during its first floor(c r) output tokens.
///
/// * r is the first prediction, fixed for life; age is tokens generated since arrival, which
///   neither preemption nor recomputation resets.
/// * Past its window a request is pinned: first in the order while resident, next if memory
///   pressure took its KV.
/// * All others are ranked by predicted remaining tokens (r before anything was generated), ties
///   by arrival.
///
/// A request that was never in a plan is not past its window even where floor(c r) is 0: it has
/// nothing to protect. So c = 0 ranks the queue by r and never preempts what started; c = 1 is
/// SPRPT.
///
/// Source: TRAIL (arXiv 2410.01035), section 3.3. The paper counts floor(c r) preemptable
/// iterations, as here; both published code bases test `generated > c r`, one iteration more.
#[derive(Clone, Copy, Debug)]
pub struct Trail {
    /// Share of r during which preemption is allowed, in [0, 1].
    pub c: f32,
}

impl Default for Trail {
    /// c = 0.8, the paper's choice.
    fn default() -> Self {
        Trail { c: 0.8 }
    }
}

impl Policy for Trail {
    fn name(&self) -> &'static str {
        "trail"
    }

    fn key(&self, request: &RequestState) -> Key {
        if request.started && !self.preemptable(request) {
            return Key::pinned(request);
        }
        let remaining = request.remaining().unwrap_or(UNKNOWN_LENGTH_TOKENS);
        Key::new(Key::OPEN, remaining, request.seq)
    }

    fn preemptable(&self, request: &RequestState) -> bool {
        request.generated < window(self.c, expected_length(request))
    }
}

//! Shortest predicted remaining processing time with limited preemption.

use super::{UNKNOWN_LENGTH_TOKENS, expected_length, window};
use crate::{Key, Policy, RequestState};

/// TRAIL: a request may be preempted only during its first floor(c r) output tokens.
///
/// * r is the first prediction, fixed for life. The paper takes the midpoint of the most probable
///   bin; the engine submits the expectation over the bins, as the released code does. Age is the
///   number of tokens generated since arrival, which neither preemption nor recomputation resets.
/// * Past its window a request is pinned: first in the order while resident, next if memory
///   pressure took its KV.
/// * All others are ranked by predicted remaining tokens (r before anything was generated), ties
///   by arrival.
///
/// A request that was never in a plan is not past its window even where floor(c r) is 0: it has no
/// KV to protect. So c = 0 ranks the queue by r and never preempts what started; c = 1 is
/// SPRPT.
///
/// Source: TRAIL (arXiv 2410.01035), section 3.3. The paper counts floor(c r) preemptable
/// iterations, as here; both published code bases test `generated > c r`, one iteration more.
#[derive(Clone, Copy, Debug, PartialEq)]
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
        Key::new(Key::OPEN, f64::from(remaining), request.seq)
    }

    fn preemptable(&self, request: &RequestState) -> bool {
        request.generated < window(self.c, expected_length(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Phase;
    use crate::policies::request;

    /// A running request that has generated `generated` tokens, with first prediction `r`.
    fn running(seq: u64, r: f32, generated: u32) -> RequestState {
        let mut request = request(seq, Some(r));
        (request.phase, request.started) = (Phase::Running, true);
        for step in 0..generated as u64 {
            request.advance(step, 1, true);
        }
        request
    }

    #[test]
    fn preemptable_for_the_first_floor_c_r_tokens() {
        // (c, r, floor(c r))
        for (c, r, window) in
            [(0.8, 10.0, 8), (0.8, 11.0, 8), (0.7, 10.0, 7), (1.0, 5.0, 5), (0.5, 1.9, 0)]
        {
            let trail = Trail { c };
            for generated in 0..12 {
                let preemptable = trail.preemptable(&running(0, r, generated));
                assert_eq!(preemptable, generated < window, "c {c} r {r} generated {generated}");
            }
        }
    }

    #[test]
    fn c_0_pins_what_started_and_only_that() {
        let trail = Trail { c: 0.0 };
        let waiting = request(0, Some(7.0));
        assert_eq!(trail.key(&waiting).class(), Key::OPEN);
        for generated in 0..3 {
            assert_eq!(trail.key(&running(1, 100.0, generated)).class(), Key::PINNED);
        }
    }

    #[test]
    fn c_1_ranks_by_remaining_until_r_is_used_up() {
        let trail = Trail { c: 1.0 };
        let nearly_done = running(9, 100.0, 95);
        let short = request(8, Some(6.0));
        assert!(trail.key(&nearly_done) < trail.key(&short));
        assert_eq!(trail.key(&running(1, 100.0, 99)).class(), Key::OPEN);
        assert_eq!(trail.key(&running(1, 100.0, 100)).class(), Key::PINNED);
    }

    #[test]
    fn past_the_window_is_never_last_in_line() {
        let trail = Trail::default();
        let pinned = running(5, 10.0, 9);
        let mut evicted = running(4, 10.0, 9);
        evicted.phase = Phase::Waiting;
        let best_of_the_rest = request(0, Some(1.0));
        let keys = [pinned, evicted, best_of_the_rest].map(|request| trail.key(&request));
        assert!(keys.is_sorted(), "{keys:?}");
        assert_eq!(keys.map(Key::class), [Key::PINNED, Key::EVICTED, Key::OPEN]);
    }
}

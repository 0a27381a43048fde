//! Options of a rank by expected remaining length: what a value is made of, and what bounds it.

#[cfg(feature = "log")]
use serde::{Deserialize, Serialize};

use crate::request::{Phase, RequestState};

/// Options of [`super::Trail`] beyond the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "log", derive(Serialize, Deserialize), serde(deny_unknown_fields))]
pub struct Ranking {
    /// Burn-in: output tokens before which a request that entered the batch leaves it only for
    /// want of blocks. The first estimates of the probe are its worst. 0: off.
    pub min_run_tokens: u32,
    /// Share of the longest recent wait under first come, first served: a request that is in the
    /// system for longer is overdue (see `tail_bound`). 0: off.
    pub tail_bound: f32,
    /// Share of the mean expected service, below which a request precedes those that are overdue
    /// (see `tail_bound`). 0: none does.
    pub express: f32,
    /// Cost of computing one prompt token, in output tokens: added to the rank for each token that
    /// has no KV, so that requests are ranked by service. 0: by output alone.
    pub prefill_weight: f32,
    /// Share that the first prediction, counted down, has in the rank beside the refined one: what
    /// is known of the prompt and not from the activation. In [0, 1].
    #[cfg_attr(feature = "log", serde(default))]
    pub initial_share: f32,
}

impl Ranking {
    /// TRAIL to the letter: no option.
    pub const PAPER: Ranking = Ranking {
        min_run_tokens: 0,
        tail_bound: 0.0,
        express: 0.0,
        prefill_weight: 0.0,
        initial_share: 0.0,
    };

    /// The options that paid in the simulator and in the engine (docs/results.md).
    pub const DEFAULT: Ranking = Ranking {
        min_run_tokens: 24,
        tail_bound: 1.05,
        express: 0.5,
        prefill_weight: 0.2,
        initial_share: 0.0,
    };

    /// The value of a rank: `tokens` expected, and the cost of what has no KV.
    pub(super) fn value(&self, request: &RequestState, tokens: f32) -> f64 {
        f64::from(tokens + self.prefill_weight * uncached(request) as f32)
    }

    /// True for a running request within its burn-in.
    pub(super) fn burns_in(&self, request: &RequestState) -> bool {
        request.phase == Phase::Running && request.slice_tokens < self.min_run_tokens
    }
}

impl Default for Ranking {
    fn default() -> Self {
        Ranking::DEFAULT
    }
}

/// Tokens to compute before the next decode: without KV on the device or the host, and not in the
/// prefix cache.
pub(super) fn uncached(request: &RequestState) -> u32 {
    let uncomputed = request.uncomputed().saturating_sub(1);
    if request.computed == 0 {
        uncomputed.saturating_sub(request.cached_tokens)
    } else {
        uncomputed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::request;

    #[test]
    fn what_has_no_kv_costs_its_prefill() {
        let ranking = Ranking { prefill_weight: 0.5, ..Ranking::PAPER };
        let mut request = request(0, None); // a prompt of 8 tokens
        assert_eq!(ranking.value(&request, 10.0), 10.0 + 0.5 * 7.0);
        request.cached_tokens = 4;
        assert_eq!(ranking.value(&request, 10.0), 10.0 + 0.5 * 3.0);
        (request.computed, request.generated) = (8, 1);
        assert_eq!(ranking.value(&request, 10.0), 10.0);
        (request.computed, request.generated) = (0, 20); // evicted
        assert_eq!(ranking.value(&request, 10.0), 10.0 + 0.5 * 23.0);
    }

    #[test]
    fn a_burn_in_begins_with_each_entry() {
        let ranking = Ranking { min_run_tokens: 8, ..Ranking::PAPER };
        let mut request = request(0, None);
        (request.phase, request.slice_tokens) = (Phase::Running, 7);
        assert!(ranking.burns_in(&request));
        request.slice_tokens = 8;
        assert!(!ranking.burns_in(&request));
        (request.phase, request.slice_tokens) = (Phase::Paused, 0);
        assert!(!ranking.burns_in(&request));
    }
}

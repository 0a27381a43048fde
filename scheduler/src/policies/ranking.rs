//! Options of a rank by expected remaining length: what a value is made of, and what bounds it.

use serde::{Deserialize, Serialize};

use crate::request::{Phase, RequestState};

/// Options of [`super::Trail`] beyond the paper.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ranking {
    /// Burn-in: output tokens before which a request that entered the batch leaves it only for
    /// want of blocks. The first estimates of the probe are its worst. 0: off.
    pub min_run_tokens: u32,
    /// Ratio of two neighbouring ranks: expected tokens are rounded down to a power of it, so that
    /// estimates which differ by less than their error are ordered by arrival. At most 1: off.
    pub rank_step: f32,
    /// Share of the time that first come, first served would let a request wait (see
    /// `tail_bound`): a request that would end later is overdue. 0: off.
    pub tail_bound: f32,
    /// Share of the mean expected service, below which a request precedes those that are overdue
    /// (see `tail_bound`). 0: none does.
    pub express: f32,
    /// Length that the preemption window is a share of.
    pub window: WindowLength,
    /// Cost of computing one prompt token, in output tokens: added to the rank for each token that
    /// has no KV. 0: off.
    pub prefill_weight: f32,
    /// Tokens by which a later second of arrival worsens the rank. 0: off.
    pub ageing: f32,
    /// Preemptions after which a request may not be preempted again. 0: no limit.
    pub max_preemptions: u32,
    /// Share of its rank by which a running request precedes an equal one outside the batch, in
    /// [0, 1). 0: off.
    pub margin: f32,
}

/// Length that the preemption window is a share of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowLength {
    /// The first prediction r, fixed for life (TRAIL, section 3.3).
    #[default]
    First,
    /// The larger of r and the tokens generated plus those expected now: an answer that turns out
    /// longer than the last bin of the probe stays preemptable.
    Refined,
}

impl Ranking {
    /// TRAIL to the letter: no option.
    pub const PAPER: Ranking = Ranking {
        min_run_tokens: 0,
        rank_step: 0.0,
        tail_bound: 0.0,
        express: 0.0,
        window: WindowLength::First,
        prefill_weight: 0.0,
        ageing: 0.0,
        max_preemptions: 0,
        margin: 0.0,
    };

    /// The options that paid in the simulator and in the engine. A rank step did not: the raw
    /// estimates near the end of the last bin also say how sure the probe is (docs/results.md).
    pub const DEFAULT: Ranking =
        Ranking { min_run_tokens: 24, tail_bound: 1.0, express: 0.5, ..Ranking::PAPER };

    /// The value of a rank: `tokens` expected, the cost of what has no KV, and the options that
    /// shift both.
    pub(super) fn value(&self, request: &RequestState, tokens: f32) -> f64 {
        let mut service = tokens + self.prefill_weight * uncached(request) as f32;
        if self.rank_step > 1.0 {
            let step = self.rank_step.log2();
            service = (step * (service.max(1.0).log2() / step).floor()).exp2();
        }
        if request.phase == Phase::Running {
            service *= 1.0 - self.margin;
        }
        f64::from(service) + f64::from(self.ageing) * request.arrival_s
    }

    /// True for a running request within its burn-in.
    pub(super) fn burns_in(&self, request: &RequestState) -> bool {
        request.phase == Phase::Running && request.slice_tokens < self.min_run_tokens
    }

    /// True for a request that was preempted as often as allowed.
    pub(super) fn is_exhausted(&self, request: &RequestState) -> bool {
        self.max_preemptions > 0 && request.preemptions >= self.max_preemptions
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
    fn ranks_are_powers_of_the_step() {
        let ranking = Ranking { rank_step: 2.0, ..Ranking::PAPER };
        let request = request(0, None);
        let values = [0.5, 1.0, 1.9, 2.0, 3.9, 4.0, 500.0];
        let values = values.map(|tokens| ranking.value(&request, tokens));
        assert_eq!(values, [1.0, 1.0, 1.0, 2.0, 2.0, 4.0, 256.0]);
        assert_eq!(Ranking::PAPER.value(&request, 3.9), f64::from(3.9_f32));
    }

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
    fn age_and_margin_shift_a_rank() {
        let ranking = Ranking { ageing: 2.0, margin: 0.25, ..Ranking::PAPER };
        let mut request = request(7, None); // arrived at 7 s
        assert_eq!(ranking.value(&request, 8.0), 8.0 + 14.0);
        request.phase = Phase::Running;
        assert_eq!(ranking.value(&request, 8.0), 6.0 + 14.0);
    }

    #[test]
    fn a_burn_in_begins_with_each_entry() {
        let ranking = Ranking { min_run_tokens: 8, max_preemptions: 2, ..Ranking::PAPER };
        let mut request = request(0, None);
        (request.phase, request.slice_tokens) = (Phase::Running, 7);
        assert!(ranking.burns_in(&request));
        request.slice_tokens = 8;
        assert!(!ranking.burns_in(&request));
        (request.phase, request.slice_tokens) = (Phase::Paused, 0);
        assert!(!ranking.burns_in(&request) && !ranking.is_exhausted(&request));
        request.preemptions = 2;
        assert!(ranking.is_exhausted(&request));
    }
}

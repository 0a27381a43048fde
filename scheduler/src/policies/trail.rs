//! Shortest predicted remaining processing time with limited preemption.

use super::bounded::{Bounded, Expects};
use super::ranking::Ranking;
use super::{UNKNOWN_LENGTH_TOKENS, expected_length, left_of_first};
use crate::{Key, Policy, RequestState};

/// TRAIL's default share of the first prediction during which a request can be preempted.
pub const DEFAULT_C: f32 = 0.8;

/// TRAIL: a request may be preempted only during its first floor(c r) output tokens.
///
/// * r is the first prediction, fixed for life. Age is the number of tokens generated since
///   arrival, which neither preemption nor recomputation resets.
/// * Past its window a request is pinned: first in the order while resident, next if memory
///   pressure took its KV.
/// * All others are ranked by predicted remaining tokens (r before anything was generated), ties
///   by arrival.
///
/// A request that was never in a plan is not past its window even where floor(c r) is 0: it has no
/// KV to protect. So c = 0 ranks the queue by r and never preempts what started; c = 1 is
/// SPRPT. [`Ranking`] has the options beyond the paper; [`Trail::PAPER`] has none.
///
/// Source: TRAIL (arXiv 2410.01035), section 3.3. The paper counts floor(c r) preemptable
/// iterations, as here; both published code bases test `generated > c r`, one iteration more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trail {
    /// Share of r during which preemption is allowed, in [0, 1].
    pub c: f32,
    /// Point of the prompt-only predictor's distribution that is r.
    pub r: InitialLength,
    /// Options beyond the paper.
    pub ranking: Ranking,
}

/// Point of the prompt-only predictor's distribution of the output length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "log",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum InitialLength {
    /// Midpoint of the likeliest bin, as in the paper (section 3.3).
    Likeliest,
    /// Expectation over the bins, as in the released code.
    #[default]
    Mean,
    /// The point with the least mean absolute error when it is counted down over the answer.
    CountdownOptimal,
}

impl Trail {
    /// c = 0.8 and the likeliest bin, the paper's choices; no options.
    pub const PAPER: Trail = Trail { c: 0.8, r: InitialLength::Likeliest, ranking: Ranking::PAPER };

    /// TRAIL to the letter, with another share c.
    pub fn paper(c: f32) -> Trail {
        Trail { c, ..Trail::PAPER }
    }

    /// The policy, for [`crate::Scheduler::new`].
    pub fn policy(self) -> impl Policy + use<> {
        TrailPolicy::bounded("trail", self, Variant::Trail)
    }
}

impl Default for Trail {
    /// c = 0.8, the paper's choice.
    fn default() -> Self {
        Trail { c: 0.8, r: InitialLength::default(), ranking: Ranking::DEFAULT }
    }
}

/// Difference between `trail`, `trail-auto` and `gittins`.
pub(super) enum Variant {
    Trail,
    /// Per index: true once the request is past its window. `pressure`: share of the cache above
    /// [`super::trail_auto::FREE_SHARE`] that is in use.
    Auto {
        is_past: Vec<bool>,
        pressure: f32,
    },
    Gittins,
}

/// TRAIL with its state, without the tail bound. `trail-auto` and `gittins` are variants: they
/// share window and options.
pub(super) struct TrailPolicy {
    name: &'static str,
    config: Trail,
    variant: Variant,
}

impl TrailPolicy {
    pub(super) fn bounded(name: &'static str, config: Trail, variant: Variant) -> Bounded<Self> {
        Bounded::new(TrailPolicy { name, config, variant })
    }

    fn is_past_window(&self, request: &RequestState) -> bool {
        if let Variant::Auto { is_past, .. } = &self.variant {
            return is_past[request.idx.index()];
        }
        super::is_past(self.config.c, expected_length(request), request)
    }

    /// Expected remaining output tokens in a rank.
    fn ranked(&self, request: &RequestState) -> f32 {
        let (refined, share) = (remaining(request), self.config.ranking.initial_share);
        refined + share * (left_of_first(request) - refined)
    }
}

/// Expected remaining output tokens.
pub(super) fn remaining(request: &RequestState) -> f32 {
    request.remaining().unwrap_or(UNKNOWN_LENGTH_TOKENS)
}

impl Expects for TrailPolicy {
    const IS_REFINED: bool = true;

    fn remaining(&self, request: &RequestState) -> f32 {
        remaining(request)
    }

    fn ranking(&self) -> &Ranking {
        &self.config.ranking
    }
}

impl Policy for TrailPolicy {
    fn name(&self) -> &'static str {
        self.name
    }

    #[inline]
    fn key(&self, request: &RequestState) -> Key {
        if request.started && !self.preemptable(request) {
            return Key::pinned(request);
        }
        let tokens = match self.variant {
            Variant::Gittins => super::gittins::rank(request),
            _ => self.ranked(request),
        };
        Key::new(Key::OPEN, self.config.ranking.value(request, tokens), request.seq)
    }

    #[inline]
    fn preemptable(&self, request: &RequestState) -> bool {
        !(self.is_past_window(request) || self.config.ranking.burns_in(request))
    }

    fn reserve(&mut self, max_requests: u32) {
        if let Variant::Auto { is_past, .. } = &mut self.variant {
            *is_past = vec![false; max_requests as usize];
        }
    }

    fn on_blocks(&mut self, used: u32, num_blocks: u32) {
        if let Variant::Auto { pressure, .. } = &mut self.variant {
            *pressure = super::trail_auto::pressure(used, num_blocks);
        }
    }

    fn on_submitted(&mut self, request: &RequestState) {
        if let Variant::Auto { is_past, .. } = &mut self.variant {
            is_past[request.idx.index()] = false;
        }
    }

    #[inline]
    fn on_tokens(&mut self, request: &RequestState, _generated: u32) {
        if let Variant::Auto { is_past, pressure } = &mut self.variant {
            let c = super::trail_auto::share(self.config.c, *pressure, request);
            is_past[request.idx.index()] |= super::is_past(c, expected_length(request), request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Phase;
    use crate::Prediction;
    use crate::plan::PlanRow;
    use crate::policies::request;

    fn paper(c: f32) -> Box<dyn Policy> {
        Box::new(Trail::paper(c).policy())
    }

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
            let trail = paper(c);
            for generated in 0..12 {
                let preemptable = trail.preemptable(&running(0, r, generated));
                assert_eq!(preemptable, generated < window, "c {c} r {r} generated {generated}");
            }
        }
    }

    #[test]
    fn c_0_pins_what_started_and_only_that() {
        let trail = paper(0.0);
        let waiting = request(0, Some(7.0));
        assert_eq!(trail.key(&waiting).class(), Key::OPEN);
        for generated in 0..3 {
            assert_eq!(trail.key(&running(1, 100.0, generated)).class(), Key::PINNED);
        }
    }

    #[test]
    fn c_1_ranks_by_remaining_until_r_is_used_up() {
        let trail = paper(1.0);
        let nearly_done = running(9, 100.0, 95);
        let short = request(8, Some(6.0));
        assert!(trail.key(&nearly_done) < trail.key(&short));
        assert_eq!(trail.key(&running(1, 100.0, 99)).class(), Key::OPEN);
        assert_eq!(trail.key(&running(1, 100.0, 100)).class(), Key::PINNED);
    }

    /// r counted down and the refined expectation, weighted; before a refined one, r alone.
    #[test]
    fn the_first_prediction_has_its_share_of_a_rank() {
        let ranking = Ranking { initial_share: 0.25, ..Ranking::PAPER };
        let trail = Trail { c: 1.0, ranking, ..Trail::PAPER }.policy();
        let is_ranked = |request: &RequestState, value: f64| {
            assert_eq!(trail.key(request), Key::new(Key::OPEN, value, request.seq));
        };
        is_ranked(&request(0, Some(60.0)), 60.0);
        let refined = |generated: u32, remaining: f32| {
            let mut request = running(1, 60.0, generated);
            let [p10, p50, p90] = [0.0; 3];
            let (step, generation) = (u64::from(generated), request.generation);
            let read = Prediction { remaining, p10, p50, p90, step, generation };
            assert!(request.predict(&read, 1));
            request
        };
        is_ranked(&refined(20, 80.0), 0.75 * 80.0 + 0.25 * 40.0);
        is_ranked(&refined(59, 9.0), 0.75 * 9.0 + 0.25);
    }

    /// 215 expected tokens less 10 that are served, at one a second: the wait is 205 s, and the
    /// bound 1.05 of it, 215.25 s.
    #[test]
    fn the_order_is_express_overdue_open_and_overdue_express_come_first() {
        let mut trail = Trail::default().policy();
        trail.reserve(8);
        let lengths = [100.0, 10.0, 5.0, 100.0];
        let requests: Vec<RequestState> =
            (0..).zip(lengths).map(|(seq, r)| request(seq, Some(r))).collect();
        requests.iter().for_each(|request| trail.on_submitted(request));
        trail.on_step(0, 0.0);
        let row = PlanRow { idx: requests[0].idx, start: 8, len: 1, sample: true };
        trail.on_scheduled(&requests[0], row);
        trail.on_tokens(&requests[0], 10);
        let mut overdue = Vec::new();
        for (step, now_s) in [(1, 1.0), (2, 216.75)] {
            trail.on_step(step, now_s);
            overdue.extend(std::iter::from_fn(|| trail.next_changed()).map(|idx| idx.0));
        }
        assert_eq!(overdue, [0, 1], "they arrived at 0 and 1 s");
        let mut order: Vec<&RequestState> = requests.iter().collect();
        order.sort_by_key(|request| trail.key(request));
        let classes = order.iter().map(|request| (request.seq, trail.key(request).class()));
        let expected = [(1, Key::EXPRESS), (2, Key::EXPRESS), (0, Key::OVERDUE), (3, Key::OPEN)];
        assert_eq!(classes.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn past_the_window_is_never_last_in_line() {
        let trail = paper(0.8);
        let pinned = running(5, 10.0, 9);
        let mut evicted = running(4, 10.0, 9);
        evicted.phase = Phase::Waiting;
        let best_of_the_rest = request(0, Some(1.0));
        let keys = [pinned, evicted, best_of_the_rest].map(|request| trail.key(&request));
        assert!(keys.is_sorted(), "{keys:?}");
        assert_eq!(keys.map(Key::class), [Key::PINNED, Key::EVICTED, Key::OPEN]);
    }
}

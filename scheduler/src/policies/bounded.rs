//! A policy that ranks by an expectation, under the bound on the time in the system.

use super::ranking::{Ranking, uncached};
use super::tail_bound::{TailBound, Work};
use crate::plan::PlanRow;
use crate::{Key, Policy, RequestIdx, RequestState};

/// A policy that expects a remaining length of each request.
pub(super) trait Expects: Policy {
    /// True if predictions refine the expectation while a request runs.
    const IS_REFINED: bool;

    /// Expected remaining output tokens.
    fn remaining(&self, request: &RequestState) -> f32;

    /// Options of the rank.
    fn ranking(&self) -> &Ranking;
}

/// `policy`, whose requests of class [`Key::OPEN`] the tail bound may put before others.
pub(super) struct Bounded<P> {
    policy: P,
    tail_bound: Option<TailBound>,
}

impl<P: Expects> Bounded<P> {
    pub(super) fn new(policy: P) -> Bounded<P> {
        Bounded { policy, tail_bound: None }
    }

    /// Work that the request still needs.
    fn work(&self, request: &RequestState) -> Work {
        let output = f64::from(self.policy.remaining(request));
        Work { output, prefill: f64::from(uncached(request)) }
    }

    fn expect(&mut self, request: &RequestState) {
        let work = self.work(request);
        if let Some(bound) = &mut self.tail_bound {
            bound.expect(request, work);
        }
    }

    fn expect_if_due(&mut self, request: &RequestState) {
        if self.tail_bound.as_ref().is_some_and(|bound| bound.is_due(request)) {
            self.expect(request);
        }
    }
}

impl<P: Expects> Policy for Bounded<P> {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    #[inline]
    fn key(&self, request: &RequestState) -> Key {
        let key = self.policy.key(request);
        let Some(bound) = self.tail_bound.as_ref().filter(|_| key.class() == Key::OPEN) else {
            return key;
        };
        // The overdue lead their class: first in, first out.
        match (bound.is_express(request), bound.is_overdue(request)) {
            (false, false) => key,
            (true, false) => key.in_class(Key::EXPRESS),
            (true, true) => Key::new(Key::EXPRESS, f64::NEG_INFINITY, request.seq),
            (false, true) => Key::new(Key::OVERDUE, 0.0, request.seq),
        }
    }

    #[inline]
    fn preemptable(&self, request: &RequestState) -> bool {
        self.policy.preemptable(request)
    }

    fn strict_order(&self) -> bool {
        self.policy.strict_order()
    }

    fn max_entries(&self) -> u32 {
        self.policy.max_entries()
    }

    fn reserve(&mut self, max_requests: u32) {
        let ranking = self.policy.ranking();
        self.tail_bound = (ranking.tail_bound > 0.0).then(|| TailBound::new(ranking, max_requests));
        self.policy.reserve(max_requests);
    }

    fn on_step(&mut self, step: u64, now_s: f64) {
        self.policy.on_step(step, now_s);
        if let Some(bound) = &mut self.tail_bound {
            bound.on_step(now_s);
        }
    }

    fn on_blocks(&mut self, used: u32, num_blocks: u32) {
        self.policy.on_blocks(used, num_blocks);
    }

    fn next_changed(&mut self) -> Option<RequestIdx> {
        let overdue = self.tail_bound.as_mut().and_then(TailBound::next_overdue);
        overdue.or_else(|| self.policy.next_changed())
    }

    fn overdue_after_s(&self) -> Option<f64> {
        self.tail_bound.as_ref().and_then(TailBound::after_s)
    }

    fn on_submitted(&mut self, request: &RequestState) {
        self.policy.on_submitted(request);
        let work = self.work(request);
        // Only a refined expectation tells more at the end of a burn-in than the prompt.
        let trial = if P::IS_REFINED { self.policy.ranking().min_run_tokens } else { 0 };
        if let Some(bound) = &mut self.tail_bound {
            bound.on_submitted(request, work, trial);
        }
    }

    fn on_scheduled(&mut self, request: &RequestState, row: PlanRow) {
        self.policy.on_scheduled(request, row);
        if let Some(bound) = &mut self.tail_bound {
            bound.on_scheduled(request, row);
        }
    }

    fn on_preempted(&mut self, request: &RequestState) {
        self.policy.on_preempted(request);
        self.expect(request);
    }

    fn on_predicted(&mut self, request: &RequestState) {
        self.policy.on_predicted(request);
        self.expect_if_due(request);
    }

    #[inline]
    fn on_tokens(&mut self, request: &RequestState, generated: u32) {
        self.policy.on_tokens(request, generated);
        if let Some(bound) = &mut self.tail_bound {
            bound.on_tokens(request, generated);
        }
        if !P::IS_REFINED {
            self.expect_if_due(request);
        }
    }

    fn on_finished(&mut self, request: &RequestState) {
        self.policy.on_finished(request);
        if let Some(bound) = &mut self.tail_bound {
            bound.on_finished(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::Toy;
    use crate::policies::{Po, Sjf};

    /// Seconds until a request of 60 tokens has ended, beside shorter ones that alone take all
    /// places: 0 if it has not ended after 2,000.
    fn beside_shorter_ones(policy: impl Policy + 'static) -> u64 {
        let mut toy = Toy::new(policy, 1).submit(&[5, 60]);
        for _ in 0..400 {
            toy = toy.submit(&[5]);
            (0..5).for_each(|_| drop(toy.step()));
        }
        toy.finished[1]
    }

    #[test]
    fn a_long_request_ends_under_the_bound_and_starves_without() {
        assert_eq!(beside_shorter_ones(Sjf::PAPER.policy()), 0);
        assert_eq!(beside_shorter_ones(Po::PAPER.policy()), 0);
        let ends = [
            beside_shorter_ones(Sjf::default().policy()),
            beside_shorter_ones(Po::default().policy()),
        ];
        assert!(ends.iter().all(|end| (60..400).contains(end)), "{ends:?}");
    }
}

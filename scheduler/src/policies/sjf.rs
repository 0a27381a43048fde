//! Shortest job first by the prompt-only prediction, without preemption.

use super::bounded::{Bounded, Expects};
use super::ranking::Ranking;
use super::{expected_length, left_of_first};
use crate::{Key, Policy, RequestState};

/// Running rows first, then the queue by r, shortest first. Refined predictions are not used.
///
/// [`Sjf::PAPER`] starves long requests while shorter ones keep arriving; the default has the tail
/// bound of [`super::Trail`].
///
/// Source: `SJF_BERT`, the second baseline of TRAIL section 4.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sjf {
    /// Options beyond the paper. Nothing is preempted, so `min_run_tokens` has no effect.
    pub ranking: Ranking,
}

impl Sjf {
    /// No options.
    pub const PAPER: Sjf = Sjf { ranking: Ranking::PAPER };

    /// The policy, for [`crate::Scheduler::new`].
    pub fn policy(self) -> impl Policy + use<> {
        Bounded::new(self)
    }
}

impl Expects for Sjf {
    const IS_REFINED: bool = false;

    fn remaining(&self, request: &RequestState) -> f32 {
        left_of_first(request)
    }

    fn ranking(&self) -> &Ranking {
        &self.ranking
    }
}

impl Policy for Sjf {
    fn name(&self) -> &'static str {
        "sjf"
    }

    fn key(&self, request: &RequestState) -> Key {
        if request.started {
            return Key::pinned(request);
        }
        Key::new(Key::OPEN, self.ranking.value(request, expected_length(request)), request.seq)
    }

    fn preemptable(&self, _request: &RequestState) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::request;
    use crate::{Phase, Prediction};

    #[test]
    fn the_queue_is_ordered_by_the_first_prediction_alone() {
        let mut running = request(9, Some(500.0));
        (running.phase, running.started) = (Phase::Running, true);
        let short = request(8, Some(3.0));
        let mut long = request(7, Some(30.0));
        assert!(long.predict(&Prediction { remaining: 1.0, ..Prediction::default() }, 1));
        let keys = [running, short, long].map(|request| Sjf::PAPER.key(&request));
        assert!(keys.is_sorted(), "{keys:?}");
    }

    #[test]
    fn ties_and_the_unpredicted_go_by_arrival() {
        let keys = [request(1, None), request(2, None)].map(|request| Sjf::PAPER.key(&request));
        assert!(keys.is_sorted());
    }
}

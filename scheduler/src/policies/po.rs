//! Perception only: the model states the length of its answer first.

use super::bounded::{Bounded, Expects};
use super::ranking::Ranking;
use super::{expected_length, left_of_first};
use crate::{Key, Policy, RequestState};

/// Requests that have not stated their length yet by arrival, then the others by it.
///
/// Source: "Response length perception" (Zheng et al. 2023) as a baseline of arXiv 2408.15792. The
/// model's statement takes 15 output tokens (code), during which a request is first come, first
/// served. After them it ranks by the stated total, not by what remains (code).
///
/// Deviations: the estimate is the initial prediction, and the 15 tokens are those of the answer,
/// where the published code adds 15 to each; a workload that adds them has the same cost. The code
/// puts all waiting requests among the first; here one that was evicted keeps its stated length.
/// Otherwise it would evict the one that replaced it, and so on without a token.
/// [`Po::PAPER`] starves long requests while shorter ones keep arriving; the default has the tail
/// bound of [`super::Trail`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Po {
    /// Output tokens of the statement.
    pub perception_tokens: u32,
    /// Options beyond the paper. There is no burn-in: `min_run_tokens` has no effect.
    pub ranking: Ranking,
}

impl Po {
    /// 15 tokens, as the published code; no options.
    pub const PAPER: Po = Po { perception_tokens: 15, ranking: Ranking::PAPER };

    /// The policy, for [`crate::Scheduler::new`].
    pub fn policy(self) -> impl Policy + use<> {
        Bounded::new(self)
    }
}

impl Default for Po {
    fn default() -> Self {
        Po { ranking: Ranking::DEFAULT, ..Po::PAPER }
    }
}

impl Expects for Po {
    const IS_REFINED: bool = false;

    fn remaining(&self, request: &RequestState) -> f32 {
        left_of_first(request)
    }

    fn ranking(&self) -> &Ranking {
        &self.ranking
    }
}

impl Policy for Po {
    fn name(&self) -> &'static str {
        "po"
    }

    fn key(&self, request: &RequestState) -> Key {
        let value = match request.generated < self.perception_tokens {
            true => f64::NEG_INFINITY,
            false => self.ranking.value(request, expected_length(request)),
        };
        Key::new(Key::OPEN, value, request.seq)
    }

    fn preemptable(&self, _request: &RequestState) -> bool {
        true
    }

    fn strict_order(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::request;
    use crate::policies::testing::running;

    #[test]
    fn by_arrival_until_the_length_is_stated_then_by_the_total() {
        let keys = [
            running(3, 400.0, 14),
            request(4, Some(1.0)),
            running(2, 30.0, 15),
            running(1, 40.0, 39), // one token left
        ]
        .map(|request| Po::PAPER.key(&request));
        assert!(keys.is_sorted(), "{keys:?}");
    }
}

//! Round robin over slices of output tokens.

use super::rr_sjf::Slices;
use crate::Policy;

/// Requests take turns of a slice each, in the order in which they were placed on the queue.
///
/// Source: the baseline "RR" of the RR-SJF paper (Figure 1, section 3.3): slices of 5 tokens
/// (paper). Its other details are not printed. Here it is [`super::RrSjf`] with all priorities
/// equal, so ties and victims go by arrival, and one request enters per step; that both shared an
/// implementation in the paper is inferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rr {
    /// Output tokens of a slice, at least 1.
    pub steps_before_preemption: u32,
}

impl Default for Rr {
    /// 5 tokens, as the paper's comparison.
    fn default() -> Self {
        Rr { steps_before_preemption: 5 }
    }
}

impl Rr {
    /// The policy, for [`crate::Scheduler::new`].
    ///
    /// # Panics
    ///
    /// If a slice has no token.
    pub fn policy(self) -> impl Policy + use<> {
        assert!(self.steps_before_preemption > 0, "a slice has at least a token");
        Slices::new("rr", self.steps_before_preemption, |_| 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::{Toy, run_lengths};

    #[test]
    fn slices_in_order_of_arrival_round_after_round() {
        let ran = Toy::new(Rr::default().policy(), 1).submit(&[12, 4, 9, 7]).run().ran;
        let first_round = [(0, 5), (1, 4), (2, 5), (3, 5)];
        let second_round = [(0, 5), (2, 4), (3, 2), (0, 2)];
        assert_eq!(run_lengths(&ran), [&first_round[..], &second_round].concat());
    }
}

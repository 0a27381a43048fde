//! Round robin over slices of output tokens, shortest first within a round.

use super::expected_length;
use crate::limits::MAX_CONTEXT;
use crate::{Key, Phase, Policy, RequestState};

/// Class of running requests whose slice is over: behind all that wait.
const SLICE_OVER: u8 = Key::OPEN + 1;

/// Requests wait in the order in which they were placed on the queue; ties, as in a burst, go by
/// the predicted total length.
///
/// Source: "Round-Robin Shortest Job First" (RR-SJF), Algorithm 1.
/// * In each step at most one request, the head of the queue, enters the batch (paper); slices of 5
///   tokens (paper), the best of 5 to 200.
/// * Waiting time counts from the placement on the queue (paper), so a preempted request goes to
///   the end. It is compared in steps (own): real stamps never tie, which would leave round robin.
/// * `steps_before_preemption` counts the tokens of the slice (own), as Figure 1 needs. Counted
///   since the arrival, as the text reads, a request would stay preemptable after its first slice.
/// * The victim has the worst priority (longest total) of those past their slice (own), as in
///   vLLM's priority preemption. Within a slice a request loses its place for memory alone.
/// * Deviation (own): nothing is preempted unless that makes room for the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RrSjf {
    /// Output tokens of a slice, at least 1.
    pub steps_before_preemption: u32,
}

impl Default for RrSjf {
    /// 5 tokens, the paper's choice.
    fn default() -> Self {
        RrSjf { steps_before_preemption: 5 }
    }
}

impl RrSjf {
    /// The policy, for [`crate::Scheduler::new`].
    ///
    /// # Panics
    ///
    /// If a slice has no token.
    pub fn policy(self) -> impl Policy + use<> {
        assert!(self.steps_before_preemption > 0, "a slice has at least a token");
        let priority = |request: &RequestState| expected_length(request).max(0.0);
        Slices::new("rr-sjf", self.steps_before_preemption, priority)
    }
}

/// Round robin with a priority within each round; lower goes first.
pub(super) struct Slices {
    name: &'static str,
    slice_tokens: u32,
    /// Fixed while a request waits, and less than [`MAX_CONTEXT`].
    priority: fn(&RequestState) -> f32,
    /// Plans begun.
    plans: u64,
    /// `[index]`: the plan after which, or in which, the request was placed on the queue.
    placed: Vec<u64>,
}

impl Slices {
    pub(super) fn new(
        name: &'static str,
        slice_tokens: u32,
        priority: fn(&RequestState) -> f32,
    ) -> Slices {
        Slices { name, slice_tokens, priority, plans: 0, placed: Vec::new() }
    }
}

impl Policy for Slices {
    fn name(&self) -> &'static str {
        self.name
    }

    fn key(&self, request: &RequestState) -> Key {
        let priority = f64::from((self.priority)(request));
        let placed = self.placed[request.idx.index()] as f64;
        let (class, value) = match request.phase {
            Phase::Running if !self.preemptable(request) => (Key::PINNED, priority),
            Phase::Running => (SLICE_OVER, priority),
            // One number: the priority decides among equal steps.
            _ => (Key::OPEN, placed * f64::from(MAX_CONTEXT) + priority),
        };
        Key::new(class, value, request.seq)
    }

    fn preemptable(&self, request: &RequestState) -> bool {
        request.phase != Phase::Running || request.slice_tokens >= self.slice_tokens
    }

    fn strict_order(&self) -> bool {
        true
    }

    fn max_entries(&self) -> u32 {
        1
    }

    fn reserve(&mut self, max_requests: u32) {
        self.placed = vec![0; max_requests as usize];
    }

    fn on_step(&mut self, _step: u64, _now_s: f64) {
        self.plans += 1;
    }

    fn on_submitted(&mut self, request: &RequestState) {
        self.placed[request.idx.index()] = self.plans;
    }

    fn on_preempted(&mut self, request: &RequestState) {
        self.placed[request.idx.index()] = self.plans;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::{Toy, run_lengths};

    #[test]
    fn figure_1_of_the_paper() {
        // The figure's requests 1 to 4, whose lengths order as 2, 4, 3, 1; slices of 5.
        let lengths = [12, 4, 9, 7];
        let ran = Toy::new(RrSjf::default().policy(), 1).submit(&lengths).run().ran;
        let numbers: Vec<u64> = ran.iter().map(|id| id + 1).collect();
        // Request 2 ends within its slice; the last one runs on uninterrupted.
        let first_round = [(2, 4), (4, 5), (3, 5), (1, 5)];
        let second_round = [(4, 2), (3, 4), (1, 7)];
        assert_eq!(run_lengths(&numbers), [&first_round[..], &second_round].concat());
    }

    #[test]
    fn one_request_enters_in_a_step_and_the_longest_leaves() {
        let mut toy = Toy::new(RrSjf { steps_before_preemption: 2 }.policy(), 3);
        toy = toy.submit(&[30, 40, 20]);
        assert_eq!([toy.step(), toy.step(), toy.step()], [vec![2], vec![2, 0], vec![0, 1, 2]]);
        toy = toy.submit(&[50]);
        // 2 (20 tokens) and 0 (30) are past their slices, 1 (40) is not.
        assert_eq!(toy.step(), [1, 3, 2]);
        // 0 waits since the last step; 1 is past its slice as well, and has more tokens than 2.
        assert_eq!(toy.step(), [3, 0, 2]);
    }
}

//! Learning to rank: a score from the prompt alone, and a bound on starvation.

use super::expected_length;
use crate::index_list::IndexList;
use crate::plan::PlanRow;
use crate::{Key, Policy, RequestIdx, RequestState};

/// Promoted requests first, then by score; the score is never refreshed and does not count down.
///
/// Source: "Efficient LLM scheduling by learning to rank" (arXiv 2408.15792), section 4,
/// Algorithm 1.
/// * The score is the predicted length from the prompt, shorter first (paper). (The published code
///   negates it, so that a larger score is a shorter answer (code): the order is the same.)
/// * A request that is not scheduled for `starvation_threshold` steps is promoted, and demoted
///   again when it has used up `priority_quantum` (paper). The paper prints no values: 200 and 10
///   are those of every fairness script (code), whose scheduler has the control off by default. A
///   promoted request that is not scheduled keeps counting, and its quantum is refilled (code).
/// * Deviation: the quantum counts output tokens, not steps. A prefill step that spends quantum
///   could be evicted and recomputed in a cycle, in which no request ever gets a token (`fill`).
/// * The batch ends at the first request that does not fit (code). Deviation: requests that run
///   already and rank behind it stay, as everywhere in this scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ltr {
    /// Steps without being scheduled after which a request is promoted; 0: never.
    pub starvation_threshold: u32,
    /// Output tokens after which a promoted request is demoted, at least 1.
    pub priority_quantum: u32,
}

impl Default for Ltr {
    /// 200 steps and a quantum of 10, as the authors' fairness runs.
    fn default() -> Self {
        Ltr { starvation_threshold: 200, priority_quantum: 10 }
    }
}

impl Ltr {
    /// The policy, for [`crate::Scheduler::new`].
    ///
    /// # Panics
    ///
    /// If the quantum has no token.
    pub fn policy(self) -> impl Policy + use<> {
        assert!(self.priority_quantum > 0, "a quantum has at least a token");
        LtrPolicy {
            options: self,
            plans: 0,
            idle: IndexList::default(),
            idle_since: Vec::new(),
            quantum: Vec::new(),
        }
    }
}

/// [`Ltr`] with its counters.
struct LtrPolicy {
    options: Ltr,
    /// Plans begun.
    plans: u64,
    /// Requests outside the batch whose quantum is not full, by the plan at which their starvation
    /// count was 0.
    idle: IndexList<RequestIdx>,
    /// `[index]`: that plan. The starvation count after plan n is n minus this number.
    idle_since: Vec<u64>,
    /// `[index]`: tokens left to a promoted request; 0 if it is not promoted.
    quantum: Vec<u32>,
}

impl LtrPolicy {
    /// Sets the starvation count to 0 after plan `plan`, at least as late as all in the list.
    fn count_from(&mut self, idx: RequestIdx, plan: u64) {
        self.idle.push_back(idx);
        self.idle_since[idx.index()] = plan;
    }
}

impl Policy for LtrPolicy {
    fn name(&self) -> &'static str {
        "ltr"
    }

    fn key(&self, request: &RequestState) -> Key {
        let promoted = self.quantum[request.idx.index()] > 0;
        let class = if promoted { Key::OVERDUE } else { Key::OPEN };
        Key::new(class, f64::from(expected_length(request)), request.seq)
    }

    fn preemptable(&self, _request: &RequestState) -> bool {
        true
    }

    fn strict_order(&self) -> bool {
        true
    }

    fn reserve(&mut self, max_requests: u32) {
        self.idle = IndexList::new(max_requests);
        self.idle_since = vec![0; max_requests as usize];
        self.quantum = vec![0; max_requests as usize];
    }

    fn on_step(&mut self, _step: u64, _now_s: f64) {
        self.plans += 1;
    }

    fn next_changed(&mut self) -> Option<RequestIdx> {
        let threshold = u64::from(self.options.starvation_threshold);
        let last = self.plans - 1;
        let idx = self.idle.front()?;
        if threshold == 0 || last - self.idle_since[idx.index()] < threshold {
            return None;
        }
        // Until it is scheduled its quantum stays full: there is nothing to count.
        self.idle.remove(idx);
        self.quantum[idx.index()] = self.options.priority_quantum;
        Some(idx)
    }

    fn on_submitted(&mut self, request: &RequestState) {
        self.quantum[request.idx.index()] = 0;
        self.count_from(request.idx, self.plans);
    }

    fn on_scheduled(&mut self, request: &RequestState, row: PlanRow) {
        self.idle.remove(request.idx);
        let quantum = &mut self.quantum[request.idx.index()];
        *quantum = quantum.saturating_sub(row.sample as u32);
    }

    fn on_preempted(&mut self, request: &RequestState) {
        // This plan is the first without it.
        self.count_from(request.idx, self.plans - 1);
    }

    fn on_finished(&mut self, request: &RequestState) {
        self.idle.remove(request.idx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::Fcfs;
    use crate::policies::testing::{Toy, run_lengths};

    #[test]
    fn figure_1_of_the_paper() {
        // Lengths 10, 2 and 1 at once, one token a second: seconds per token.
        let mean = |toy: Toy| {
            let lengths = [10, 2, 1];
            let finished = toy.submit(&lengths).run().finished;
            let per_token = |id: usize| finished[id] as f64 / f64::from(lengths[id]);
            (0..3).map(per_token).sum::<f64>() / 3.0
        };
        let rounded = |seconds: f64| (seconds * 100.0).round() / 100.0;
        assert_eq!(rounded(mean(Toy::new(Fcfs, 1))), 6.67);
        assert_eq!(rounded(mean(Toy::new(Ltr::default().policy(), 1))), 1.27);
    }

    /// The ids that ran in each of `steps` steps: a request of 1000 tokens, and a new one of 1
    /// token before every step.
    fn beside_newcomers(options: Ltr, steps: u64) -> Vec<u64> {
        let mut toy = Toy::new(options.policy(), 1).submit(&[1000]);
        for _ in 0..steps {
            toy = toy.submit(&[1]);
            toy.step();
        }
        toy.ran
    }

    #[test]
    fn a_starved_request_runs_for_its_quantum_after_each_threshold() {
        let options = Ltr { starvation_threshold: 20, priority_quantum: 3 };
        let ran = beside_newcomers(options, 100);
        let starved: Vec<bool> = ran.iter().map(|&id| id == 0).collect();
        // Unscheduled in exactly 20 steps, then 3 tokens, while newcomers arrive at every step.
        // Some newcomers of the quantum's steps are promoted too, and are shorter: later rounds
        // wait for these.
        assert_eq!(run_lengths(&starved)[..4], [(false, 20), (true, 3), (false, 20), (true, 3)]);
        let longest_wait = run_lengths(&starved).into_iter().filter(|run| !run.0).map(|run| run.1);
        assert!(longest_wait.max() <= Some(20 + 3), "{starved:?}");
    }

    #[test]
    fn without_a_threshold_it_starves() {
        let options = Ltr { starvation_threshold: 0, priority_quantum: 10 };
        assert!(!beside_newcomers(options, 300).contains(&0));
    }

    #[test]
    fn prefill_steps_spend_no_quantum() {
        let mut policy = LtrPolicy {
            options: Ltr { starvation_threshold: 1, priority_quantum: 1 },
            plans: 0,
            idle: IndexList::default(),
            idle_since: Vec::new(),
            quantum: Vec::new(),
        };
        policy.reserve(1);
        let request = crate::policies::request(0, Some(5.0));
        policy.on_submitted(&request);
        policy.on_step(0, 0.0);
        assert_eq!(policy.next_changed(), None);
        policy.on_step(1, 0.0);
        assert_eq!(policy.next_changed(), Some(request.idx));
        assert_eq!(policy.next_changed(), None);
        let row = PlanRow { idx: request.idx, start: 0, len: 4, sample: false };
        policy.on_scheduled(&request, row);
        assert_eq!(policy.key(&request).class(), Key::OVERDUE);
        policy.on_scheduled(&request, PlanRow { start: 4, sample: true, ..row });
        assert_eq!(policy.key(&request).class(), Key::OPEN);
    }
}

//! Multi-level feedback queue: no prediction, priority by the service received.

use crate::index_list::IndexList;
use crate::plan::PlanRow;
use crate::{Key, Policy, RequestIdx, RequestState};

/// Positions per level in a key: more than any run has demotions and arrivals.
const LEVEL_POSITIONS: f64 = (1u64 << 40) as f64;

/// Most queues.
pub const MAX_LEVELS: u32 = 64;

/// Requests begin in the first queue and move one down when they have run for its quantum; lower
/// queues run only in the places that upper ones leave.
///
/// Source: FastServe (arXiv 2305.05920) as published in code; it is the baseline "MLFQ" of arXiv
/// 2408.15792 as well.
/// * Level p has a quantum of `quantum_s` x `growth`^p: 10 ms and 2 (code). The baseline's scripts
///   have 30 ms, and a growth of 10 for ShareGPT (code); its Figure 6 has 16 s (paper).
/// * Time in a step counts as service, and a new level begins at 0 (code).
/// * A request that has not run for `starvation_s` moves to the first queue: 3 s (code). There it
///   is checked every 1000 iterations, here at each step, as only the oldest is visited. The
///   baseline has it off by default (code). Its service begins at 0 (own): with the old level's it
///   would be demoted at once.
/// * Skip-join (paper): an arrival begins in the first level whose quantum its prefill does not
///   exceed. `prefill_token_s` takes the place of the profile; 0: all begin in the first queue.
/// * Within a queue first in, first out, in the order in which they came to it (own). The published
///   code inserts at the front, and so reverses a batch at each iteration.
/// * Deviation: a request is demoted with a token, never within its prefill. A demotion there could
///   let two requests evict each other in a cycle, in which neither gets a token (`fill`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mlfq {
    /// Quantum of the first level in seconds, over 0.
    pub quantum_s: f64,
    /// Factor from a level's quantum to the next one's, at least 1.
    pub growth: f64,
    /// Number of queues, 1 to [`MAX_LEVELS`]; no request leaves the last one downwards.
    pub levels: u32,
    /// Seconds without running after which a request moves to the first queue; 0: never.
    pub starvation_s: f64,
    /// Skip-join: prefill seconds of a prompt token; 0: off.
    pub prefill_token_s: f64,
}

impl Default for Mlfq {
    /// FastServe's constants, without skip-join: its profile depends on the device.
    fn default() -> Self {
        Mlfq { quantum_s: 0.01, growth: 2.0, levels: 16, starvation_s: 3.0, prefill_token_s: 0.0 }
    }
}

impl Mlfq {
    /// The policy, for [`crate::Scheduler::new`].
    ///
    /// # Panics
    ///
    /// If the number of levels is out of range.
    pub fn policy(self) -> impl Policy + use<> {
        assert!((1..=MAX_LEVELS).contains(&self.levels), "1 to MAX_LEVELS queues");
        MlfqPolicy {
            options: self,
            now_s: 0.0,
            positions: 0.0,
            requests: Vec::new(),
            idle: IndexList::default(),
            ran: IndexList::default(),
        }
    }

    /// Seconds of service at `level`.
    fn quantum(&self, level: u32) -> f64 {
        self.quantum_s * self.growth.powi(level as i32)
    }

    /// The level in which a prompt begins.
    fn first_level(&self, prompt_tokens: u32) -> u32 {
        let prefill_s = self.prefill_token_s * f64::from(prompt_tokens);
        (0..self.levels - 1)
            .find(|&level| self.quantum(level) >= prefill_s)
            .unwrap_or(self.levels - 1)
    }
}

/// Place of a request in the queues.
#[derive(Clone, Copy, Default)]
struct Entry {
    level: u32,
    /// Order within the level.
    position: f64,
    /// Seconds of service at this level.
    service_s: f64,
    /// Time at which it last ran, or arrived, for those outside the batch.
    idle_since_s: f64,
    /// True if its row of the last plan sampled a token.
    sampled: bool,
}

/// [`Mlfq`] with its queues.
struct MlfqPolicy {
    options: Mlfq,
    /// Time of the last plan.
    now_s: f64,
    /// Positions given out.
    positions: f64,
    requests: Vec<Entry>,
    /// Requests outside the batch, by `idle_since_s`.
    idle: IndexList<RequestIdx>,
    /// Requests of the last plan.
    ran: IndexList<RequestIdx>,
}

impl MlfqPolicy {
    fn enter(&mut self, idx: RequestIdx, level: u32) {
        self.positions += 1.0;
        let entry = &mut self.requests[idx.index()];
        (entry.level, entry.position, entry.service_s) = (level, self.positions, 0.0);
    }

    fn wait(&mut self, idx: RequestIdx) {
        self.idle.push_back(idx);
        self.requests[idx.index()].idle_since_s = self.now_s;
    }
}

impl Policy for MlfqPolicy {
    fn name(&self) -> &'static str {
        "mlfq"
    }

    fn key(&self, request: &RequestState) -> Key {
        let entry = &self.requests[request.idx.index()];
        let value = f64::from(entry.level) * LEVEL_POSITIONS + entry.position;
        Key::new(Key::OPEN, value, request.seq)
    }

    fn preemptable(&self, _request: &RequestState) -> bool {
        true
    }

    fn strict_order(&self) -> bool {
        true
    }

    fn reserve(&mut self, max_requests: u32) {
        self.requests = vec![Entry::default(); max_requests as usize];
        self.idle = IndexList::new(max_requests);
        self.ran = IndexList::new(max_requests);
    }

    fn on_step(&mut self, _step: u64, now_s: f64) {
        let step_s = (now_s - self.now_s).max(0.0);
        self.now_s = now_s;
        while let Some(idx) = self.ran.front() {
            self.ran.remove(idx);
            let entry = &mut self.requests[idx.index()];
            entry.service_s += step_s;
            let level = entry.level;
            let is_over = entry.sampled && entry.service_s > self.options.quantum(level);
            if is_over && level + 1 < self.options.levels {
                self.enter(idx, level + 1);
            }
        }
    }

    fn next_changed(&mut self) -> Option<RequestIdx> {
        let bound_s = self.options.starvation_s;
        loop {
            let idx = self.idle.front()?;
            let entry = self.requests[idx.index()];
            if bound_s == 0.0 || self.now_s - entry.idle_since_s < bound_s {
                return None;
            }
            // In the first queue it waits on: it is visited no more.
            self.idle.remove(idx);
            if entry.level > 0 {
                self.enter(idx, 0);
                return Some(idx);
            }
        }
    }

    fn on_submitted(&mut self, request: &RequestState) {
        self.enter(request.idx, self.options.first_level(request.prompt_tokens));
        self.wait(request.idx);
    }

    fn on_scheduled(&mut self, request: &RequestState, row: PlanRow) {
        self.idle.remove(request.idx);
        self.ran.push_back(request.idx);
        self.requests[request.idx.index()].sampled = row.sample;
    }

    fn on_preempted(&mut self, request: &RequestState) {
        self.wait(request.idx);
    }

    fn on_finished(&mut self, request: &RequestState) {
        self.idle.remove(request.idx);
        self.ran.remove(request.idx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::request;
    use crate::policies::testing::{Toy, run_lengths};

    /// Levels of 4, 8, 16, ... tokens in a [`Toy`], whose steps take a second.
    const TOY: Mlfq =
        Mlfq { quantum_s: 3.9, growth: 2.0, levels: 8, starvation_s: 0.0, prefill_token_s: 0.0 };

    #[test]
    fn quanta_double_and_queues_are_first_in_first_out() {
        let ran = Toy::new(TOY.policy(), 1).submit(&[14, 3, 6]).run().ran;
        // Quanta of 3.9 and 7.8 s: over after 4 and 8 tokens.
        let expected = [(0, 4), (1, 3), (2, 4), (0, 8), (2, 2), (0, 2)];
        assert_eq!(run_lengths(&ran), expected);
    }

    /// Figure 6 of arXiv 2408.15792: finish time over length of a burst forms rectangular blocks
    /// whose edges grow with the quantum.
    #[test]
    fn a_burst_finishes_in_blocks_that_grow_exponentially() {
        const PLACES: usize = 16;
        // At most 60 tokens: the first four quanta, 4 + 8 + 16 + 32.
        let lengths: Vec<u32> = (0..128).map(|id| 1 + (id * 37) % 60).collect();
        let finished = Toy::new(TOY.policy(), PLACES as u32).submit(&lengths).run().finished;
        let level = |id: usize| [4, 12, 28, 60].iter().position(|&end| lengths[id] <= end).unwrap();
        let of_level = |wanted| (0..128).filter(move |&id| level(id) == wanted);
        let span = |wanted| {
            let times = of_level(wanted).map(|id| finished[id]);
            (times.clone().min().unwrap(), times.max().unwrap())
        };
        let spans: Vec<(u64, u64)> = (0..4).map(span).collect();
        // A queue runs only in the places that the one above leaves: blocks touch, as the last
        // batch of a queue does not fill the places.
        for (above, below) in spans.iter().zip(&spans[1..]) {
            assert!(above.0 < below.0 && above.1 < below.1, "{spans:?}");
        }
        for (above, below) in spans.iter().zip(&spans[2..]) {
            assert!(above.1 <= below.0, "{spans:?}");
        }
        // Edges: the time in which all that reach a queue run through its quantum.
        let widths: Vec<u64> = spans.iter().map(|span| span.1 - span.0).collect();
        assert!(widths[1] > widths[0] && widths[2] > widths[1], "{widths:?}");
        // The first batch runs in lockstep: within its blocks the length grows by one a second.
        for id in (0..PLACES).filter(|&id| level(id) == 0) {
            assert_eq!(finished[id], u64::from(lengths[id]));
        }
    }

    #[test]
    fn a_starved_request_returns_to_the_first_queue() {
        let run = |starvation_s| {
            let mut toy = Toy::new(Mlfq { starvation_s, ..TOY }.policy(), 1).submit(&[100]);
            for _ in 0..40 {
                toy = toy.submit(&[1]);
                toy.step();
            }
            toy.ran.iter().filter(|&&id| id == 0).count()
        };
        // 4 tokens at first, then newcomers at every step fill the first queue.
        assert_eq!(run(0.0), 4);
        // It waits for 10 s, and then for those that came to the first queue before it.
        assert!(run(10.0) >= 8, "{}", run(10.0));
    }

    #[test]
    fn a_request_is_demoted_with_a_token_and_not_in_its_prefill() {
        let mut policy = TOY.policy();
        policy.reserve(1);
        let request = request(0, None);
        policy.on_submitted(&request);
        let first = policy.key(&request);
        for (step, sample) in [false, false, true].into_iter().enumerate() {
            assert_eq!(policy.key(&request), first);
            let row = PlanRow { idx: request.idx, start: 0, len: 4, sample };
            policy.on_scheduled(&request, row);
            policy.on_step(step as u64, 10.0 * (step + 1) as f64);
        }
        assert!(policy.key(&request) > first, "30 s of service in a quantum of 3.9");
    }

    #[test]
    fn skip_join_begins_where_the_prefill_fits() {
        let options = Mlfq { prefill_token_s: 1.0, ..TOY };
        let levels = [1, 3, 4, 7, 8, 100, 10_000].map(|tokens| options.first_level(tokens));
        assert_eq!(levels, [0, 0, 1, 1, 2, 5, 7]);
        assert_eq!(TOY.first_level(10_000), 0);
        let mut policy = options.policy();
        policy.reserve(2);
        let (long, mut short) = (request(0, None), request(1, None)); // prompts of 8 tokens
        short.prompt_tokens = 3;
        policy.on_submitted(&long);
        policy.on_submitted(&short);
        assert!(policy.key(&short) < policy.key(&long));
    }
}

//! Parts of the policies' tests: request states, and a scheduler of one token a second.

use super::request;
use crate::{
    NewRequest, Phase, Policy, RequestId, RequestIdx, RequestState, Scheduler, SchedulerConfig,
};

/// A running request that has generated `generated` tokens, with first prediction `r`.
pub(crate) fn running(seq: u64, r: f32, generated: u32) -> RequestState {
    let mut request = request(seq, Some(r));
    (request.phase, request.started) = (Phase::Running, true);
    for step in 0..u64::from(generated) {
        request.advance(step, 1, true);
    }
    request
}

/// Requests with a prompt of one token and a true prediction, on a scheduler with memory for all:
/// every step gives each running request a token, and takes a second.
pub(crate) struct Toy {
    scheduler: Scheduler,
    steps: u64,
    /// Requests not finished.
    live: Vec<RequestIdx>,
    /// Ids of the rows, step by step.
    pub(crate) ran: Vec<u64>,
    /// `[id]`: seconds from the beginning to the end of the request; 0 if it has not finished.
    pub(crate) finished: Vec<u64>,
}

impl Toy {
    pub(crate) fn new(policy: impl Policy + 'static, max_running: u32) -> Toy {
        let config = SchedulerConfig { max_running, ..SchedulerConfig::default() };
        let scheduler = Scheduler::new(config, Box::new(policy)).unwrap();
        Toy { scheduler, steps: 0, live: Vec::new(), ran: Vec::new(), finished: Vec::new() }
    }

    /// Submits requests of these lengths; ids count from 0.
    pub(crate) fn submit(mut self, lengths: &[u32]) -> Toy {
        for &length in lengths {
            let new = NewRequest {
                id: RequestId(self.finished.len() as u64),
                prompt_tokens: 1,
                max_tokens: length,
                arrival_s: self.steps as f64,
                initial_prediction: Some(length as f32),
                true_length: Some(length),
                ..NewRequest::default()
            };
            self.live.push(self.scheduler.submit(new).unwrap());
            self.finished.push(0);
        }
        self
    }

    /// One step. Returns the ids of its rows.
    pub(crate) fn step(&mut self) -> Vec<u64> {
        let plan = self.scheduler.plan(self.steps, self.steps as f64);
        let rows: Vec<RequestIdx> = plan.rows.iter().map(|row| row.idx).collect();
        let ids: Vec<u64> = rows.iter().map(|&idx| self.scheduler.state(idx).id.0).collect();
        self.scheduler.advance();
        self.steps += 1;
        for (&idx, &id) in rows.iter().zip(&ids) {
            let request = self.scheduler.state(idx);
            if request.generated == request.max_tokens {
                self.scheduler.finish(idx);
                self.live.retain(|&other| other != idx);
                self.finished[id as usize] = self.steps;
            }
        }
        self.ran.extend(&ids);
        ids
    }

    /// Steps until every request has finished. Returns their seconds.
    pub(crate) fn run(mut self) -> Toy {
        while !self.live.is_empty() {
            assert!(self.steps < 1_000_000, "livelock");
            self.step();
        }
        self
    }
}

/// Equal neighbours counted: `[a, a, b]` is `[(a, 2), (b, 1)]`.
pub(crate) fn run_lengths<T: Copy + PartialEq>(items: &[T]) -> Vec<(T, usize)> {
    items.chunk_by(PartialEq::eq).map(|run| (run[0], run.len())).collect()
}

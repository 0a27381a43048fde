//! A scheduler under steady load.

use trail_platform::rng::Rng;
use trail_scheduler::limits::blocks_for;
use trail_scheduler::{
    ConfigError, NewRequest, Policy, Prediction, RequestId, RequestIdx, Scheduler, SchedulerConfig,
};
use trail_simulator::arrivals::{ALPACA_CAP_TOKENS, Lengths};

/// Mean output tokens of a request: each token is its last with probability one over this.
const MEAN_OUTPUT_TOKENS: u64 = 250;

/// Tokens of each prompt: short, since the load is decoding.
const PROMPT_TOKENS: u32 = 64;

/// Standard deviation of a prediction around the previous one less one token; tokens.
const PREDICTION_NOISE_TOKENS: f64 = 5.0;

/// Mean steps between bursts of arrivals.
const ARRIVAL_STEPS: u64 = 4;

/// Seconds of a step, for the policies that measure time.
const STEP_S: f64 = 0.01;

/// A scheduler whose batch and queue stay full: each finished request is replaced by a new one.
/// Replacements arrive a few steps later in small bursts: a replacement in the very step that frees
/// a place would never find a reason to preempt.
pub struct SteadyLoad {
    scheduler: Scheduler,
    rng: Rng,
    step: u64,
    arrivals: u64,
    /// Finished requests not yet replaced.
    missing: usize,
    /// Requests of the current batch.
    batch: Vec<RequestIdx>,
    /// Requests of the current batch that finish with it.
    finished: Vec<RequestIdx>,
}

impl SteadyLoad {
    /// A load of `running` decoding and `waiting` waiting (or paused) requests under `policy`.
    pub fn new(
        policy: Box<dyn Policy>,
        running: u32,
        waiting: u32,
        seed: u64,
    ) -> Result<SteadyLoad, ConfigError> {
        let max_context = PROMPT_TOKENS + ALPACA_CAP_TOKENS;
        let config = SchedulerConfig {
            max_running: running,
            max_requests: running + waiting,
            token_budget: 2 * running + PROMPT_TOKENS,
            // Blocks for 1.5 times the running requests: preempted ones keep theirs for a while.
            num_blocks: (running + running / 2 + 1) * blocks_for(max_context),
            max_context,
            ..SchedulerConfig::default()
        };
        let mut load = SteadyLoad {
            scheduler: Scheduler::new(config, policy)?,
            rng: Rng::new(seed),
            step: 0,
            arrivals: 0,
            missing: 0,
            batch: Vec::with_capacity(running as usize),
            finished: Vec::with_capacity(running as usize),
        };
        for _ in 0..running + waiting {
            load.arrive();
        }
        Ok(load)
    }

    /// Makes the calls of one engine step: a prediction for each request of the last batch, `plan`,
    /// `advance`, and new requests in place of finished ones. Returns the number of rows planned.
    pub fn step(&mut self) -> usize {
        self.predict();
        let plan = self.scheduler.plan(self.step, STEP_S * self.step as f64);
        let rows = plan.rows.len();
        self.batch.clear();
        self.finished.clear();
        for row in &plan.rows {
            self.batch.push(row.idx);
        }
        self.scheduler.advance();
        self.finish();
        self.step += 1;
        rows
    }

    fn predict(&mut self) {
        for &idx in &self.batch {
            let request = self.scheduler.state(idx);
            let noise = PREDICTION_NOISE_TOKENS * (2.0 * self.rng.uniform() - 1.0) * 3f64.sqrt();
            // At the start of the last step: the token that it sampled still counts.
            let remaining = request.remaining().unwrap_or(1.0) + 1.0 + noise as f32;
            let prediction = Prediction {
                remaining,
                p10: 0.5 * remaining,
                p50: remaining,
                p90: 2.0 * remaining,
                step: self.step.saturating_sub(1),
                generation: request.generation,
            };
            self.scheduler.predict(idx, prediction);
        }
    }

    fn finish(&mut self) {
        for &idx in &self.batch {
            let request = self.scheduler.state(idx);
            let last = self.rng.below(MEAN_OUTPUT_TOKENS) == 0;
            if last && request.generated > 0 || request.generated == request.max_tokens {
                self.finished.push(idx);
            }
        }
        for &idx in &self.finished {
            self.scheduler.finish(idx);
        }
        self.missing += self.finished.len();
        if self.rng.below(ARRIVAL_STEPS) == 0 {
            (0..std::mem::take(&mut self.missing)).for_each(|_| self.arrive());
        }
    }

    fn arrive(&mut self) {
        let length = Lengths::AlpacaLike { cap: ALPACA_CAP_TOKENS }.tokens(&mut self.rng);
        let request = NewRequest {
            id: RequestId(self.arrivals),
            prompt_tokens: PROMPT_TOKENS,
            max_tokens: ALPACA_CAP_TOKENS,
            arrival_s: self.arrivals as f64,
            initial_prediction: Some(length as f32),
            true_length: Some(length),
            ..NewRequest::default()
        };
        self.arrivals += 1;
        self.scheduler.submit(request).expect("a place was just freed, and the request fits");
    }
}

#[cfg(test)]
mod tests {
    use trail_scheduler::policies::{Fcfs, Oracle, Sjf, Trail};

    use super::*;

    #[test]
    fn the_load_is_steady() {
        let mut load = SteadyLoad::new(Box::new(Trail::paper(0.8).policy()), 32, 100, 1).unwrap();
        let rows: usize = (0..2000).map(|_| load.step()).sum();
        assert_eq!(load.scheduler.live() + load.missing, 132);
        assert!(rows > 2000 * 31, "{rows}");
    }

    #[test]
    fn a_step_allocates_nothing() {
        let policies: [Box<dyn Policy>; 4] = [
            Box::new(Fcfs),
            Box::new(Sjf::PAPER.policy()),
            Box::new(Trail::paper(0.8).policy()),
            Box::new(Oracle::default()),
        ];
        for policy in policies {
            let name = policy.name();
            let mut load = SteadyLoad::new(policy, 64, 512, 3).unwrap();
            let before = trail_counting_allocator::of_thread();
            (0..1000).for_each(|_| assert!(load.step() > 0));
            assert_eq!(trail_counting_allocator::of_thread(), before, "{name}");
        }
    }
}

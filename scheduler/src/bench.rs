//! A scheduler under steady load, for programs that time it: this crate has no clock.

use crate::config::{ConfigError, SchedulerConfig};
use crate::policy::Policy;
use crate::request::{NewRequest, Prediction, RequestId, Slot};
use crate::scheduler::Scheduler;
use crate::workload::{ALPACA_CAP_TOKENS, Lengths};
use trail_base::rng::Rng;

/// Mean output length: one token in so many is a request's last.
const MEAN_OUTPUT_TOKENS: u64 = 250;

/// Tokens of each prompt: short, as decoding is what is under load.
const PROMPT_TOKENS: u32 = 64;

/// Standard deviation of a prediction about what the last one, counted down, says: tokens.
const PREDICTION_NOISE_TOKENS: f64 = 5.0;

/// Mean steps between bursts of arrivals.
const ARRIVAL_STEPS: u64 = 4;

/// A scheduler with a full batch and a queue, both kept so: each finished request is replaced by a
/// new one. Replacements come a few steps later in small bursts: were each to come with the seat it
/// is owed to, there would be nothing to preempt for.
pub struct Load {
    scheduler: Scheduler,
    rng: Rng,
    step: u64,
    arrivals: u64,
    /// Finished requests not replaced yet.
    owed: usize,
    /// The step's batch, and those of it that finish.
    batch: Vec<Slot>,
    finished: Vec<Slot>,
}

impl Load {
    /// `running` requests decode and `waiting` wait (paused ones included), under `policy`.
    pub fn new(
        policy: Box<dyn Policy>,
        running: u32,
        waiting: u32,
        seed: u64,
    ) -> Result<Load, ConfigError> {
        let max_context = PROMPT_TOKENS + ALPACA_CAP_TOKENS;
        let config = SchedulerConfig {
            max_running: running,
            max_requests: running + waiting,
            token_budget: 2 * running + PROMPT_TOKENS,
            // Room for half as many again as run: the preempted stay for a while, not for ever.
            num_blocks: (running + running / 2 + 1) * crate::limits::blocks_for(max_context),
            max_context,
            ..SchedulerConfig::default()
        };
        let mut load = Load {
            scheduler: Scheduler::new(config, policy)?,
            rng: Rng::new(seed),
            step: 0,
            arrivals: 0,
            owed: 0,
            batch: Vec::with_capacity(running as usize),
            finished: Vec::with_capacity(running as usize),
        };
        for _ in 0..running + waiting {
            load.arrive();
        }
        Ok(load)
    }

    /// One step of the engine's calls: a prediction for every request of the last batch, `plan`,
    /// `advance`, and new requests for those that finished. Returns the rows planned.
    pub fn step(&mut self) -> usize {
        self.predict();
        let plan = self.scheduler.plan(self.step, 0.0);
        let rows = plan.rows.len();
        self.batch.clear();
        self.finished.clear();
        for row in &plan.rows {
            self.batch.push(row.slot);
        }
        self.scheduler.advance();
        self.finish();
        self.step += 1;
        rows
    }

    /// The scheduler under load.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    fn predict(&mut self) {
        for &slot in &self.batch {
            let request = self.scheduler.state(slot);
            let noise = PREDICTION_NOISE_TOKENS * (2.0 * self.rng.uniform() - 1.0) * 3f64.sqrt();
            // As of the last step's beginning: the token it sampled is still ahead.
            let remaining = request.remaining().unwrap_or(1.0) + 1.0 + noise as f32;
            let prediction = Prediction {
                remaining,
                p10: 0.5 * remaining,
                p50: remaining,
                p90: 2.0 * remaining,
                step: self.step.saturating_sub(1),
                generation: request.generation,
            };
            self.scheduler.predict(slot, prediction);
        }
    }

    fn finish(&mut self) {
        for &slot in &self.batch {
            let request = self.scheduler.state(slot);
            let last = self.rng.below(MEAN_OUTPUT_TOKENS) == 0;
            if last && request.generated > 0 || request.generated == request.max_tokens {
                self.finished.push(slot);
            }
        }
        for &slot in &self.finished {
            self.scheduler.finish(slot);
        }
        self.owed += self.finished.len();
        if self.rng.below(ARRIVAL_STEPS) == 0 {
            (0..std::mem::take(&mut self.owed)).for_each(|_| self.arrive());
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
        };
        self.arrivals += 1;
        self.scheduler.submit(request).expect("a place was just freed, and the request fits");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::Trail;

    #[test]
    fn the_load_is_steady() {
        let mut load = Load::new(Box::new(Trail::default()), 32, 100, 1).unwrap();
        let rows: usize = (0..2000).map(|_| load.step()).sum();
        assert_eq!(load.scheduler.live() + load.owed, 132);
        assert!(rows > 2000 * 31, "{rows}");
    }
}

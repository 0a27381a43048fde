//! Counters of the engine, readable from any thread at any time.

use std::sync::atomic::{AtomicU64, Ordering};

use trail_scheduler::{Plan, PrefillPace, Scheduler};

use super::prediction_watch::PredictionWindow;

/// Upper bounds of the slack histogram, microseconds; the last bucket is open.
pub const SLACK_BOUNDS_US: [u32; 12] =
    [0, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 100_000];

/// Upper bounds of the histogram of a step's tokens, vLLM's; the last bucket is open.
pub const STEP_TOKENS_BOUNDS: [u32; 13] =
    [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

/// Counters as the engine's thread writes them. Those of an engine that has ended stay, and go on
/// in one that is started with them.
#[derive(Debug, Default)]
pub struct Counters {
    pub(super) running: AtomicU64,
    pub(super) waiting: AtomicU64,
    /// Bits of a float, tokens.
    predicted_tokens: AtomicU64,
    predicted_requests: AtomicU64,
    pub(super) blocks_used: AtomicU64,
    pub(super) steps: AtomicU64,
    pub(super) empty_plans: AtomicU64,
    pub(super) prompt_tokens: AtomicU64,
    pub(super) generated_tokens: AtomicU64,
    pub(super) recomputed_tokens: AtomicU64,
    pub(super) braked_steps: AtomicU64,
    pub(super) cached_tokens: AtomicU64,
    pub(super) hash_collisions: AtomicU64,
    pub(super) draft_tokens: AtomicU64,
    pub(super) accepted_tokens: AtomicU64,
    pub(super) preemptions: AtomicU64,
    pub(super) evictions: AtomicU64,
    pub(super) swaps_out: AtomicU64,
    pub(super) swaps_in: AtomicU64,
    pub(super) host_blocks_used: AtomicU64,
    pub(super) finished: AtomicU64,
    pub(super) answers: AtomicU64,
    pub(super) answer_tokens: AtomicU64,
    pub(super) shed: AtomicU64,
    pub(super) predictions_fresh: AtomicU64,
    pub(super) predictions_late: AtomicU64,
    pub(super) prediction_surprises: AtomicU64,
    pub(super) prediction_errors: AtomicU64,
    /// Sum of absolute prediction errors in thousandths of a token.
    pub(super) prediction_error_millitokens: AtomicU64,
    /// Bits of the floats of the last [`PredictionWindow`], in its order.
    prediction_window: [AtomicU64; 4],
    /// 0 before the first window, 1 if predictions are trusted, 2 if not.
    trust: AtomicU64,
    pub(super) distrusted: AtomicU64,
    pub(super) slack_us: [AtomicU64; SLACK_BOUNDS_US.len()],
    pub(super) step_ns: AtomicU64,
    step_tokens: [AtomicU64; STEP_TOKENS_BOUNDS.len() + 1],
    step_rows: AtomicU64,
    /// Bits of floats: seconds of a decode step, and of a prompt token.
    pace_s: [AtomicU64; 2],
}

/// Adds to a counter. Relaxed: counters are independent of each other.
pub(super) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// Sets a gauge.
pub(super) fn set(gauge: &AtomicU64, value: u64) {
    gauge.store(value, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Counters {
    /// Counts one step's slack between "predictions ready" and "step end".
    pub(super) fn count_slack(&self, slack_us: u32) {
        let bucket = SLACK_BOUNDS_US.iter().rposition(|&bound| slack_us >= bound).unwrap_or(0);
        add(&self.slack_us[bucket], 1);
    }

    /// Counts the changes of places that a plan makes.
    pub(super) fn count_plan(&self, plan: &Plan) {
        add(&self.empty_plans, u64::from(plan.rows.is_empty()));
        add(&self.preemptions, plan.preempted.len() as u64);
        add(&self.evictions, plan.evicted.len() as u64);
        add(&self.swaps_out, plan.swap_out.len() as u64);
        add(&self.swaps_in, plan.swap_in.len() as u64);
        add(&self.recomputed_tokens, u64::from(plan.recomputed_tokens));
        add(&self.cached_tokens, u64::from(plan.prompt_hits));
    }

    /// Counts a step of `rows` tokens that took `elapsed_ns`.
    pub(super) fn count_step(&self, rows: usize, elapsed_ns: u64) {
        add(&self.steps, 1);
        add(&self.step_ns, elapsed_ns);
        add(&self.step_rows, rows as u64);
        let bucket = STEP_TOKENS_BOUNDS.partition_point(|&bound| (bound as usize) < rows);
        add(&self.step_tokens[bucket], 1);
    }

    /// Publishes the measured costs of steps.
    pub(super) fn set_pace(&self, pace: &PrefillPace) {
        let seconds = [pace.decode_step_s(), pace.prefill_token_s()];
        self.pace_s.iter().zip(seconds).for_each(|(at, s)| set(at, s.to_bits()));
    }

    /// Publishes what the requests in the engine occupy, `live` by number with those that the
    /// scheduler has not seen yet.
    pub(super) fn set_load(&self, scheduler: &Scheduler, live: u32) {
        let running = scheduler.running() as u64;
        let outstanding = scheduler.outstanding();
        set(&self.running, running);
        set(&self.waiting, u64::from(live).saturating_sub(running));
        set(&self.predicted_tokens, outstanding.tokens.to_bits());
        set(&self.predicted_requests, u64::from(outstanding.predicted));
        set(&self.blocks_used, u64::from(scheduler.blocks_used()));
        set(&self.host_blocks_used, u64::from(scheduler.host_blocks_used()));
    }

    /// Publishes that no request is left.
    pub(super) fn clear_load(&self) {
        let requests = [&self.running, &self.waiting];
        let tokens = [&self.predicted_tokens, &self.predicted_requests];
        let blocks = [&self.blocks_used, &self.host_blocks_used];
        [requests, tokens, blocks].into_iter().flatten().for_each(|gauge| set(gauge, 0));
    }

    /// Publishes a window, and counts a loss of trust.
    pub(super) fn set_prediction_window(&self, window: &PredictionWindow) {
        let PredictionWindow { mae, bias, tau, tau_of_age, trusted } = *window;
        let floats = [mae, bias, tau, tau_of_age];
        self.prediction_window.iter().zip(floats).for_each(|(at, x)| set(at, x.to_bits()));
        let trust = 2 - u64::from(trusted);
        let before = self.trust.swap(trust, Ordering::Relaxed).max(1);
        add(&self.distrusted, u64::from(before < trust));
    }

    fn prediction_window(&self) -> Option<PredictionWindow> {
        let [mae, bias, tau, tau_of_age] =
            std::array::from_fn(|i| f64::from_bits(get(&self.prediction_window[i])));
        let trust = get(&self.trust);
        let trusted = trust == 1;
        (trust > 0).then_some(PredictionWindow { mae, bias, tau, tau_of_age, trusted })
    }

    /// A snapshot of the counters of an engine with `num_blocks` KV blocks.
    pub fn snapshot(&self, num_blocks: u64) -> Stats {
        let [decode_step_s, prefill_token_s] =
            std::array::from_fn(|i| f64::from_bits(get(&self.pace_s[i])));
        Stats {
            running: get(&self.running),
            waiting: get(&self.waiting),
            predicted_tokens: f64::from_bits(get(&self.predicted_tokens)),
            predicted_requests: get(&self.predicted_requests),
            blocks_used: get(&self.blocks_used),
            num_blocks,
            steps: get(&self.steps),
            empty_plans: get(&self.empty_plans),
            prompt_tokens: get(&self.prompt_tokens),
            generated_tokens: get(&self.generated_tokens),
            recomputed_tokens: get(&self.recomputed_tokens),
            braked_steps: get(&self.braked_steps),
            cached_tokens: get(&self.cached_tokens),
            hash_collisions: get(&self.hash_collisions),
            draft_tokens: get(&self.draft_tokens),
            accepted_tokens: get(&self.accepted_tokens),
            preemptions: get(&self.preemptions),
            evictions: get(&self.evictions),
            swaps_out: get(&self.swaps_out),
            swaps_in: get(&self.swaps_in),
            host_blocks_used: get(&self.host_blocks_used),
            finished: get(&self.finished),
            answers: get(&self.answers),
            answer_tokens: get(&self.answer_tokens),
            shed: get(&self.shed),
            predictions_fresh: get(&self.predictions_fresh),
            predictions_late: get(&self.predictions_late),
            prediction_surprises: get(&self.prediction_surprises),
            prediction_errors: get(&self.prediction_errors),
            prediction_error_sum: get(&self.prediction_error_millitokens) as f64 / 1e3,
            prediction_window: self.prediction_window(),
            predictions_distrusted: get(&self.distrusted),
            slack_us: std::array::from_fn(|i| get(&self.slack_us[i])),
            step_seconds: get(&self.step_ns) as f64 * 1e-9,
            step_tokens: std::array::from_fn(|i| get(&self.step_tokens[i])),
            step_rows: get(&self.step_rows),
            decode_step_s,
            prefill_token_s,
        }
    }
}

/// A snapshot of the engine's counters since its start. Fields are read one by one, while the
/// engine goes on: they need not be of the same step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Requests in the last step's batch.
    pub running: u64,
    /// Requests in the engine that were not in the last step's batch.
    pub waiting: u64,
    /// Sum of the predicted remaining output tokens of the requests that have a prediction.
    pub predicted_tokens: f64,
    /// Requests in the engine that have a prediction.
    pub predicted_requests: u64,
    /// KV blocks in use.
    pub blocks_used: u64,
    /// KV blocks in all.
    pub num_blocks: u64,
    /// Forward passes.
    pub steps: u64,
    /// Plans without rows: nothing to run, or every request waits for a transfer.
    pub empty_plans: u64,
    /// Prompt tokens of the requests taken in.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Tokens whose KV was recomputed after an eviction.
    pub recomputed_tokens: u64,
    /// Prompt tokens whose KV was found in the prefix cache, when a request first entered the
    /// batch.
    pub cached_tokens: u64,
    /// Requests that began again without hashes, as they found another sequence's KV blocks by
    /// theirs.
    pub hash_collisions: u64,
    /// Draft tokens that speculation proposed.
    pub draft_tokens: u64,
    /// Draft tokens that were the sampled ones.
    pub accepted_tokens: u64,
    /// Steps in which recomputed tokens braked evictions ([`SchedulerConfig::max_recompute`]).
    ///
    /// [`SchedulerConfig::max_recompute`]: trail_scheduler::SchedulerConfig::max_recompute
    pub braked_steps: u64,
    /// Times a running request lost its place in the batch.
    pub preemptions: u64,
    /// Times a request's KV blocks were taken from it.
    pub evictions: u64,
    /// Transfers of a request's KV blocks to the host pool.
    pub swaps_out: u64,
    /// Transfers of a request's KV blocks back.
    pub swaps_in: u64,
    /// KV blocks in use in the host pool.
    pub host_blocks_used: u64,
    /// Requests that ended, for any reason.
    pub finished: u64,
    /// Requests whose answer is whole: [`super::FinishReason::Stop`] or
    /// [`super::FinishReason::Length`].
    pub answers: u64,
    /// Tokens of those answers.
    pub answer_tokens: u64,
    /// Requests that ended [`super::FinishReason::Overloaded`].
    pub shed: u64,
    /// Rows whose prediction was there when the next step was planned.
    pub predictions_fresh: u64,
    /// Rows whose prediction was not.
    pub predictions_late: u64,
    /// Predictions of the probe that share little with what was believed before.
    pub prediction_surprises: u64,
    /// Predictions compared with the true remaining length, which is known once a request ended.
    pub prediction_errors: u64,
    /// Sum of their absolute errors, tokens.
    pub prediction_error_sum: f64,
    /// The last answers' predictions; `None` before 128 answers, and where the policy does not rank
    /// by the probe.
    pub prediction_window: Option<PredictionWindow>,
    /// Times that the scheduler went over to ranking by arrival.
    pub predictions_distrusted: u64,
    /// Steps by slack between "predictions ready" and "step end", bucketed by [`SLACK_BOUNDS_US`].
    pub slack_us: [u64; SLACK_BOUNDS_US.len()],
    /// Time spent in steps, seconds.
    pub step_seconds: f64,
    /// Steps by their tokens, of prompts and answers and proposed ones, bucketed by
    /// [`STEP_TOKENS_BOUNDS`].
    pub step_tokens: [u64; STEP_TOKENS_BOUNDS.len() + 1],
    /// Tokens of all steps.
    pub step_rows: u64,
    /// Mean time of the last steps without prefill, seconds; 0 before the first.
    pub decode_step_s: f64,
    /// Mean time that a prompt token added to the last steps with prefill, seconds, without its
    /// attention to a context; 0 before the first.
    pub prefill_token_s: f64,
}

impl Stats {
    /// Mean absolute error of the refined predictions, tokens; `None` before the first.
    pub fn prediction_mae(&self) -> Option<f64> {
        (self.prediction_errors > 0)
            .then(|| self.prediction_error_sum / self.prediction_errors as f64)
    }

    /// Predicted output tokens still to come. A request without a prediction counts with the mean
    /// of the whole answers so far: 0 tokens before the first.
    pub fn predicted_tokens_outstanding(&self) -> f64 {
        let unpredicted = (self.running + self.waiting).saturating_sub(self.predicted_requests);
        let mean = self.answer_tokens as f64 / self.answers.max(1) as f64;
        self.predicted_tokens + unpredicted as f64 * mean
    }

    /// Share of rows whose prediction was fresh; `None` without predictions.
    pub fn fresh_share(&self) -> Option<f64> {
        let all = self.predictions_fresh + self.predictions_late;
        (all > 0).then(|| self.predictions_fresh as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_by_their_tokens() {
        let counters = Counters::default();
        for rows in [1, 2, 8, 9, 16_384, 16_385] {
            counters.count_step(rows, 10);
        }
        let stats = counters.snapshot(1);
        assert_eq!(stats.step_tokens, [1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((stats.steps, stats.step_rows), (6, 32_789));
    }
}

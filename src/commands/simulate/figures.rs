//! Figures of one simulated run.

use serde::Serialize;
use trail_cli::Spread;
use trail_platform::delivery::smooth_share;
use trail_simulator::{JobOutcome, SimulationRun};

use super::scenario::Scenario;

/// Figures of a run, in seconds of the virtual clock.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// The policy with its parameters.
    pub policy: String,
    /// Load, rate, burst or trace.
    pub load: String,
    /// Seed of the run.
    pub seed: u64,
    /// Requests answered.
    pub requests: usize,
    /// True if the run was stopped early.
    pub interrupted: bool,
    /// From arrival to last token.
    pub latency_s: Spread,
    /// From arrival to first token.
    pub ttft_s: Spread,
    /// Longest time between two tokens of a request.
    pub longest_gap_s: Spread,
    /// Share of the requests in which a reader of 6 tokens a second never waits.
    pub smooth_share: f64,
    /// Seconds by which the first token would have to be held back for that.
    pub hold_back_s: Spread,
    /// Longest time without a token, the wait for the first one included.
    pub max_waiting_time_s: Spread,
    /// Latency over output tokens.
    pub latency_per_token_s: Spread,
    /// Output tokens per second over the whole run.
    pub tokens_per_s: f64,
    /// From the first arrival to the last token.
    pub makespan_s: f64,
    /// Steps.
    pub steps: u64,
    /// Requests that left the batch unfinished.
    pub preemptions: u64,
    /// Requests that lost their KV.
    pub evictions: u64,
    /// Swaps to the host.
    pub swaps_out: u64,
    /// Tokens recomputed after evictions.
    pub recomputed_tokens: u64,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u64,
    /// Time average of the KV blocks in use.
    pub mean_kv_blocks: f64,
    /// Most KV blocks in use on one worker.
    pub peak_kv_blocks: u32,
    /// Mean absolute error of the refined predictions, tokens.
    pub prediction_mae: Option<f64>,
}

impl Figures {
    /// The figures of `run`.
    pub fn of(scenario: &Scenario, seed: u64, run: &SimulationRun) -> Figures {
        let spread = |of: fn(&JobOutcome) -> f64| Spread::of(run.outcomes.iter().map(of));
        Figures {
            policy: scenario.policy.to_string(),
            load: scenario.pace.to_string(),
            seed,
            requests: run.outcomes.len(),
            interrupted: run.interrupted,
            latency_s: spread(|outcome| outcome.latency_s),
            ttft_s: spread(|outcome| outcome.ttft_s),
            longest_gap_s: spread(|outcome| outcome.longest_gap_s),
            smooth_share: smooth_share(run.outcomes.iter().map(|outcome| outcome.smooth_s)),
            hold_back_s: spread(|outcome| outcome.hold_back_s),
            max_waiting_time_s: spread(JobOutcome::max_wait_s),
            latency_per_token_s: spread(JobOutcome::token_latency_s),
            tokens_per_s: run.tokens_per_s(),
            makespan_s: run.makespan_s,
            steps: run.steps,
            preemptions: run.preemptions,
            evictions: run.evictions,
            swaps_out: run.swaps_out,
            recomputed_tokens: run.recomputed_tokens,
            cached_tokens: run.cached_tokens,
            mean_kv_blocks: run.mean_kv_blocks,
            peak_kv_blocks: run.peak_kv_blocks,
            prediction_mae: run.prediction_mae,
        }
    }
}

//! The results of a simulation: times and counts per request, and totals.

use crate::job::Job;

/// Times and counts of one answered request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct JobOutcome {
    /// The job's number.
    pub id: u64,
    /// Arrival, seconds on the virtual clock.
    pub arrival_s: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Output tokens.
    pub output_tokens: u32,
    /// Seconds from arrival to first token.
    pub ttft_s: f64,
    /// Seconds from arrival to last token.
    pub latency_s: f64,
    /// Longest time between two tokens, seconds; 0 for a single token.
    pub longest_gap_s: f64,
    /// Least seconds per token at which a reader never waits
    /// ([`Delivery::smooth_s`](trail_platform::delivery::Delivery::smooth_s)).
    pub smooth_s: f64,
    /// Seconds to hold the first token back for it at
    /// [`READING_SPEED`](trail_platform::delivery::READING_SPEED).
    pub hold_back_s: f64,
    /// Number of times it left the batch unfinished.
    pub preemptions: u32,
    /// Number of times its KV was dropped.
    pub evictions: u32,
    /// Number of times its KV was swapped out.
    pub swaps: u32,
    /// The worker that ran it.
    pub worker: u32,
}

impl JobOutcome {
    /// The outcome of `job`, whose arrival is its only time yet.
    pub(crate) fn begun(job: &Job, worker: u32) -> JobOutcome {
        JobOutcome {
            id: job.id,
            arrival_s: job.arrival_ns as f64 * 1e-9,
            prompt_tokens: job.prompt_tokens,
            output_tokens: job.output_tokens,
            worker,
            ..JobOutcome::default()
        }
    }

    /// Longest time without a token, the wait for the first one included, seconds (Learning to
    /// Rank's `max_waiting_time`).
    pub fn max_wait_s(&self) -> f64 {
        self.ttft_s.max(self.longest_gap_s)
    }

    /// Latency per output token, seconds (Learning to Rank's latency).
    pub fn token_latency_s(&self) -> f64 {
        self.latency_s / f64::from(self.output_tokens.max(1))
    }
}

/// A simulated run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimulationRun {
    /// Outcomes of the answered requests, in the order of the jobs.
    pub outcomes: Vec<JobOutcome>,
    /// True if the run was stopped with requests unanswered.
    pub interrupted: bool,
    /// From the first arrival to the last token, seconds.
    pub makespan_s: f64,
    /// Output tokens per second while requests waited; of the whole run if none ever did.
    pub saturated_tokens_per_s: f64,
    /// Output tokens.
    pub tokens: u64,
    /// Steps.
    pub steps: u64,
    /// Requests that left the batch unfinished.
    pub preemptions: u64,
    /// Requests that lost their KV, to be recomputed.
    pub evictions: u64,
    /// Swaps of a request's KV to the host.
    pub swaps_out: u64,
    /// Swaps back to the device.
    pub swaps_in: u64,
    /// Tokens recomputed after evictions.
    pub recomputed_tokens: u64,
    /// Prompt tokens whose KV was found in the prefix cache.
    pub cached_tokens: u64,
    /// Time average of the KV blocks in use, all workers together.
    pub mean_kv_blocks: f64,
    /// Largest number of KV blocks in use on one worker.
    pub peak_kv_blocks: u32,
    /// Mean absolute error of the refined predictions, tokens; `None` without predictions.
    pub prediction_mae: Option<f64>,
}

impl SimulationRun {
    /// Output tokens per second over the whole run.
    pub fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / self.makespan_s.max(1e-9)
    }
}

//! Figures of runs: percentiles, ratios to FCFS, and their medians over rounds.

use serde::Serialize;
use serde_json::{Value, json};
use trail_cli::Spread;
use trail_platform::delivery::smooth_share;
use trail_platform::stats::Sorted;
use trail_runtime::engine::Stats;

use super::runner::Completed;
use crate::commands::load::Load;

/// One policy's figures in one run, in seconds of the run's clock.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The policy's name.
    pub policy: String,
    /// Requests answered.
    pub requests: usize,
    /// From arrival to last token.
    pub latency_s: Spread,
    /// From arrival to first token.
    pub ttft_s: Spread,
    /// Longest time between two tokens of a request.
    pub longest_gap_s: Spread,
    /// Least seconds per token at which a reader never waits, of each request.
    pub smooth_s: Vec<f64>,
    /// Longest time without a token, the wait for the first one included.
    pub max_wait_s: Spread,
    /// Output tokens per second over the whole run.
    pub tokens_per_s: f64,
    /// The engine's counters at the end.
    pub stats: Stats,
}

/// Figures of FCFS divided by those of a policy: above 1 the policy is better.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratios {
    /// Of mean latencies.
    pub latency_mean: f64,
    /// Of median latencies.
    pub latency_p50: f64,
    /// Of 99th percentiles of latency.
    pub latency_p99: f64,
    /// Of mean times to first token.
    pub ttft_mean: f64,
    /// Of 99th percentiles of the longest gap.
    pub longest_gap_p99: f64,
    /// Of 99th percentiles of the longest wait.
    pub max_wait_p99: f64,
}

impl Summary {
    /// The figures of one run.
    pub fn new(policy: &str, completed: &Completed) -> Summary {
        let outcomes = &completed.run.outcomes;
        let tokens: usize = outcomes.iter().map(|o| o.tokens.len()).sum();
        Summary {
            policy: policy.into(),
            requests: outcomes.len(),
            latency_s: Spread::of(outcomes.iter().map(|o| o.latency_s)),
            ttft_s: Spread::of(outcomes.iter().map(|o| o.ttft_s)),
            longest_gap_s: Spread::of(outcomes.iter().map(|o| o.longest_gap_s)),
            smooth_s: outcomes.iter().map(|o| o.smooth_s).collect(),
            max_wait_s: Spread::of(outcomes.iter().map(|o| o.max_wait_s())),
            tokens_per_s: tokens as f64 / completed.run.makespan_s,
            stats: completed.stats,
        }
    }

    fn ratios(&self, fcfs: &Summary) -> Ratios {
        Ratios {
            latency_mean: fcfs.latency_s.mean / self.latency_s.mean,
            latency_p50: fcfs.latency_s.p50 / self.latency_s.p50,
            latency_p99: fcfs.latency_s.p99 / self.latency_s.p99,
            ttft_mean: fcfs.ttft_s.mean / self.ttft_s.mean,
            longest_gap_p99: fcfs.longest_gap_s.p99 / self.longest_gap_s.p99,
            max_wait_p99: fcfs.max_wait_s.p99 / self.max_wait_s.p99,
        }
    }

    /// Share of the requests in which a reader never waits; `factor`: seconds of this machine per
    /// second of the run's clock.
    pub fn smooth_share(&self, factor: f64) -> f64 {
        smooth_share(self.smooth_s.iter().map(|seconds| seconds * factor))
    }

    /// With times in seconds of this machine.
    pub fn json(&self, factor: f64) -> Value {
        let short = |spread: &Spread| {
            let Spread { mean, p50, p99, .. } = spread.scaled(factor);
            json!({ "mean": mean, "p50": p50, "p99": p99 })
        };
        json!({
            "requests": self.requests,
            "latency_s": self.latency_s.scaled(factor),
            "ttft_s": short(&self.ttft_s),
            "longest_gap_s": short(&self.longest_gap_s),
            "smooth_share": self.smooth_share(factor),
            "max_wait_s": short(&self.max_wait_s),
            "tokens_per_s": self.tokens_per_s / factor,
            "preemptions": self.stats.preemptions,
            "evictions": self.stats.evictions,
            "recomputed_tokens": self.stats.recomputed_tokens,
            "prediction": {
                "mae": self.stats.prediction_mae(),
                "fresh_share": self.stats.fresh_share(),
            },
        })
    }
}

/// Figures of the recording run.
#[derive(Clone, Debug)]
pub struct Recording {
    tokens_per_s: f64,
    /// Mean output length, tokens.
    mean_tokens: f64,
    fit: Option<(f64, f64)>,
}

impl Recording {
    /// The figures of `completed`.
    pub fn of(completed: &Completed) -> Recording {
        let outcomes = &completed.run.outcomes;
        let tokens: usize = outcomes.iter().map(|outcome| outcome.tokens.len()).sum();
        Recording {
            tokens_per_s: completed.run.saturated_tokens_per_s,
            mean_tokens: tokens as f64 / outcomes.len() as f64,
            fit: completed.run.fit.as_ref().map(|fit| (fit.factor(), fit.residual())),
        }
    }

    /// Capacity: tokens per second of the run's clock while requests wait.
    pub fn tokens_per_s(&self) -> f64 {
        self.tokens_per_s
    }

    /// Seconds of this machine per second of the run's clock, and the deviation of single steps;
    /// `None` by the wall clock.
    pub fn fit(&self) -> Option<(f64, f64)> {
        self.fit
    }

    /// Capacity in requests per second of the run's clock.
    pub fn requests_per_s(&self) -> f64 {
        self.tokens_per_s / self.mean_tokens
    }
}

/// One load and seed.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The load.
    pub load: Load,
    /// Seed of the arrival times.
    pub seed: i64,
    /// By round, then by policy.
    pub rounds: Vec<Vec<Summary>>,
}

impl Cell {
    /// Figures of each policy: of the round with the median mean latency.
    pub fn summaries(&self) -> Vec<&Summary> {
        let policies = 0..self.rounds.first().map_or(0, Vec::len);
        let middle = |policy: usize| {
            let mut of_policy: Vec<&Summary> =
                self.rounds.iter().map(|round| &round[policy]).collect();
            of_policy.sort_by(|a, b| a.latency_s.mean.total_cmp(&b.latency_s.mean));
            of_policy[of_policy.len() / 2]
        };
        policies.map(middle).collect()
    }

    /// Ratios of FCFS to `policy`, by round; empty without FCFS.
    pub fn ratios(&self, policy: &str) -> Vec<Ratios> {
        let of = |round: &[Summary], name: &str| {
            round.iter().find(|summary| summary.policy == name).cloned()
        };
        self.rounds
            .iter()
            .filter_map(|round| Some(of(round, policy)?.ratios(&of(round, "fcfs")?)))
            .collect()
    }

    pub fn policies(&self) -> Vec<String> {
        let first = self.rounds.first();
        first.map_or(Vec::new(), |round| round.iter().map(|s| s.policy.clone()).collect())
    }
}

/// Medians of ratios, field by field.
pub fn median(ratios: &[Ratios]) -> Option<Ratios> {
    let middle = |field: fn(&Ratios) -> f64| Sorted::of(ratios.iter().map(field)).median();
    (!ratios.is_empty()).then(|| Ratios {
        latency_mean: middle(|r| r.latency_mean),
        latency_p50: middle(|r| r.latency_p50),
        latency_p99: middle(|r| r.latency_p99),
        ttft_mean: middle(|r| r.ttft_mean),
        longest_gap_p99: middle(|r| r.longest_gap_p99),
        max_wait_p99: middle(|r| r.max_wait_p99),
    })
}

/// Least and largest ratio of mean latencies.
pub fn spread(ratios: &[Ratios]) -> [f64; 2] {
    let means = ratios.iter().map(|r| r.latency_mean);
    [means.clone().fold(f64::INFINITY, f64::min), means.fold(0.0, f64::max)]
}

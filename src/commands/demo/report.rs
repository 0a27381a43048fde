//! What a run amounts to: percentiles, ratios, the table and the JSON object.

use serde::Serialize;
use serde_json::{Map, Value, json};
use trail_runtime::engine::Stats;
use trail_setup::Spread;
use trail_setup::drive::Outcome;

/// One policy's figures.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The policy's name.
    pub policy: String,
    /// Requests answered.
    pub requests: usize,
    /// Seconds from arrival to last token.
    pub latency_s: Spread,
    /// Seconds from arrival to first token.
    pub ttft_s: Spread,
    /// Output tokens per second over the whole run.
    pub tokens_per_s: f64,
    /// The engine's counters at the end.
    pub stats: Stats,
}

impl Summary {
    /// Sums up one run of `makespan_s` seconds.
    pub fn new(policy: &str, outcomes: &[Outcome], makespan_s: f64, stats: Stats) -> Summary {
        let tokens: usize = outcomes.iter().map(|o| o.tokens.len()).sum();
        Summary {
            policy: policy.into(),
            requests: outcomes.len(),
            latency_s: Spread::of(outcomes.iter().map(|o| o.latency_s)),
            ttft_s: Spread::of(outcomes.iter().map(|o| o.ttft_s)),
            tokens_per_s: tokens as f64 / makespan_s,
            stats,
        }
    }

    fn json(&self) -> Value {
        let Spread { mean, p50, p99, .. } = self.ttft_s;
        json!({
            "requests": self.requests,
            "latency_s": self.latency_s,
            "ttft_s": { "mean": mean, "p50": p50, "p99": p99 },
            "tokens_per_s": self.tokens_per_s,
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

/// Under which conditions the policies were compared.
#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    /// What ran the model.
    pub device: String,
    /// The model's name.
    pub model: String,
    /// Arrival process: `poisson` or `burst`.
    pub arrivals: String,
    /// Arrival rate over capacity; null for a burst.
    pub load: Option<f64>,
    /// Measured capacity: requests per second with all slots busy.
    pub capacity_requests_per_s: f64,
    /// Sequences in one step.
    pub slots: usize,
    /// KV blocks of 16 tokens.
    pub kv_blocks: usize,
    /// Most output tokens of a request.
    pub max_tokens: u32,
    /// Seed of the arrival times.
    pub seed: u64,
}

/// All runs, in the order they were made.
#[derive(Clone, Debug)]
pub struct Report {
    /// Under which conditions.
    pub conditions: Conditions,
    /// The runs.
    pub summaries: Vec<Summary>,
}

impl Report {
    /// The figures of FCFS, which ratios are taken against, where it was run.
    fn fcfs(&self) -> Option<&Summary> {
        self.summaries.iter().find(|summary| summary.policy == "fcfs")
    }

    /// The JSON object of `trail-rt demo --json`. Ratios are FCFS divided by the policy: above 1 is better.
    pub fn json(&self) -> Value {
        let mut object = match json!(self.conditions) {
            Value::Object(object) => object,
            _ => Map::new(),
        };
        let policies: Map<_, _> =
            self.summaries.iter().map(|s| (s.policy.clone(), s.json())).collect();
        object.insert("policies".into(), policies.into());
        if let Some(fcfs) = self.fcfs() {
            let ratios: Map<_, _> = self
                .summaries
                .iter()
                .filter(|s| s.policy != "fcfs")
                .map(|s| (s.policy.clone(), ratios(fcfs, s)))
                .collect();
            object.insert("ratio_to_fcfs".into(), ratios.into());
        }
        object.into()
    }

    /// The table, one line a policy, with the conditions above it.
    pub fn table(&self) -> String {
        let c = &self.conditions;
        let load = match c.load {
            Some(load) => format!("Poisson arrivals at {load:.2} x capacity"),
            None => "a burst: all at once".into(),
        };
        let mut text = format!(
            "{} requests, {load} ({:.2} requests/s), {} slots, {} KV blocks, max_tokens {}, on {}\n\n",
            self.summaries.first().map_or(0, |s| s.requests),
            c.capacity_requests_per_s,
            c.slots,
            c.kv_blocks,
            c.max_tokens,
            c.device
        );
        text += "         |         latency, s          |      TTFT, s         | tokens |         | recomp. | predict |  fresh | FCFS / policy\n";
        text += "policy   |  mean    p50    p90    p99  |  mean    p50    p99  |   /s   | preempt | tokens  |   MAE   |    %   | lat.   TTFT\n";
        text += "---------+-----------------------------+----------------------+--------+---------+---------+---------+--------+--------------\n";
        for summary in &self.summaries {
            text += &self.row(summary);
        }
        text
    }

    fn row(&self, s: &Summary) -> String {
        let (l, t) = (s.latency_s, s.ttft_s);
        let optional = |value: Option<f64>, digits: usize| {
            value.map_or("-".into(), |value| format!("{value:.digits$}"))
        };
        let ratio = self.fcfs().map_or("-".into(), |fcfs| {
            format!("{:4.2}x {:5.2}x", fcfs.latency_s.mean / l.mean, fcfs.ttft_s.mean / t.mean)
        });
        format!(
            "{:<8} | {:6.2} {:6.2} {:6.2} {:6.2} | {:6.2} {:6.2} {:6.2} | {:6.0} | {:7} | {:7} | {:>7} | {:>6} | {ratio}\n",
            s.policy,
            l.mean,
            l.p50,
            l.p90,
            l.p99,
            t.mean,
            t.p50,
            t.p99,
            s.tokens_per_s,
            s.stats.preemptions,
            s.stats.recomputed_tokens,
            optional(s.stats.prediction_mae(), 1),
            optional(s.stats.fresh_share().map(|share| 100.0 * share), 2),
        )
    }
}

fn ratios(fcfs: &Summary, other: &Summary) -> Value {
    json!({
        "latency_mean": fcfs.latency_s.mean / other.latency_s.mean,
        "latency_p50": fcfs.latency_s.p50 / other.latency_s.p50,
        "latency_p99": fcfs.latency_s.p99 / other.latency_s.p99,
        "ttft_mean": fcfs.ttft_s.mean / other.ttft_s.mean,
    })
}

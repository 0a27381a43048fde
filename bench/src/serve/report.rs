//! What `bench serve` found: one line, or one JSON object, a run.

use serde::Serialize;
use serde_json::{Value, json};
use trail_runtime::engine::Stats;
use trail_setup::Spread;
use trail_setup::drive::Outcome;

/// Under which conditions the policies were compared.
#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    /// What ran the model.
    pub device: String,
    /// The model's name.
    pub model: String,
    /// Whether its weights are random.
    pub random_weights: bool,
    /// Requests of each run.
    pub requests: usize,
    /// Output tokens of each run.
    pub output_tokens: u64,
    /// Measured capacity: all requests at once, first come first served.
    pub capacity_requests_per_s: f64,
    /// The same in output tokens.
    pub capacity_tokens_per_s: f64,
    /// Sequences in one step.
    pub slots: usize,
    /// KV blocks of 16 tokens.
    pub kv_blocks: usize,
    /// Most output tokens of a request.
    pub max_tokens: u32,
    /// Seed of everything random.
    pub seed: u64,
    /// Mean absolute error that was measured of the predictions that are replayed, tokens.
    pub replayed_mae: f64,
}

/// The most KV in use, as seen every few milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Peak {
    /// Blocks on the device.
    pub kv_blocks: u64,
    /// Blocks at the host.
    pub host_blocks: u64,
}

impl Peak {
    /// Looks again.
    pub fn see(&mut self, stats: &Stats) {
        self.kv_blocks = self.kv_blocks.max(stats.blocks_used);
        self.host_blocks = self.host_blocks.max(stats.host_blocks_used);
    }
}

/// One policy's figures at one load.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The policy, with its share c.
    pub policy: String,
    /// Arrival rate over capacity; null for a burst.
    pub load: Option<f64>,
    /// Seconds from arrival to last token.
    pub latency_s: Spread,
    /// Seconds from arrival to first token.
    pub ttft_s: Spread,
    /// Seconds from one token to the next, a request's mean; of those with more than one.
    pub tpot_s: Spread,
    /// Output tokens a second over the whole run.
    pub tokens_per_s: f64,
    /// Seconds from first arrival to last token.
    pub makespan_s: f64,
    /// Times a running request lost its place.
    pub preemptions: u64,
    /// Times a request lost its KV and was computed again.
    pub recomputes: u64,
    /// Tokens that were.
    pub recomputed_tokens: u64,
    /// Times a request's KV left for the host.
    pub swaps_out: u64,
    /// Times it came back.
    pub swaps_in: u64,
    /// Most KV in use.
    pub peak: Peak,
    /// Mean absolute error of the predictions as replayed, tokens.
    pub prediction_mae: Option<f64>,
    /// Every request had exactly the tokens that were forced; a run that is not so is no result.
    pub verified: bool,
}

impl Run {
    /// Sums a verified run up.
    pub fn new(
        policy: &str,
        load: Option<f64>,
        outcomes: &[Outcome],
        makespan_s: f64,
        stats: Stats,
        peak: Peak,
    ) -> Run {
        let tokens: usize = outcomes.iter().map(|outcome| outcome.tokens.len()).sum();
        let several = outcomes.iter().filter(|outcome| outcome.tokens.len() > 1);
        let tpot = several.map(|o| (o.latency_s - o.ttft_s) / (o.tokens.len() - 1) as f64);
        Run {
            policy: policy.into(),
            load,
            latency_s: Spread::of(outcomes.iter().map(|outcome| outcome.latency_s)),
            ttft_s: Spread::of(outcomes.iter().map(|outcome| outcome.ttft_s)),
            tpot_s: Spread::of(tpot),
            tokens_per_s: tokens as f64 / makespan_s,
            makespan_s,
            preemptions: stats.preemptions,
            recomputes: stats.evictions,
            recomputed_tokens: stats.recomputed_tokens,
            swaps_out: stats.swaps_out,
            swaps_in: stats.swaps_in,
            peak,
            prediction_mae: stats.prediction_mae(),
            verified: true,
        }
    }

    fn row(&self) -> String {
        let Run { latency_s: l, ttft_s: t, tpot_s: p, .. } = self;
        format!(
            "{:>5} {:<12}| {:7.2} {:7.2} {:7.2} {:7.2} | {:7.2} {:7.2} {:7.2} {:7.2} | {:6.1} {:6.1} {:6.1} | {:7.0} | {:7} {:7} {:7} | {:7}\n",
            self.load.map_or("burst".into(), |load| format!("{load:.2}")),
            self.policy,
            l.mean,
            l.p50,
            l.p95,
            l.p99,
            t.mean,
            t.p50,
            t.p95,
            t.p99,
            p.mean * 1e3,
            p.p95 * 1e3,
            p.p99 * 1e3,
            self.tokens_per_s,
            self.preemptions,
            self.swaps_out,
            self.recomputes,
            self.peak.kv_blocks,
        )
    }
}

/// All runs, in the order they were made.
#[derive(Clone, Debug)]
pub struct Report {
    /// Under which conditions.
    pub conditions: Conditions,
    /// The runs.
    pub runs: Vec<Run>,
}

impl Report {
    /// What must be said beside every figure.
    fn caveat(&self) -> String {
        let weights = if self.conditions.random_weights { "Random weights" } else { "Own weights" };
        format!(
            "{weights}, random prompts, forced output lengths, replayed predictions: as wrong as the demo probe's (mean error {:.1} tokens), not this model's.",
            self.conditions.replayed_mae
        )
    }

    /// The JSON object.
    pub fn json(&self) -> Value {
        let mut object = json!(self.conditions);
        object["forced_lengths"] = json!(true);
        object["replayed_predictions"] = json!(true);
        object["caveat"] = json!(self.caveat());
        object["runs"] = json!(self.runs);
        object
    }

    /// The table, one line a run, with the conditions above it.
    pub fn table(&self) -> String {
        let c = &self.conditions;
        let mut text = format!(
            "{} requests, {} output tokens, {} on {}, {} slots, {} KV blocks\ncapacity {:.2} requests/s, {:.0} tokens/s (all at once, fcfs)\n\n",
            c.requests,
            c.output_tokens,
            c.model,
            c.device,
            c.slots,
            c.kv_blocks,
            c.capacity_requests_per_s,
            c.capacity_tokens_per_s
        );
        text += "                  |           latency, s            |             TTFT, s             |      TPOT, ms        | tokens  |                 recom-  | peak KV\n";
        text += " load policy      |    mean     p50     p95     p99 |    mean     p50     p95     p99 |   mean    p95    p99 |   /s    | preempt   swaps  putes  | blocks\n";
        text += "------------------+---------------------------------+---------------------------------+----------------------+---------+-------------------------+--------\n";
        self.runs.iter().for_each(|run| text += &run.row());
        text += "\nEvery request had exactly its forced length in every run.\n";
        text + &self.caveat()
    }
}

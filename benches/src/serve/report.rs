//! The report of `bench serve`: one line, or one JSON object, per run.

use serde::Serialize;
use serde_json::{Value, json};
use trail_cli::drive::RequestOutcome;
use trail_cli::{Spread, Table};
use trail_platform::delivery::smooth_share;
use trail_runtime::engine::Stats;

/// Conditions of the comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    /// Device that ran the model.
    pub device: String,
    /// Name of the model.
    pub model: String,
    /// True if the weights are random.
    pub random_weights: bool,
    /// Requests of each run, those of later turns included.
    pub requests: usize,
    /// Turns of a conversation.
    pub turns: u32,
    /// Tokens with which all prompts begin alike.
    pub shared_prefix: u32,
    /// Output tokens of each run.
    pub output_tokens: u64,
    /// Measured capacity: all requests at once, first come first served.
    pub capacity_requests_per_s: f64,
    /// The same capacity in output tokens per second.
    pub capacity_tokens_per_s: f64,
    /// Sequences in one step.
    #[serde(rename = "slots")]
    pub max_running: usize,
    /// KV blocks of 16 tokens.
    pub kv_blocks: usize,
    /// Most output tokens of a request.
    pub max_tokens: u32,
    /// Seed of lengths, prompts, predictions and arrivals.
    pub seed: i64,
    /// Source of the replayed predictions.
    pub noise: String,
    /// Mean absolute error of the replayed predictions, tokens.
    pub replayed_mae: Option<f64>,
}

/// Largest KV use, sampled every few milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Peak {
    /// Blocks on the device.
    pub kv_blocks: u64,
    /// Blocks in host memory.
    pub host_blocks: u64,
}

impl Peak {
    /// Takes a sample.
    pub fn sample(&mut self, stats: &Stats) {
        self.kv_blocks = self.kv_blocks.max(stats.blocks_used);
        self.host_blocks = self.host_blocks.max(stats.host_blocks_used);
    }
}

/// Results of one policy at one load.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyRun {
    /// Name of the policy, with its share c.
    pub policy: String,
    /// Arrival rate over capacity; null for a burst.
    pub load: Option<f64>,
    /// Seconds from arrival to last token.
    pub latency_s: Spread,
    /// Seconds from arrival to first token.
    pub ttft_s: Spread,
    /// A request's mean seconds between tokens; requests with several tokens only.
    pub tpot_s: Spread,
    /// Share of the requests in which a reader of 6 tokens a second never waits.
    pub smooth_share: f64,
    /// Output tokens per second over the whole run.
    pub tokens_per_s: f64,
    /// Seconds from first arrival to last token.
    pub makespan_s: f64,
    /// Preemptions of running requests.
    pub preemptions: u64,
    /// Evictions: the KV of a request was dropped, to be recomputed.
    pub recomputes: u64,
    /// Recomputed tokens.
    pub recomputed_tokens: u64,
    /// Prompt tokens of all requests.
    pub prompt_tokens: u64,
    /// Prompt tokens that were found in the prefix cache.
    pub cached_tokens: u64,
    /// Seconds from arrival to first token, of later turns only.
    pub later_ttft_s: Option<Spread>,
    /// Swaps of a request's KV to the host.
    pub swaps_out: u64,
    /// Swaps of a request's KV back to the device.
    pub swaps_in: u64,
    /// Largest KV use.
    pub peak: Peak,
    /// Mean absolute error of the replayed predictions, tokens.
    pub prediction_mae: Option<f64>,
    /// Every request had exactly its forced number of tokens; other runs are errors, not results.
    pub verified: bool,
}

impl PolicyRun {
    /// Results of a verified run, whose first outcomes are those of first turns.
    pub fn new(
        policy: &str,
        load: Option<f64>,
        (outcomes, first_turns): (&[RequestOutcome], usize),
        makespan_s: f64,
        stats: Stats,
        peak: Peak,
    ) -> PolicyRun {
        let later = &outcomes[first_turns..];
        let later_ttft = Spread::of(later.iter().map(|outcome| outcome.ttft_s));
        let tokens: usize = outcomes.iter().map(|outcome| outcome.tokens.len()).sum();
        let several = outcomes.iter().filter(|outcome| outcome.tokens.len() > 1);
        let tpot = several.map(|o| (o.latency_s - o.ttft_s) / (o.tokens.len() - 1) as f64);
        PolicyRun {
            policy: policy.into(),
            load,
            latency_s: Spread::of(outcomes.iter().map(|outcome| outcome.latency_s)),
            ttft_s: Spread::of(outcomes.iter().map(|outcome| outcome.ttft_s)),
            tpot_s: Spread::of(tpot),
            smooth_share: smooth_share(outcomes.iter().map(|outcome| outcome.smooth_s)),
            tokens_per_s: tokens as f64 / makespan_s,
            makespan_s,
            preemptions: stats.preemptions,
            recomputes: stats.evictions,
            recomputed_tokens: stats.recomputed_tokens,
            prompt_tokens: stats.prompt_tokens,
            cached_tokens: stats.cached_tokens,
            later_ttft_s: (!later.is_empty()).then_some(later_ttft),
            swaps_out: stats.swaps_out,
            swaps_in: stats.swaps_in,
            peak,
            prediction_mae: stats.prediction_mae(),
            verified: true,
        }
    }

    /// The cells of the run's row.
    fn cells(&self) -> Vec<String> {
        let seconds = |spread: Spread| [spread.mean, spread.p50, spread.p95, spread.p99];
        let load = self.load.map_or("burst".into(), |load| format!("{load:.2}"));
        let mut cells = vec![load, self.policy.clone()];
        for spread in [self.latency_s, self.ttft_s] {
            cells.extend(seconds(spread).map(|seconds| format!("{seconds:.2}")));
        }
        let Spread { mean, p95, p99, .. } = self.tpot_s;
        cells.extend([mean, p95, p99].map(|seconds| format!("{:.1}", seconds * 1e3)));
        cells.push(format!("{:.0}", 100.0 * self.smooth_share));
        cells.push(format!("{:.0}", self.tokens_per_s));
        let counts = [self.preemptions, self.swaps_out, self.recomputes, self.peak.kv_blocks];
        cells.extend(counts.map(|count| count.to_string()));
        let cached = self.cached_tokens as f64 / self.prompt_tokens as f64;
        cells.push(format!("{:.0}", cached * 100.0));
        cells.push(self.later_ttft_s.map_or("-".into(), |ttft| format!("{:.3}", ttft.p50)));
        cells
    }
}

/// All runs, in the order they were made.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Conditions of all runs.
    pub conditions: Conditions,
    /// Results of each run.
    pub runs: Vec<PolicyRun>,
}

impl Comparison {
    /// The caveat that belongs to every figure.
    fn caveat(&self) -> String {
        let mae = self.conditions.replayed_mae;
        let error = mae.map_or(String::new(), |mae| format!(", mean error {mae:.1} tokens"));
        let weights = if self.conditions.random_weights { "Random weights" } else { "Own weights" };
        format!(
            "{weights}, random prompts, forced output lengths, replayed predictions ({}{error}), not \
             this model's.",
            self.conditions.noise
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

    /// The conditions, and a table with one line per run.
    pub fn text(&self) -> String {
        let c = &self.conditions;
        let mut table = Table::default()
            .group("", &["load", "policy"])
            .group("latency, s", &["mean", "p50", "p95", "p99"])
            .group("TTFT, s", &["mean", "p50", "p95", "p99"])
            .group("TPOT, ms", &["mean", "p95", "p99"])
            .group("", &["smooth, %", "tokens/s"])
            .group("", &["preempt", "swaps", "recomputes"])
            .group("peak KV", &["blocks"])
            .group("prompts", &["cached, %"])
            .group("later turns", &["TTFT p50, s"]);
        self.runs.iter().for_each(|run| table.row(run.cells()));
        format!(
            "{} requests, {} output tokens, {} on {}, up to {} running, {} KV blocks\n\
             capacity {:.2} requests/s, {:.0} tokens/s (all at once, fcfs)\n\n\
             {table}\n\
             Every request had exactly its forced length in every run.\n{}",
            c.requests,
            c.output_tokens,
            c.model,
            c.device,
            c.max_running,
            c.kv_blocks,
            c.capacity_requests_per_s,
            c.capacity_tokens_per_s,
            self.caveat()
        )
    }
}

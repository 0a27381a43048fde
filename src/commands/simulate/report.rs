//! The report of `simulate`: one line per load and policy, or the figures of each run as JSON.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};
use trail_cli::Table;

use super::figures::Figures;
use super::runner::Capacity;

/// All runs.
pub struct SimulationReport {
    /// In the order they were made.
    pub figures: Vec<Figures>,
    /// By load and seed.
    pub bounds: Vec<Bound>,
    /// By source, device and seed; of the runs whose load is a multiple.
    pub capacities: BTreeMap<String, Capacity>,
}

/// A mean latency below which no policy comes.
#[derive(Clone, Debug, Serialize)]
pub struct Bound {
    /// Load, rate, burst or trace.
    pub load: String,
    /// Seed of the run.
    pub seed: u64,
    /// Seconds.
    pub latency_mean_s: f64,
}

impl SimulationReport {
    /// The JSON object: every run.
    pub fn json(&self) -> Value {
        let capacities: serde_json::Map<String, Value> = self
            .capacities
            .iter()
            .map(|(key, c)| {
                let object = json!({
                    "tokens_per_s": c.tokens_per_s,
                    "requests_per_s": c.requests_per_s,
                });
                (key.clone(), object)
            })
            .collect();
        json!({ "capacity": capacities, "bounds": self.bounds, "runs": self.figures })
    }

    /// The capacities, then the table: means over seeds.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (key, Capacity { tokens_per_s, requests_per_s }) in &self.capacities {
            text += &format!(
                "capacity of {key}: {tokens_per_s:.0} tokens/s = {requests_per_s:.2} requests/s\n"
            );
        }
        format!(
            "{text}\n{}\nwait: the larger of TTFT and the longest gap between two tokens; smooth: \
             a reader of 6 tokens/s never waits; recomp.: tokens recomputed after evictions; cached: prompt \
             tokens found in the prefix cache; KV: blocks in use, time average.\n{}",
            table(&self.figures),
            self.bounds_text()
        )
    }

    /// One line per load: the mean over seeds.
    fn bounds_text(&self) -> String {
        let mut loads: Vec<&str> = self.bounds.iter().map(|bound| bound.load.as_str()).collect();
        loads.dedup();
        let line = |load: &&str| {
            let of = self.bounds.iter().filter(|bound| bound.load == **load);
            let (sum, count) = of
                .fold((0.0, 0.0), |(sum, count), bound| (sum + bound.latency_mean_s, count + 1.0));
            format!("at {load} no policy has a mean latency below {:.2} s\n", sum / count)
        };
        loads.iter().map(line).collect()
    }
}

/// One line per load and policy: means over seeds, and FCFS's mean latency over the policy's with
/// its range.
pub fn table(figures: &[Figures]) -> Table {
    let mut table = Table::default()
        .group("", &["load", "policy"])
        .group("latency, s", &["mean", "p50", "p90", "p99"])
        .group("TTFT, s", &["mean", "p99"])
        .group("wait, s", &["mean", "p99"])
        .group("", &["smooth, %"])
        .group("", &["s/token"])
        .group("", &["tokens/s"])
        .group("", &["preempt", "evict", "swap", "recomp.", "cached", "KV"])
        .group("", &["MAE"])
        .group("FCFS / policy", &["latency", "TTFT", "p99"]);
    let mut lines: Vec<(&str, &str)> = Vec::new();
    for of in figures {
        if !lines.contains(&(&of.load, &of.policy)) {
            lines.push((&of.load, &of.policy));
        }
    }
    for (load, policy) in lines {
        let line: Vec<&Figures> =
            figures.iter().filter(|of| of.load == load && of.policy == policy).collect();
        table.row(cells(&line, figures));
    }
    table
}

fn cells(line: &[&Figures], all: &[Figures]) -> Vec<String> {
    let mean = |of: fn(&Figures) -> f64| {
        line.iter().map(|figures| of(figures)).sum::<f64>() / line.len() as f64
    };
    let seconds = |of: fn(&Figures) -> f64| format!("{:.2}", mean(of));
    let count = |of: fn(&Figures) -> f64| format!("{:.0}", mean(of));
    let ratio = |of: fn(&Figures) -> f64| ratio(line, all, of);
    let mae = line[0].prediction_mae;
    vec![
        line[0].load.clone(),
        line[0].policy.clone(),
        seconds(|f| f.latency_s.mean),
        seconds(|f| f.latency_s.p50),
        seconds(|f| f.latency_s.p90),
        seconds(|f| f.latency_s.p99),
        seconds(|f| f.ttft_s.mean),
        seconds(|f| f.ttft_s.p99),
        seconds(|f| f.max_waiting_time_s.mean),
        seconds(|f| f.max_waiting_time_s.p99),
        format!("{:.0}", 100.0 * mean(|f| f.smooth_share)),
        format!("{:.3}", mean(|f| f.latency_per_token_s.mean)),
        count(|f| f.tokens_per_s),
        count(|f| f.preemptions as f64),
        count(|f| f.evictions as f64),
        count(|f| f.swaps_out as f64),
        count(|f| f.recomputed_tokens as f64),
        count(|f| f.cached_tokens as f64),
        count(|f| f.mean_kv_blocks),
        mae.map_or("-".into(), |mae| format!("{mae:.1}")),
        ratio(|f| f.latency_s.mean),
        ratio(|f| f.ttft_s.mean),
        ratio(|f| f.latency_s.p99),
    ]
}

/// FCFS's figure over the policy's at the same load and seed: the mean, and the range over seeds.
fn ratio(line: &[&Figures], all: &[Figures], of: fn(&Figures) -> f64) -> String {
    let ratios: Vec<f64> = line
        .iter()
        .filter_map(|figures| {
            let same = |f: &&Figures| f.load == figures.load && f.seed == figures.seed;
            let fcfs = all.iter().filter(same).find(|f| f.policy == "fcfs")?;
            Some(of(fcfs) / of(figures))
        })
        .collect();
    if ratios.is_empty() {
        return "-".into();
    }
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    let min = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let max = ratios.iter().copied().fold(0.0, f64::max);
    match ratios.len() {
        1 => format!("{mean:.2}x"),
        _ => format!("{mean:.2}x ({min:.2}-{max:.2})"),
    }
}

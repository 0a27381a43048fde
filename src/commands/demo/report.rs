//! The report: percentiles, ratios, the table and the JSON object.

use std::fmt::Write;

use serde::Serialize;
use serde_json::{Map, Value, json};
use trail_base::stats::Sorted;
use trail_runtime::engine::{Stats, StepCost};
use trail_setup::{Spread, Table};

use super::args::{ClockKind, Load};
use super::runner::Completed;

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
    latency_mean: f64,
    latency_p50: f64,
    latency_p99: f64,
    ttft_mean: f64,
    longest_gap_p99: f64,
    max_wait_p99: f64,
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

    /// With times in seconds of this machine.
    fn json(&self, factor: f64) -> Value {
        let short = |spread: &Spread| {
            let Spread { mean, p50, p99, .. } = spread.scaled(factor);
            json!({ "mean": mean, "p50": p50, "p99": p99 })
        };
        json!({
            "requests": self.requests,
            "latency_s": self.latency_s.scaled(factor),
            "ttft_s": short(&self.ttft_s),
            "longest_gap_s": short(&self.longest_gap_s),
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
    /// Capacity: tokens per second of the run's clock while requests wait.
    tokens_per_s: f64,
    /// Mean output length, tokens.
    mean_tokens: f64,
    /// Seconds of this machine per second of the run's clock, and the deviation of single steps; 1
    /// and none by the wall clock.
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

    /// Capacity in requests per second of the run's clock.
    pub fn requests_per_s(&self) -> f64 {
        self.tokens_per_s / self.mean_tokens
    }
}

/// Conditions of the comparison.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Description of the device.
    pub device: String,
    /// The model's name.
    pub model: String,
    /// Most sequences in a step.
    pub slots: usize,
    /// KV blocks of 16 tokens.
    pub kv_blocks: usize,
    /// Most output tokens of a request.
    pub max_tokens: u32,
    /// Source of time.
    pub clock: ClockKind,
    /// Costs of a simulated clock.
    pub step_cost: Option<StepCost>,
    /// Real duration of all runs, seconds.
    pub wall_s: f64,
}

/// One load and seed.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The load.
    pub load: Load,
    /// Seed of the arrival times.
    pub seed: u64,
    /// By round, then by policy.
    pub rounds: Vec<Vec<Summary>>,
}

impl Cell {
    /// Figures of each policy: of the round with the median mean latency.
    fn summaries(&self) -> Vec<&Summary> {
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
    fn ratios(&self, policy: &str) -> Vec<Ratios> {
        let of = |round: &[Summary], name: &str| {
            round.iter().find(|summary| summary.policy == name).cloned()
        };
        self.rounds
            .iter()
            .filter_map(|round| Some(of(round, policy)?.ratios(&of(round, "fcfs")?)))
            .collect()
    }

    fn policies(&self) -> Vec<String> {
        let first = self.rounds.first();
        first.map_or(Vec::new(), |round| round.iter().map(|s| s.policy.clone()).collect())
    }
}

/// Medians of ratios, field by field.
fn median(ratios: &[Ratios]) -> Option<Ratios> {
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
fn spread(ratios: &[Ratios]) -> [f64; 2] {
    let means = ratios.iter().map(|r| r.latency_mean);
    [means.clone().fold(f64::INFINITY, f64::min), means.fold(0.0, f64::max)]
}

/// All runs.
#[derive(Clone, Debug)]
pub struct Report {
    /// Conditions that all cells share.
    pub conditions: Conditions,
    /// Figures of the recording run.
    pub recording: Recording,
    /// Loads and seeds, in the order they were run.
    pub cells: Vec<Cell>,
}

impl Report {
    /// Seconds of this machine per second of the run's clock.
    pub fn factor(&self) -> f64 {
        self.recording.fit.map_or(1.0, |(factor, _)| factor)
    }

    /// Title of the plot, which shows the first cell.
    pub fn title(&self) -> String {
        match self.cells.first().map(|cell| cell.load) {
            Some(Load::Rate(load)) => format!("{} at {load:.2} x capacity", self.conditions.model),
            _ => format!("{}, a burst", self.conditions.model),
        }
    }

    /// The JSON object of `trail-rt demo --json`: one cell's figures at the top level, those of
    /// several cells in `cells`.
    pub fn json(&self) -> Value {
        let (c, factor) = (&self.conditions, self.factor());
        let mut object = object(json!({
            "device": c.device,
            "model": c.model,
            "capacity_requests_per_s": self.recording.requests_per_s() / factor,
            "capacity_tokens_per_s": self.recording.tokens_per_s / factor,
            "slots": c.slots,
            "kv_blocks": c.kv_blocks,
            "max_tokens": c.max_tokens,
            "clock": c.clock,
            "step_cost_ns": c.step_cost,
            "machine_factor": self.recording.fit.map(|(factor, _)| factor),
            "residual": self.recording.fit.map(|(_, residual)| residual),
            "wall_s": c.wall_s,
        }));
        match &self.cells[..] {
            [cell] => object.extend(self.cell_json(cell)),
            cells => {
                let cells: Vec<Value> =
                    cells.iter().map(|cell| self.cell_json(cell).into()).collect();
                object.insert("cells".into(), cells.into());
            }
        }
        object.into()
    }

    fn cell_json(&self, cell: &Cell) -> Map<String, Value> {
        let (arrivals, load) = match cell.load {
            Load::Rate(load) => ("poisson", Some(load)),
            Load::Burst => ("burst", None),
        };
        let policies: Map<String, Value> = cell
            .summaries()
            .iter()
            .map(|summary| (summary.policy.clone(), summary.json(self.factor())))
            .collect();
        let mut object = object(json!({
            "arrivals": arrivals,
            "load": load,
            "seed": cell.seed,
            "policies": policies,
        }));
        let (mut ratios, mut spreads) = (Map::new(), Map::new());
        for policy in cell.policies().iter().filter(|policy| *policy != "fcfs") {
            let by_round = cell.ratios(policy);
            if let Some(median) = median(&by_round) {
                ratios.insert(policy.clone(), json!(median));
                spreads.insert(policy.clone(), json!(spread(&by_round)));
            }
        }
        if !ratios.is_empty() {
            object.insert("ratio_to_fcfs".into(), ratios.into());
        }
        if cell.rounds.len() > 1 && !spreads.is_empty() {
            object.insert("latency_mean_ratio_spread".into(), spreads.into());
        }
        object
    }

    /// The conditions, then a table: a line per policy of the only cell, or per load and policy.
    pub fn text(&self) -> String {
        let (c, factor) = (&self.conditions, self.factor());
        let requests = self.cells.first().map_or(0, |cell| cell.summaries()[0].requests);
        let mut text = format!(
            "{requests} requests, capacity {:.0} tokens/s = {:.2} requests/s, {} slots, {} KV \
             blocks, max_tokens {}, on {}\n",
            self.recording.tokens_per_s / factor,
            self.recording.requests_per_s() / factor,
            c.slots,
            c.kv_blocks,
            c.max_tokens,
            c.device
        );
        match self.recording.fit {
            Some((factor, residual)) => {
                let _ = writeln!(
                    text,
                    "Simulated clock: each step takes its calibrated cost, so the ratios do not \
                     depend on other load of this machine.\nSeconds are scaled by {factor:.3} to \
                     this machine (steps deviate by {:.0} %). All runs took {:.0} s.",
                    100.0 * residual,
                    c.wall_s
                );
            }
            None => {
                let _ = writeln!(
                    text,
                    "Wall clock: other load of this machine changes the figures. All runs took \
                     {:.0} s.",
                    c.wall_s
                );
            }
        }
        let mut table = Table::default()
            .group("", &["load", "policy"])
            .group("latency, s", &["mean", "p50", "p99"])
            .group("TTFT, s", &["mean", "p99"])
            .group("p99, s", &["gap", "wait"])
            .group("", &["tokens/s"])
            .group("", &["preempt", "evict", "recomp."])
            .group("", &["MAE"])
            .group("FCFS / policy", &["latency", "TTFT"]);
        for load in self.loads() {
            let cells: Vec<&Cell> = self.cells.iter().filter(|cell| cell.load == load).collect();
            for (index, policy) in cells[0].policies().iter().enumerate() {
                table.row(self.row(load, policy, index, &cells));
            }
        }
        format!(
            "{text}\n{table}\ngap: longest time between two tokens of a request; wait: the \
                 larger of gap and TTFT; recomp.: tokens recomputed after evictions.\n"
        )
    }

    /// The loads, in order, once each.
    fn loads(&self) -> Vec<Load> {
        let mut loads: Vec<Load> = Vec::new();
        for cell in &self.cells {
            if !loads.contains(&cell.load) {
                loads.push(cell.load);
            }
        }
        loads
    }

    /// One policy at one load: means over seeds; the median ratio, and its range over seeds and
    /// rounds.
    fn row(&self, load: Load, policy: &str, index: usize, cells: &[&Cell]) -> Vec<String> {
        let factor = self.factor();
        let summaries: Vec<&Summary> = cells.iter().map(|cell| cell.summaries()[index]).collect();
        let mean = |field: fn(&Summary) -> f64| {
            summaries.iter().map(|summary| field(summary)).sum::<f64>() / summaries.len() as f64
        };
        let seconds = |field: fn(&Summary) -> f64| format!("{:.2}", mean(field) * factor);
        let count = |field: fn(&Summary) -> f64| format!("{:.0}", mean(field));
        let ratios: Vec<Ratios> = cells.iter().flat_map(|cell| cell.ratios(policy)).collect();
        let [latency, ttft] = median(&ratios).map_or(["-".to_owned(), "-".to_owned()], |median| {
            let [least, most] = spread(&ratios);
            let range = match ratios.len() {
                1 => String::new(),
                _ => format!(" ({least:.2}-{most:.2})"),
            };
            [format!("{:.2}x{range}", median.latency_mean), format!("{:.2}x", median.ttft_mean)]
        });
        let mae = summaries[0].stats.prediction_mae();
        vec![
            load.to_string(),
            policy.to_owned(),
            seconds(|s| s.latency_s.mean),
            seconds(|s| s.latency_s.p50),
            seconds(|s| s.latency_s.p99),
            seconds(|s| s.ttft_s.mean),
            seconds(|s| s.ttft_s.p99),
            seconds(|s| s.longest_gap_s.p99),
            seconds(|s| s.max_wait_s.p99),
            format!("{:.0}", mean(|s| s.tokens_per_s) / factor),
            count(|s| s.stats.preemptions as f64),
            count(|s| s.stats.evictions as f64),
            count(|s| s.stats.recomputed_tokens as f64),
            mae.map_or("-".into(), |mae| format!("{mae:.1}")),
            latency,
            ttft,
        ]
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

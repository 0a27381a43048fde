//! The report: the table and the JSON object.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use trail_cli::Table;
use trail_runtime::engine::StepCost;

use super::args::ClockKind;
use super::summary::{Cell, Ratios, Recording, Summary, median, spread};
use crate::commands::load::Load;

/// Conditions of the comparison.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Description of the device.
    pub device: String,
    /// The model's name.
    pub model: String,
    /// Most sequences in a step.
    pub max_running: usize,
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

/// All runs.
#[derive(Clone, Debug)]
pub struct DemoReport {
    /// Conditions that all cells share.
    pub conditions: Conditions,
    /// Figures of the recording run.
    pub recording: Recording,
    /// Loads and seeds, in the order they were run.
    pub cells: Vec<Cell>,
}

impl DemoReport {
    /// Seconds of this machine per second of the run's clock.
    pub fn factor(&self) -> f64 {
        self.recording.fit().map_or(1.0, |(factor, _)| factor)
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
            "capacity_tokens_per_s": self.recording.tokens_per_s() / factor,
            "slots": c.max_running,
            "kv_blocks": c.kv_blocks,
            "max_tokens": c.max_tokens,
            "clock": c.clock,
            "step_cost_ns": c.step_cost,
            "machine_factor": self.recording.fit().map(|(factor, _)| factor),
            "residual": self.recording.fit().map(|(_, residual)| residual),
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
            "{requests} requests, capacity {:.0} tokens/s = {:.2} requests/s, up to {} running, {} KV \
             blocks, max_tokens {}, on {}\n",
            self.recording.tokens_per_s() / factor,
            self.recording.requests_per_s() / factor,
            c.max_running,
            c.kv_blocks,
            c.max_tokens,
            c.device
        );
        match self.recording.fit() {
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
            .group("", &["smooth, %"])
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
                 larger of gap and TTFT; smooth: a reader of 6 tokens/s never waits; recomp.: tokens \
                 recomputed after evictions.\n"
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
            let [min, max] = spread(&ratios);
            let range = match ratios.len() {
                1 => String::new(),
                _ => format!(" ({min:.2}-{max:.2})"),
            };
            [format!("{:.2}x{range}", median.latency_mean), format!("{:.2}x", median.ttft_mean)]
        });
        let smooth = summaries.iter().map(|summary| summary.smooth_share(factor)).sum::<f64>()
            / summaries.len() as f64;
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
            format!("{:.0}", 100.0 * smooth),
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

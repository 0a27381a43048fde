//! Table 6: the batch at which preemption begins.

use trail_scheduler::SchedulerConfig;
use trail_scheduler::limits::{BLOCK_TOKENS, blocks_for};

use super::{
    A100, Experiment, Finding, LLAMA2_7B, LLAMA2_13B, Measured, OPT_6_7B, OPT_13B, Scheduler,
    Served, Trial, VICUNA_13B,
};
use crate::commands::simulate::scenario::Pace;
use crate::plot::{Curve, Panel};

/// Model, share of the memory, and the least batch with a preemption (paper).
const ROWS: [(Served, f64, &str); 5] = [
    (LLAMA2_13B, 0.9, "120"),
    (LLAMA2_7B, 0.3, "40"),
    (OPT_6_7B, 0.4, "30"),
    (OPT_13B, 0.4, "60"),
    (VICUNA_13B, 0.4, "90"),
];

/// Requests of a run, all at once.
const REQUESTS: usize = 1000;

/// Memory of an A100-80GB (80 GiB), and what activations are assumed to take of it, bytes.
const MEMORY: f64 = 85.9e9;
const ACTIVATIONS: f64 = 1.5e9;

/// Batches: 10, 20, ..., 250.
const BATCHES: std::ops::RangeInclusive<u32> = 1..=25;

fn label(served: &Served, share: f64) -> String {
    format!("{} at {:.0} %", served.name, 100.0 * share)
}

fn trial(served: Served, share: f64, batch: u32) -> Trial {
    let kv_tokens = (share * MEMORY - 2.0 * served.parameters - ACTIVATIONS) / served.kv_bytes;
    let mut simulation = served.simulation(A100, batch, REQUESTS);
    let longest = blocks_for(simulation.scheduler.max_context);
    simulation.scheduler = SchedulerConfig {
        num_blocks: ((kv_tokens / f64::from(BLOCK_TOKENS)) as u32).max(longest),
        ..simulation.scheduler
    };
    let scenario = Scheduler::Fcfs.scenario(served, REQUESTS, Pace::Burst, simulation);
    Trial { label: label(&served, share), x: f64::from(batch), scenario }
}

/// Least batch with an eviction, by seed; seeds without one are left out.
fn onsets(measured: &[Measured], label: &str) -> Vec<f64> {
    let rows: Vec<&Measured> = measured.iter().filter(|m| m.label == label).collect();
    let seeds = rows.first().map_or(0, |m| m.figures.len());
    let onset = |seed: usize| rows.iter().find(|m| m.figures[seed].evictions > 0).map(|m| m.x);
    (0..seeds).filter_map(onset).collect()
}

/// Evictions of a run, mean over seeds.
fn evictions(measured: &Measured) -> f64 {
    measured.each(|figures| figures.evictions as f64).iter().sum::<f64>()
        / measured.figures.len().max(1) as f64
}

/// Table 6: the batch at which preemption begins.
pub const TABLE6: Experiment = Experiment {
    name: "elis-table6",
    source: "ELIS, table 6: least batch with a preemption for memory",
    claim: "120 for LLaMA2-13B at 90 % of an A100-80GB; 30 to 90 for others at 30-40 %",
    conditions: "1,000 requests at once (the paper: 10,000), FCFS, batches of 10 to 250 by 10; KV \
                 = share x 85.9 GB - 2 bytes a parameter - 1.5 GB assumed for activations; LMSYS's \
                 prompts, log-normal outputs whose means follow from table 4's latencies (186-920 \
                 tokens)",
    grid: || {
        let batches = |(served, share, _)| BATCHES.map(move |n| trial(served, share, 10 * n));
        ROWS.into_iter().flat_map(batches).collect()
    },
    read: |measured| {
        ROWS.iter()
            .map(|(served, share, paper)| {
                let label = label(served, *share);
                let ours = onsets(measured, &label);
                Finding::new(format!("{label}: least batch with an eviction"), *paper, ours)
            })
            .collect()
    },
    panels: |measured| {
        let curves = ROWS.iter().map(|(served, share, _)| {
            let name = label(served, *share);
            let of = measured.iter().filter(|m| m.label == name);
            let points = of.map(|m| (m.x, evictions(m))).collect();
            Curve { name, points }
        });
        vec![Panel::lines(["batch", "evictions in 1,000 requests"], curves.collect())]
    },
};

//! Figure 7: workers behind the balancer.

use trail_simulator::Simulation;

use super::{Experiment, Finding, H100, LLAMA2_13B, Measured, Scheduler, Trial, queueing_s};
use crate::commands::simulate::scenario::Pace;
use crate::plot::{Curve, Panel};

/// Workers, the paper's peak rate with them, and our rates as shares of workers x batch / latency.
const SETUPS: [(u32, &str, [f64; 5]); 6] = [
    (1, "not measured", [0.2, 0.4, 0.6, 0.8, 1.0]),
    (10, "2.31", SHARES),
    (20, "not readable", SHARES),
    (30, "not readable", SHARES),
    (40, "not readable", SHARES),
    (50, "18.77", SHARES),
];
const SHARES: [f64; 5] = [0.7, 0.8, 0.9, 1.0, 1.2];

/// Batch of a worker.
const BATCH: u32 = 4;

/// Requests for each worker.
const REQUESTS: usize = 150;

/// Longest mean queueing delay, seconds.
const MAX_S: f64 = 0.5;

fn label(workers: u32) -> String {
    format!("{workers} workers")
}

fn trial(workers: u32, share: f64) -> Trial {
    let requests = REQUESTS * workers.max(10) as usize;
    // Latency here: the mean output at the H100's step time.
    let latency_s = LLAMA2_13B.mean_tokens() * LLAMA2_13B.step_s(H100);
    let rate = share * f64::from(workers * BATCH) / latency_s;
    let one = LLAMA2_13B.simulation(H100, BATCH, requests);
    let simulation = Simulation { workers, ..one };
    let pace = Pace::Rate { rate, gamma: true };
    let scenario = Scheduler::Isrtf.scenario(LLAMA2_13B, requests, pace, simulation);
    Trial { label: label(workers), x: rate, scenario }
}

/// (rate, mean queueing delay) of each run with `workers` and the seed at `seed`.
fn delays(measured: &[Measured], workers: u32, seed: usize) -> Vec<(f64, f64)> {
    let step_s = LLAMA2_13B.step_s(H100);
    let of = measured.iter().filter(|m| m.label == label(workers));
    of.map(|m| (m.x, queueing_s(m, step_s)[seed])).collect()
}

/// Rate at which the delay reaches [`MAX_S`], linear between runs; the largest rate if none does.
fn peak(points: &[(f64, f64)]) -> f64 {
    let mut before = (0.0, 0.0);
    for &(rate, delay) in points {
        if delay > MAX_S {
            let share = (MAX_S - before.1) / (delay - before.1);
            return before.0 + share * (rate - before.0);
        }
        before = (rate, delay);
    }
    before.0
}

/// Peak rate with `workers`, by seed.
fn peaks(measured: &[Measured], workers: u32) -> Vec<f64> {
    let seeds = measured.first().map_or(0, |m| m.runs.len());
    (0..seeds).map(|seed| peak(&delays(measured, workers, seed))).collect()
}

/// Figure 7: the largest rate at a bounded queueing delay.
pub const FIG7: Experiment = Experiment {
    name: "elis-fig7",
    source: "ELIS, figure 7: peak rate with a mean queueing delay of at most 0.5 s",
    claim: "2.31 requests/s with 10 workers, 18.77 with 50: called near-linear (8.1x for 5x)",
    conditions: "LLaMA2-13B, batch 4, ISRTF; H100 roofline (8.3 ms a step), mean output of 650 \
                 tokens; Gamma arrivals, 150 requests a worker (1,500 for one worker), rates at 5 \
                 shares of the capacity, the peak linear in between; no time for scheduling",
    grid: || {
        let rates = |(workers, _, shares): (u32, &str, [f64; 5])| {
            shares.into_iter().map(move |share| trial(workers, share))
        };
        SETUPS.into_iter().flat_map(rates).collect()
    },
    read: |measured| {
        let mut findings: Vec<Finding> = SETUPS
            .into_iter()
            .map(|(workers, paper, _)| {
                let quantity = format!("{workers} workers: peak, requests/s");
                Finding::new(quantity, paper, peaks(measured, workers))
            })
            .collect();
        let (few, many) = (peaks(measured, 10), peaks(measured, 50));
        let growth = few.iter().zip(&many).map(|(few, many)| many / few).collect();
        findings.push(Finding::new("peak, 50 workers / 10 workers", "8.1", growth));
        findings
    },
    panels: |measured| {
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let point = |workers: u32| (f64::from(workers), mean(peaks(measured, workers)));
        let points = SETUPS.iter().map(|setup| point(setup.0)).collect();
        let ours = Curve { name: "ours".into(), points };
        let paper = Curve { name: "ELIS".into(), points: vec![(10.0, 2.31), (50.0, 18.77)] };
        vec![Panel::lines(["workers", "peak rate, requests/s"], vec![ours, paper])]
    },
};

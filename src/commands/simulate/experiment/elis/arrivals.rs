//! Figure 4: gaps between arrivals.

use std::sync::Arc;

use trail_platform::stats::Sorted;
use trail_runtime::engine::PolicyKind;
use trail_scheduler::SchedulerConfig;
use trail_simulator::arrivals::Lengths;
use trail_simulator::{Dataset, Noise, Simulation, SimulationRun, StepModel};

use crate::commands::simulate::experiment::{Experiment, Finding, Trial};
use crate::commands::simulate::scenario::{Pace, RequestSource, Scenario};
use crate::plot::{Curve, Panel};

/// Arrivals drawn.
const DRAWN: usize = 20_000;

/// ELIS's fit: shape and scale, whose product is the mean gap in seconds.
const SHAPE: f64 = 0.73;
const SCALE: f64 = 10.41;

/// Seconds between arrivals.
fn gaps(run: &SimulationRun) -> Vec<f64> {
    run.outcomes.windows(2).map(|pair| pair[1].arrival_s - pair[0].arrival_s).collect()
}

/// Mean and coefficient of variation.
fn moments(values: &[f64]) -> (f64, f64) {
    let mean = Sorted::of(values.iter().copied()).mean();
    let square = |value: &f64| (value - mean).powi(2);
    let variance = values.iter().map(square).sum::<f64>() / values.len().max(1) as f64;
    (mean, variance.sqrt() / mean)
}

fn arrivals() -> Vec<Trial> {
    let model: StepModel = "a100-80g:8b".parse().expect("a preset");
    let scheduler = SchedulerConfig { max_context: 64, ..model.scheduler() };
    let one = Lengths::Constant(1);
    let dataset = Dataset { name: "one token", prompt: one, output: one, max_tokens: 1 };
    let pace = Pace::Rate { rate: 1.0 / (SHAPE * SCALE), gamma: true };
    let noise = Arc::new(Noise::None);
    let source = RequestSource::Synthetic { dataset, noise, requests: DRAWN };
    let simulation = Simulation::new(scheduler, model);
    let scenario = Scenario { policy: PolicyKind::Fcfs, pace, source, simulation };
    vec![Trial { label: "gaps".into(), x: 0.0, scenario }]
}

/// Figure 4: gaps between arrivals.
pub const FIG4: Experiment = Experiment {
    name: "elis-fig4",
    source: "ELIS, figure 4: gaps between arrivals",
    claim: "Gamma-distributed with shape 0.73 and scale 10.41 (mean 7.60 s)",
    conditions: "20,000 drawn gaps; the production trace is not published, so this checks the \
                 generator",
    grid: arrivals,
    read: |measured| {
        let each = |of: fn((f64, f64)) -> f64| -> Vec<f64> {
            measured[0].runs.iter().map(|(_, run)| of(moments(&gaps(run)))).collect()
        };
        vec![
            Finding::new("mean gap, s", "7.60", each(|(mean, _)| mean)),
            Finding::new("coefficient of variation", "1.17", each(|(_, variation)| variation)),
            Finding::new("shape by moments", "0.73", each(|(_, cv)| 1.0 / (cv * cv))),
            Finding::new("scale by moments, s", "10.41", each(|(mean, cv)| mean * cv * cv)),
        ]
    },
    panels: |measured| {
        let drawn = measured[0].runs.first().map_or(Vec::new(), |(_, run)| gaps(run));
        let exponential = (0..=200).map(|i| {
            let gap = f64::from(i) * 0.3;
            (gap, 100.0 * (1.0 - (-gap / (SHAPE * SCALE)).exp()))
        });
        let poisson = Curve { name: "Poisson, same mean".into(), points: exponential.collect() };
        let curves = vec![Curve::cumulative("Gamma (ELIS)", drawn), poisson];
        vec![Panel::cumulative(["gap between arrivals, s", "gaps, %"], curves)]
    },
};

//! Experiments of RR-SJF.

mod burst;
mod interval;
mod noise;
mod order;
mod rates;

use std::sync::Arc;

use trail_platform::stats::Sorted;
use trail_runtime::engine::PolicyKind;
use trail_scheduler::SchedulerConfig;
use trail_scheduler::policies::{Rr, RrSjf, Sjf};
use trail_simulator::arrivals::Lengths;
use trail_simulator::{Dataset, JobOutcome, Noise, Simulation, SimulationRun, StepModel};

use super::{Experiment, Finding, Measured, Trial, labelled};
use crate::commands::simulate::scenario::{Pace, RequestSource, Scenario};
use crate::plot::{Curve, Panel};

pub use burst::{FIG3, FIG4, FIG9};
pub use interval::FIG2;
pub use noise::{FIG5, FIG6};
pub use order::FIG1;
pub use rates::{FIG7, FIG8};

/// Requests of a run (paper).
const REQUESTS: usize = 1000;

/// Llama-3.2-1B on an L4 under vLLM's sizes, RR-SJF's lengths, predictions with a normal error of
/// `sigma` tokens.
fn scenario(policy: PolicyKind, pace: Pace, sigma: f64) -> Scenario {
    scenario_of(Dataset::RR_SJF, policy, pace, sigma)
}

/// The same with the lengths of `dataset`.
fn scenario_of(dataset: Dataset, policy: PolicyKind, pace: Pace, sigma: f64) -> Scenario {
    let model: StepModel = "l4:1b".parse().expect("a preset");
    let scheduler = SchedulerConfig { max_requests: 1024, max_context: 2048, ..model.scheduler() };
    let noise = Arc::new(Noise::Gaussian { sigma });
    Scenario {
        policy,
        pace,
        source: RequestSource::Synthetic { dataset, noise, requests: REQUESTS },
        simulation: Simulation::new(scheduler, model),
    }
}

/// The policies of the comparison, by the paper's names; slices of 5 tokens.
fn policies() -> [(&'static str, PolicyKind); 4] {
    [
        ("FCFS", PolicyKind::Fcfs),
        ("SJF", PolicyKind::Sjf(Sjf::PAPER)),
        ("RR", PolicyKind::Rr(Rr::default())),
        ("RR-SJF", PolicyKind::RrSjf(RrSjf::default())),
    ]
}

/// RR-SJF's lengths with more short ones: half at the cap, a quarter below 100 tokens. The set is
/// not published, and the paper's own figures speak of clusters.
const WIDE: Dataset = Dataset {
    name: "rr-sjf, wide",
    output: Lengths::LogNormal { mean: 393_000.0, variation: 383.0, min: 4, max: 1024 },
    ..Dataset::RR_SJF
};

/// A time of a request.
type Time = fn(&JobOutcome) -> f64;

/// Time to first token.
const TTFT: Time = |outcome| outcome.ttft_s;

/// End-to-end latency.
const E2EL: Time = |outcome| outcome.latency_s;

/// A quantile of one time, by seed; 1 for the maximum.
fn quantiles(measured: &Measured, time: Time, p: f64) -> Vec<f64> {
    let of = |run: &SimulationRun| Sorted::of(run.outcomes.iter().map(time)).nearest_rank(p);
    measured.runs.iter().map(|(_, run)| of(run)).collect()
}

/// A quantile of `a` over one of `b`, by seed.
fn quantile_ratios(a: &Measured, b: &Measured, time: Time, p: f64) -> Vec<f64> {
    let (a, b) = (quantiles(a, time, p), quantiles(b, time, p));
    a.iter().zip(&b).map(|(a, b)| a / b).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// One panel for each quantile: its mean over seeds along x, one curve for each label.
fn quantile_panels(
    measured: &[Measured],
    x: &str,
    (name, time): (&str, Time),
    labels: &[&str],
) -> Vec<Panel> {
    let panel = |(p, of): (f64, &str)| {
        let curves = labels.iter().map(|&label| {
            let trials = measured.iter().filter(|m| m.label == label);
            let points = trials.map(|m| (m.x, mean(&quantiles(m, time, p)))).collect();
            Curve { name: label.into(), points }
        });
        Panel::lines([x, &format!("{of} {name}, s")], curves.collect())
    };
    [(0.5, "median"), (0.75, "75th percentile"), (1.0, "largest")].map(panel).into()
}

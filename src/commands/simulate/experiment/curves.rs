//! Curves and numbers that several experiments share.

use trail_simulator::{JobOutcome, SimulationRun};

use super::Measured;
use crate::commands::simulate::figures::Figures;
use crate::plot::Curve;

/// Mean latency, seconds.
pub const LATENCY: fn(&Figures) -> f64 = |figures| figures.latency_s.mean;
/// Median latency, seconds.
pub const MEDIAN_LATENCY: fn(&Figures) -> f64 = |figures| figures.latency_s.p50;
/// Mean time to the first token, seconds.
pub const TTFT: fn(&Figures) -> f64 = |figures| figures.ttft_s.mean;
/// Median time to the first token, seconds.
pub const MEDIAN_TTFT: fn(&Figures) -> f64 = |figures| figures.ttft_s.p50;
/// Mean latency per output token, seconds.
pub const TOKEN_LATENCY: fn(&Figures) -> f64 = |figures| figures.latency_per_token_s.mean;

/// The trial of a label at `x`.
pub fn at<'a>(measured: &'a [Measured], label: &str, x: f64) -> &'a Measured {
    let found = measured.iter().find(|measured| measured.label == label && measured.x == x);
    found.expect("the experiment's own grid has the label at x")
}

/// The mean over seeds of one number against x: a curve for each label that begins with `prefix`,
/// named by the rest of it, in the order of the grid.
pub fn against_x(measured: &[Measured], prefix: &str, of: fn(&Figures) -> f64) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for of_trial in measured {
        let Some(name) = of_trial.label.strip_prefix(prefix) else { continue };
        let values = of_trial.each(of);
        let point = (of_trial.x, values.iter().sum::<f64>() / values.len().max(1) as f64);
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve { name: name.into(), points: vec![point] }),
        }
    }
    curves
}

/// One number of each answered request.
pub fn of_requests(run: &SimulationRun, of: fn(&JobOutcome) -> f64) -> Vec<f64> {
    run.outcomes.iter().map(of).collect()
}

/// The distribution of one number of the requests, of the first seed: a curve for each trial.
pub fn distributions(measured: &[Measured], of: fn(&JobOutcome) -> f64) -> Vec<Curve> {
    let first = |m: &Measured| m.runs.first().map_or(Vec::new(), |(_, run)| of_requests(run, of));
    measured.iter().map(|m| Curve::cumulative(&m.label, first(m))).collect()
}

/// One number of each run.
pub fn of_runs(measured: &Measured, of: impl Fn(&SimulationRun) -> f64) -> Vec<f64> {
    measured.runs.iter().map(|(_, run)| of(run)).collect()
}

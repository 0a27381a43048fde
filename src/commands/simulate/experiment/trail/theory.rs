//! Response time and memory in M/G/1.

use trail_simulator::theory::{self, Figure8Row, Predictor, figure8};

use super::super::{Experiment, Finding, SEEDS};
use crate::plot::{Curve, Panel};

/// Jobs of each simulated peak.
const JOBS: u64 = 100_000;

/// One number along a curve of a panel, in the order of the parameter.
fn series(
    rows: &[Figure8Row],
    (panel, predictor): (theory::Panel, Predictor),
    of: impl Fn(&Figure8Row) -> f64,
) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for row in rows.iter().filter(|row| row.panel == panel && row.predictor == predictor) {
        let (x, name) = match panel {
            theory::Panel::Rate => (row.lambda, format!("c = {}", row.c)),
            theory::Panel::C => (row.c, format!("lambda = {}", row.lambda)),
        };
        let point = (x, of(row));
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve { name, points: vec![point] }),
        }
    }
    curves
}

/// A number of the rows at lambda = 0.9, c = 1, over that at c = 0.
fn all_over_none(
    rows: &[Figure8Row],
    predictor: Predictor,
    of: impl Fn(&Figure8Row) -> f64,
) -> f64 {
    let row = |c: f64| {
        let at = |row: &&Figure8Row| row.predictor == predictor && row.lambda == 0.9 && row.c == c;
        rows.iter().find(at).expect("the panel has c = 0 and c = 1")
    };
    of(row(1.0)) / of(row(0.0))
}

/// Figure 8: response time and memory.
pub const FIG8: Experiment = Experiment {
    name: "trail-fig8",
    source: "TRAIL, figure 8: mean response time and peak memory in M/G/1",
    claim: "limiting preemption saves memory and keeps a reasonable response time; the axes have \
            no readable values",
    conditions: "the corrected Lemma 1 (docs/theory.md) for response time and time-average memory; \
                 peaks of a simulated run of 100,000 jobs a point, as the paper gives no length; \
                 exponential sizes; seeds 1, 2, 3, which only the peaks depend on",
    grid: Vec::new,
    read: |_| {
        let rows = SEEDS.map(|seed| figure8(Some(JOBS), seed));
        let mut findings = Vec::new();
        for predictor in Predictor::ALL {
            let quantity = |what| format!("{}: {what}, c = 1 / c = 0", predictor.name());
            let mut add = |what, paper: &str, of: fn(&Figure8Row) -> f64| {
                let ours = rows.iter().map(|rows| all_over_none(rows, predictor, of)).collect();
                findings.push(Finding::new(quantity(what), paper, ours));
            };
            add("mean response", "below 1", |row| row.mean_response);
            add("time-average memory", "not in the paper", |row| row.mean_memory);
            let peak =
                if predictor == Predictor::Perfect { "1 (docs/theory.md)" } else { "above 1" };
            add("peak memory", peak, |row| row.peak_memory.unwrap_or(f64::NAN));
        }
        findings
    },
    panels: |_| {
        let rows = figure8(Some(JOBS), SEEDS[0]);
        let mut panels = Vec::new();
        for (panel, x) in [(theory::Panel::Rate, "lambda"), (theory::Panel::C, "c")] {
            let of = (panel, Predictor::Exponential);
            let response = series(&rows, of, |row| row.mean_response);
            panels.push(Panel::lines([x, "mean response, exponential predictions"], response));
            let peak = series(&rows, of, |row| row.peak_memory.unwrap_or(0.0));
            panels.push(Panel::lines([x, "peak memory, exponential predictions"], peak));
        }
        panels
    },
};

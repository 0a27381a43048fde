//! Distribution of output lengths.

use trail_platform::stats::Sorted;
use trail_runtime::engine::PolicyKind;
use trail_simulator::SimulationRun;

use super::super::curves::{of_requests, of_runs};
use super::super::{Experiment, Finding, Measured, Trial};
use super::{scenario, trial};
use crate::commands::simulate::scenario::Pace;
use crate::plot::{Curve, Panel};

/// Requests whose lengths are drawn.
const DRAWN: usize = 10_000;

/// Shares of ten equal bins in the released trace.
const BIN_SHARES: [f64; 10] = [0.21, 0.12, 0.08, 0.06, 0.06, 0.03, 0.07, 0.04, 0.02, 0.32];

/// Quantiles of the released trace: share in % and tokens.
const QUANTILES: [(f64, &str); 5] =
    [(10.0, "27"), (25.0, "67"), (50.0, "238"), (75.0, "512"), (90.0, "512")];

/// Width of a bin, tokens.
const BIN_TOKENS: f64 = 51.2;

/// Share of output lengths in `bin`.
fn bin_share(run: &SimulationRun, bin: usize) -> f64 {
    let inside = run
        .outcomes
        .iter()
        .filter(|outcome| (outcome.output_tokens as usize * 10 / 512).min(9) == bin);
    inside.count() as f64 / run.outcomes.len().max(1) as f64
}

fn lengths(run: &SimulationRun) -> Vec<f64> {
    of_requests(run, |outcome| f64::from(outcome.output_tokens))
}

fn drawn() -> Vec<Trial> {
    vec![trial("lengths", 0.0, scenario("a100-80g:8b", PolicyKind::Fcfs, Pace::Burst, DRAWN))]
}

/// Cumulative curve of the released trace's bins.
fn released() -> Curve {
    let mut sum = 0.0;
    let corners = BIN_SHARES.iter().enumerate().map(|(bin, share)| {
        sum += 100.0 * share;
        (BIN_TOKENS * (bin + 1) as f64, sum)
    });
    let points = std::iter::once((0.0, 0.0)).chain(corners).collect();
    Curve { name: "released trace".into(), points }
}

/// Outline of a histogram of ten bins, in %.
fn outline(name: &str, shares: &[f64]) -> Curve {
    let mut points = vec![(0.0, 0.0)];
    for (bin, share) in shares.iter().enumerate() {
        let left = BIN_TOKENS * bin as f64;
        points.extend([(left, 100.0 * share), (left + BIN_TOKENS, 100.0 * share)]);
    }
    points.push((BIN_TOKENS * shares.len() as f64, 0.0));
    Curve { name: name.into(), points }
}

fn first_shares(measured: &[Measured]) -> Vec<f64> {
    let run = measured[0].runs.first().map(|(_, run)| run);
    run.map_or(Vec::new(), |run| (0..BIN_SHARES.len()).map(|bin| bin_share(run, bin)).collect())
}

const CONDITIONS: &str = "10,000 drawn lengths; the paper's figure has no readable values, the \
    numbers are those of the released trace (first 138 rows): a check of the generator";

/// Figure 9: output lengths.
pub const FIG9: Experiment = Experiment {
    name: "trail-fig9",
    source: "TRAIL, figure 9: distribution of Alpaca's output lengths",
    claim: "the distribution function of Alpaca's output lengths under the cap of 512",
    conditions: CONDITIONS,
    grid: drawn,
    read: |measured| {
        let mean = |run: &SimulationRun| run.tokens as f64 / run.outcomes.len().max(1) as f64;
        let mut findings =
            vec![Finding::new("mean length, tokens", "265", of_runs(&measured[0], mean))];
        for (percent, tokens) in QUANTILES {
            let ours =
                of_runs(&measured[0], |run| Sorted::of(lengths(run)).nearest_rank(percent / 100.0));
            findings.push(Finding::new(format!("{percent} % quantile, tokens"), tokens, ours));
        }
        findings
    },
    panels: |measured| {
        let first = measured[0].runs.first().map_or(Vec::new(), |(_, run)| lengths(run));
        let curves = vec![Curve::cumulative("drawn", first), released()];
        vec![Panel::cumulative(["output length, tokens", "requests, %"], curves)]
    },
};

/// Figure 10: histogram of output lengths.
pub const FIG10: Experiment = Experiment {
    name: "trail-fig10",
    source: "TRAIL, figure 10: histogram of output lengths in ten bins",
    claim: "bimodal: many answers in the first bin, and most in the last",
    conditions: CONDITIONS,
    grid: drawn,
    read: |measured| {
        let bins = BIN_SHARES.iter().enumerate();
        let finding = |(bin, share): (usize, &f64)| {
            let ours = of_runs(&measured[0], |run| bin_share(run, bin));
            Finding::new(format!("share of bin {bin}"), share.to_string(), ours)
        };
        bins.map(finding).collect()
    },
    panels: |measured| {
        let curves =
            vec![outline("drawn", &first_shares(measured)), outline("released trace", &BIN_SHARES)];
        vec![Panel::lines(["output length, tokens", "requests, %"], curves)]
    },
};

//! Experiments of TRAIL.

use std::sync::Arc;

use trail_runtime::engine::PolicyKind;
use trail_scheduler::SchedulerConfig;
use trail_scheduler::simulator::{Dataset, Noise, Run, Simulation, StepModel};

use super::{Experiment, Finding, Measured, Trial, labelled, ratios};
use crate::commands::simulate::figures::Figures;
use crate::commands::simulate::scenario::{Pace, Scenario, Source};
use crate::plot::{Curve, Panel};

/// Requests of a burst.
const BURST: usize = 2000;

/// Requests whose lengths are drawn.
const DRAWN: usize = 10_000;

/// Llama-3-8B on an A100-80GB under vLLM's sizes, Alpaca's lengths, predictions as wrong as the
/// release's.
fn scenario(policy: PolicyKind, pace: Pace, requests: usize) -> Scenario {
    let model: StepModel = "a100-80g:8b".parse().expect("a preset");
    let max_requests = (requests as u32).max(256 * 20);
    let scheduler = SchedulerConfig { max_requests, max_context: 1024, ..model.scheduler() };
    let (dataset, noise) = (Dataset::ALPACA, Arc::new(Noise::Release));
    Scenario {
        policy,
        pace,
        source: Source::Synthetic { dataset, noise, requests },
        simulation: Simulation::new(scheduler, model),
    }
}

fn trial(label: &str, scenario: Scenario) -> Trial {
    Trial { label: label.into(), x: 0.0, scenario }
}

/// Curves of one time under each policy, of the first seed.
fn distributions(
    measured: &[Measured],
    of: fn(&trail_scheduler::simulator::Outcome) -> f64,
) -> Vec<Curve> {
    let first = |m: &Measured| m.runs.first().map_or(Vec::new(), |(_, run)| times(run, of));
    measured.iter().map(|m| Curve::cumulative(&m.label, first(m))).collect()
}

fn times(run: &Run, of: fn(&trail_scheduler::simulator::Outcome) -> f64) -> Vec<f64> {
    run.outcomes.iter().map(of).collect()
}

/// Figure 7: a burst.
pub const FIG7: Experiment = Experiment {
    name: "trail-fig7",
    source: "TRAIL, figure 7: all requests at once",
    claim: "c = 0.8 and c = 1 are alike, and both are below vLLM in mean latency and TTFT",
    conditions: "2,000 requests of Alpaca's lengths, Llama-3-8B on an A100-80GB (roofline), 256 \
                 sequences, 512 tokens a step, predictions at the release's error; the paper prints \
                 no values",
    grid: || {
        let burst = |policy| scenario(policy, Pace::Burst, BURST);
        vec![
            trial("fcfs", burst(PolicyKind::Fcfs)),
            trial("trail c=0.8", burst(trail(0.8))),
            trial("trail c=1", burst(trail(1.0))),
            trial("oracle", burst(PolicyKind::SRPT)),
        ]
    },
    read: |measured| {
        let [fcfs, narrow, wide] =
            ["fcfs", "trail c=0.8", "trail c=1"].map(|label| labelled(measured, label));
        let latency: fn(&Figures) -> f64 = |figures| figures.latency_s.mean;
        let ttft: fn(&Figures) -> f64 = |figures| figures.ttft_s.mean;
        vec![
            Finding::new("mean latency, c=0.8 / c=1", "about 1", ratios(narrow, wide, latency)),
            Finding::new("mean TTFT, c=0.8 / c=1", "about 1", ratios(narrow, wide, ttft)),
            Finding::new("mean latency, FCFS / c=0.8", "above 1", ratios(fcfs, narrow, latency)),
            Finding::new("mean TTFT, FCFS / c=0.8", "above 1", ratios(fcfs, narrow, ttft)),
        ]
    },
    panels: |measured| {
        vec![
            Panel::cumulative(
                ["latency (arrival to last token), s", "requests answered, %"],
                distributions(measured, |outcome| outcome.latency_s),
            ),
            Panel::cumulative(
                ["time to first token, s", "requests begun, %"],
                distributions(measured, |outcome| outcome.ttft_s),
            ),
        ]
    },
};

/// Shares of ten equal bins in the released trace.
const BIN_SHARES: [f64; 10] = [0.21, 0.12, 0.08, 0.06, 0.06, 0.03, 0.07, 0.04, 0.02, 0.32];

/// Share of output lengths in `bin`.
fn bin_share(run: &Run, bin: usize) -> f64 {
    let inside = run
        .outcomes
        .iter()
        .filter(|outcome| (outcome.output_tokens as usize * 10 / 512).min(9) == bin);
    inside.count() as f64 / run.outcomes.len().max(1) as f64
}

/// Figures 9 and 10: output lengths.
pub const FIG9: Experiment = Experiment {
    name: "trail-fig9",
    source: "TRAIL, figure 9: distribution of Alpaca's output lengths",
    claim: "bimodal under the cap of 512: a fifth in the first bin, a third in the last",
    conditions: "10,000 drawn lengths; the paper's figure has no readable values, the numbers are \
                 those of the released trace (first 138 rows)",
    grid: || vec![trial("lengths", scenario(PolicyKind::Fcfs, Pace::Burst, DRAWN))],
    read: |measured| {
        let each = |of: &dyn Fn(&Run) -> f64| -> Vec<f64> {
            measured[0].runs.iter().map(|(_, run)| of(run)).collect()
        };
        let mean = |run: &Run| run.tokens as f64 / run.outcomes.len().max(1) as f64;
        let mut findings = vec![Finding::new("mean length, tokens", "265", each(&mean))];
        for (bin, share) in BIN_SHARES.iter().enumerate() {
            let ours = each(&|run| bin_share(run, bin));
            findings.push(Finding::new(format!("share of bin {bin}"), share.to_string(), ours));
        }
        findings
    },
    panels: |measured| {
        let lengths = |(_, run): &(u64, Run)| times(run, |o| f64::from(o.output_tokens));
        let drawn = measured[0].runs.first().map_or(Vec::new(), lengths);
        let mut sum = 0.0;
        let corner = |bin: usize, share: f64| {
            sum += 100.0 * share;
            (51.2 * (bin + 1) as f64, sum)
        };
        let bins = BIN_SHARES.iter().enumerate();
        let mut corner = corner;
        let points = std::iter::once((0.0, 0.0)).chain(bins.map(|(i, &share)| corner(i, share)));
        let released = Curve { name: "released trace".into(), points: points.collect() };
        vec![Panel::cumulative(
            ["output length, tokens", "requests, %"],
            vec![Curve::cumulative("drawn", drawn), released],
        )]
    },
};

fn trail(c: f32) -> PolicyKind {
    PolicyKind::trail(c)
}

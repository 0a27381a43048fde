//! Figure 1: the order of four requests.

use super::super::example;
use super::{E2EL, Experiment, Finding, Measured, TTFT, Time, Trial, labelled, policies};
use crate::plot::{Curve, Panel};

/// Requests 1 to 4 at once; the figure fixes their order (2, 4, 3, 1) and that only request 2 ends
/// within a slice.
const LENGTHS: [u32; 4] = [12, 4, 9, 7];

/// The requests by ascending time, as the digits of a number, by seed.
fn order(measured: &Measured, time: Time) -> Vec<f64> {
    let digits = |run: &trail_simulator::SimulationRun| {
        let mut outcomes = run.outcomes.clone();
        outcomes.sort_by(|a, b| time(a).total_cmp(&time(b)));
        outcomes.iter().fold(0.0, |number, outcome| 10.0 * number + outcome.id as f64)
    };
    measured.runs.iter().map(|(_, run)| digits(run)).collect()
}

fn curves(measured: &[Measured], time: Time) -> Vec<Curve> {
    let points = |m: &Measured| {
        let outcomes = m.runs.iter().take(1).flat_map(|(_, run)| &run.outcomes);
        outcomes.map(|outcome| (outcome.id as f64, time(outcome))).collect()
    };
    measured.iter().map(|m| Curve { name: m.label.clone(), points: points(m) }).collect()
}

/// Figure 1: the example.
pub const FIG1: Experiment = Experiment {
    name: "rr-sjf-fig1",
    source: "RR-SJF, figure 1: four requests under four policies",
    claim: "SJF and RR-SJF run 2, 4, 3, 1, FCFS and RR 1, 2, 3, 4; under RR-SJF 2, 4 and 3 end \
            earlier than under RR, and 1 begins earlier than under SJF",
    conditions: "exact: one token a second, one request at a time, no prefill; 12, 4, 9 and 7 \
                 tokens, slices of 5; orders are read as the digits of a number",
    grid: || {
        let trial = |(label, policy): (&str, _)| Trial {
            label: label.into(),
            x: 0.0,
            scenario: example::scenario(policy, &LENGTHS),
        };
        policies().map(trial).into()
    },
    read: |measured| {
        let mut findings = Vec::new();
        for (label, begun) in
            [("FCFS", "1234"), ("SJF", "2431"), ("RR", "1234"), ("RR-SJF", "2431")]
        {
            let ours = order(labelled(measured, label), TTFT);
            findings.push(Finding::new(format!("{label}: order of first tokens"), begun, ours));
        }
        let ended = order(labelled(measured, "RR-SJF"), E2EL);
        findings.push(Finding::new("RR-SJF: order of last tokens", "2431", ended));
        findings
    },
    panels: |measured| {
        vec![
            Panel::lines(["request", "first token, s"], curves(measured, TTFT)),
            Panel::lines(["request", "last token, s"], curves(measured, E2EL)),
        ]
    },
};

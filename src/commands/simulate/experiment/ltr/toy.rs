//! The example of three requests.

use trail_runtime::engine::PolicyKind;
use trail_scheduler::policies::Sjf;
use trail_simulator::SimulationRun;

use super::super::{Experiment, Finding, Trial, example, labelled};
use crate::plot::{Curve, Panel};

/// Three requests at once, in this order, one token a second, one at a time.
const FIG1_LENGTHS: [u32; 3] = [10, 2, 1];

fn toy(label: &str, policy: PolicyKind) -> Trial {
    Trial { label: label.into(), x: 0.0, scenario: example::scenario(policy, &FIG1_LENGTHS) }
}

/// Figure 1: the example.
pub const FIG1: Experiment = Experiment {
    name: "ltr-fig1",
    source: "Learning to Rank, figure 1: three requests of 10, 2 and 1 tokens",
    claim: "6.67 s per token in order of arrival, 1.27 s in order of length",
    conditions: "exact: one token a second, one request at a time, no prefill; the ranking is right",
    grid: || vec![toy("FCFS", PolicyKind::Fcfs), toy("ranked", PolicyKind::Sjf(Sjf::PAPER))],
    read: |measured| {
        let of = |label| labelled(measured, label).each(|f| f.latency_per_token_s.mean);
        vec![
            Finding::new("FCFS, s/token", "6.67", of("FCFS")),
            Finding::new("ranked, s/token", "1.27", of("ranked")),
        ]
    },
    panels: |measured| {
        let points = |run: &SimulationRun| -> Vec<(f64, f64)> {
            let all = (1..).zip(&run.outcomes);
            all.map(|(number, outcome)| (f64::from(number), outcome.token_latency_s())).collect()
        };
        let curves = measured
            .iter()
            .filter_map(|m| {
                let (_, run) = m.runs.first()?;
                Some(Curve { name: m.label.clone(), points: points(run) })
            })
            .collect();
        vec![Panel::lines(["request", "latency per token, s"], curves)]
    },
};

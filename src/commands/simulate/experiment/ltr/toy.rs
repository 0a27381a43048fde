//! The example of three requests.

use trail_runtime::engine::PolicyKind;
use trail_scheduler::simulator::{Job, Refined, Run, Simulation, StepModel};
use trail_scheduler::{SchedulerConfig, StepCost};

use super::super::{Experiment, Finding, Trial, labelled};
use crate::commands::simulate::scenario::{Pace, Scenario, Source};
use crate::plot::{Curve, Panel};

/// Three requests at once, in this order, one token a second, one at a time.
const FIG1_LENGTHS: [u32; 3] = [10, 2, 1];

fn toy(label: &str, policy: PolicyKind) -> Trial {
    let jobs: Vec<Job> = (0..).zip(FIG1_LENGTHS).map(|(id, tokens)| toy_job(id, tokens)).collect();
    let cost = StepCost { fixed: 1e9, decode_row: 0.0, prefill_token: 0.0, context_token: 0.0 };
    let model = StepModel::measured("a token a second", cost, 0.0);
    let scheduler = SchedulerConfig {
        max_running: 1,
        max_requests: 3,
        token_budget: 1,
        num_blocks: 3,
        max_context: 11,
        ..SchedulerConfig::default()
    };
    let simulation = Simulation::new(scheduler, model);
    let source = Source::Trace(jobs.into());
    let scenario = Scenario { policy, pace: Pace::Recorded, source, simulation };
    Trial { label: label.into(), x: 0.0, scenario }
}

fn toy_job(id: u64, output_tokens: u32) -> Job {
    Job {
        id,
        arrival_ns: 0,
        prompt_tokens: 1,
        output_tokens,
        max_tokens: 10,
        r: Some(output_tokens as f32),
        refined: Refined::None,
    }
}

/// Figure 1: the example.
pub const FIG1: Experiment = Experiment {
    name: "ltr-fig1",
    source: "Learning to Rank, figure 1: three requests of 10, 2 and 1 tokens",
    claim: "6.67 s per token in order of arrival, 1.27 s in order of length",
    conditions: "exact: one token a second, one request at a time, no prefill; the ranking is right",
    grid: || vec![toy("FCFS", PolicyKind::Fcfs), toy("ranked", PolicyKind::Sjf)],
    read: |measured| {
        let of = |label| labelled(measured, label).each(|f| f.latency_per_token_s.mean);
        vec![
            Finding::new("FCFS, s/token", "6.67", of("FCFS")),
            Finding::new("ranked, s/token", "1.27", of("ranked")),
        ]
    },
    panels: |measured| {
        let points = |run: &Run| -> Vec<(f64, f64)> {
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

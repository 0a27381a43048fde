//! The papers' worked examples: a few requests at once, one token a second, one at a time.

use trail_runtime::engine::PolicyKind;
use trail_scheduler::{SchedulerConfig, StepCost};
use trail_simulator::{Job, Refined, Simulation, StepModel};

use crate::commands::simulate::scenario::{Pace, RequestSource, Scenario};

/// Requests of these lengths, predicted right, in this order; ids count from 1. No prefill.
pub fn scenario(policy: PolicyKind, lengths: &[u32]) -> Scenario {
    let (requests, longest) = (lengths.len() as u32, lengths.iter().copied().max().unwrap_or(1));
    let job = |(id, &output_tokens): (u64, &u32)| Job {
        id,
        arrival_ns: 0,
        prompt_tokens: 1,
        output_tokens,
        max_tokens: longest,
        priority: 0,
        r: Some(output_tokens as f32),
        refined: Refined::None,
        block_hashes: [].into(),
    };
    let jobs: Vec<Job> = (1..).zip(lengths).map(job).collect();
    let cost = StepCost {
        fixed: 1e9,
        decode_row: 0.0,
        prefill_token: 0.0,
        context_token: 0.0,
        experts: None,
    };
    let model = StepModel::measured("a token a second", cost, 0.0);
    let scheduler = SchedulerConfig {
        max_running: 1,
        max_requests: requests,
        token_budget: 1,
        num_blocks: requests,
        max_context: 1 + longest,
        ..SchedulerConfig::default()
    };
    let simulation = Simulation::new(scheduler, model);
    let source = RequestSource::Trace { jobs: jobs.into(), noise: None, keeps_gaps: false };
    Scenario { policy, pace: Pace::Recorded, source, simulation }
}

//! Experiments of TRAIL.

mod burst;
mod lengths;
mod load;
mod memory;
mod theory;

use std::sync::Arc;

use trail_runtime::engine::PolicyKind;
use trail_scheduler::SchedulerConfig;
use trail_scheduler::policies::Trail;
use trail_simulator::{Dataset, Noise, Simulation, StepModel};

pub use burst::FIG7;
pub use lengths::{FIG9, FIG10};
pub use load::{FIG6, FIG11, FIG12, RELEASE};
pub use memory::FIG5;
pub use theory::FIG8;

use super::Trial;
use crate::commands::simulate::scenario::{Pace, RequestSource, Scenario};

/// TRAIL as in the paper.
fn paper(c: f32) -> PolicyKind {
    PolicyKind::Trail(Trail::paper(c))
}

/// TRAIL+: the oracle with limited preemption.
fn trail_plus() -> PolicyKind {
    "oracle:0.8".parse().expect("a policy")
}

/// A model on a device under vLLM's sizes, Alpaca's lengths, predictions as wrong as the release's.
fn scenario(model: &str, policy: PolicyKind, pace: Pace, requests: usize) -> Scenario {
    let model: StepModel = model.parse().expect("a preset");
    let max_requests = (requests as u32).max(256 * 20);
    let scheduler = SchedulerConfig { max_requests, max_context: 1024, ..model.scheduler() };
    let (dataset, noise) = (Dataset::ALPACA, Arc::new(Noise::Release));
    Scenario {
        policy,
        pace,
        source: RequestSource::Synthetic { dataset, noise, requests },
        simulation: Simulation::new(scheduler, model),
    }
}

fn trial(label: &str, x: f64, scenario: Scenario) -> Trial {
    Trial { label: label.into(), x, scenario }
}

fn poisson(load: f64) -> Pace {
    Pace::Load { load, gamma: false }
}

//! Experiments of ELIS.

mod arrivals;
mod jct;
mod onset;
mod workers;

use std::sync::Arc;

use trail_runtime::engine::PolicyKind;
use trail_scheduler::limits::blocks_for;
use trail_scheduler::policies::{Isrtf, Sjf};
use trail_scheduler::{SchedulerConfig, StepCost};
use trail_simulator::arrivals::Lengths;
use trail_simulator::{Dataset, JobOutcome, Noise, Simulation, StepModel};

use super::{Experiment, Finding, Measured, Trial};
use crate::commands::simulate::scenario::{Pace, RequestSource, Scenario};

pub use arrivals::FIG4;
pub use jct::{FIG5, FIG6, TABLE5};
pub use onset::TABLE6;
pub use workers::FIG7;

/// A model of table 4.
#[derive(Clone, Copy)]
struct Served {
    /// The paper's abbreviation.
    name: &'static str,
    parameters: f64,
    /// Mean latency of a prompt on an A100, seconds.
    latency_s: f64,
    /// Keys and values of one token: 2 x layers x hidden size x 2 bytes.
    kv_bytes: f64,
    /// Longest output, tokens: the model's context, or LMSYS's longest.
    max_tokens: u32,
}

const OPT_6_7B: Served = Served {
    name: "opt6.7",
    parameters: 6.7e9,
    latency_s: 1.3155,
    kv_bytes: 524_288.0,
    max_tokens: 2048,
};
const OPT_13B: Served = Served {
    name: "opt13",
    parameters: 13.0e9,
    latency_s: 2.6432,
    kv_bytes: 819_200.0,
    max_tokens: 2048,
};
const LLAMA2_7B: Served = Served { name: "lam7", latency_s: 6.5222, max_tokens: 4096, ..OPT_6_7B };
const LLAMA2_13B: Served = Served { name: "lam13", latency_s: 8.6102, max_tokens: 4096, ..OPT_13B };
const VICUNA_13B: Served = Served { name: "vic", latency_s: 2.9649, ..OPT_13B };

/// The models in table 5's order.
const MODELS: [Served; 5] = [OPT_13B, OPT_6_7B, VICUNA_13B, LLAMA2_13B, LLAMA2_7B];

/// A GPU: bytes read per second, and dense bf16 operations per second at the share that matrix
/// products reach.
#[derive(Clone, Copy)]
struct Gpu {
    bandwidth: f64,
    flops: f64,
}

const A100: Gpu = Gpu { bandwidth: 2.04e12, flops: 0.6 * 312e12 };
const H100: Gpu = Gpu { bandwidth: 3.35e12, flops: 0.6 * 989e12 };

/// Assumed fixed time of a step, seconds.
const T0_S: f64 = 0.5e-3;

impl Served {
    /// Time of a step, seconds: small batches read the weights.
    fn step_s(&self, gpu: Gpu) -> f64 {
        T0_S + 2.0 * self.parameters / gpu.bandwidth
    }

    /// Mean output, tokens: the published latency over the time of a step.
    fn mean_tokens(&self) -> f64 {
        self.latency_s / self.step_s(A100)
    }

    /// Requests per second at the multiple 1 (section 6.2).
    fn rate(&self, batch: u32) -> f64 {
        f64::from(batch) / self.latency_s
    }

    /// LMSYS's prompts, and outputs of this model's mean with LMSYS's variation.
    fn dataset(&self) -> Dataset {
        let (mean, max) = (self.mean_tokens(), self.max_tokens);
        let output = Lengths::LogNormal { mean, variation: 1.0, min: 4, max };
        Dataset { name: self.name, output, max_tokens: max, ..Dataset::LMSYS }
    }

    /// `batch` sequences at a time on `gpu`, with KV for all.
    fn simulation(&self, gpu: Gpu, batch: u32, max_requests: usize) -> Simulation {
        let cost = StepCost {
            fixed: 1e9 * self.step_s(gpu),
            decode_row: 0.0,
            prefill_token: 1e9 * 2.0 * self.parameters / gpu.flops,
            context_token: 0.0,
            experts: None,
        };
        let max_context = 1024 + self.max_tokens;
        let scheduler = SchedulerConfig {
            max_running: batch,
            max_requests: (max_requests as u32).max(batch),
            // Requests that wait between two windows keep their KV.
            num_blocks: max_requests.min(512) as u32 * blocks_for(max_context),
            max_context,
            ..SchedulerConfig::default()
        };
        Simulation::new(scheduler, StepModel::measured(self.name, cost, 0.0))
    }
}

/// The schedulers of table 5.
#[derive(Clone, Copy)]
enum Scheduler {
    Fcfs,
    Isrtf,
    /// With the true lengths.
    Sjf,
    /// ISRTF by one prediction of this rank correlation (Kendall's tau), counted down.
    Ranked(f64),
}

impl Scheduler {
    fn name(self) -> String {
        match self {
            Scheduler::Fcfs => "FCFS".into(),
            Scheduler::Isrtf => "ISRTF".into(),
            Scheduler::Sjf => "SJF".into(),
            Scheduler::Ranked(tau) => format!("ISRTF, tau {tau}"),
        }
    }

    fn policy(self) -> PolicyKind {
        match self {
            Scheduler::Fcfs => PolicyKind::Fcfs,
            Scheduler::Isrtf | Scheduler::Ranked(_) => PolicyKind::Isrtf(Isrtf::default()),
            Scheduler::Sjf => PolicyKind::Sjf(Sjf::PAPER),
        }
    }

    fn noise(self) -> Noise {
        match self {
            Scheduler::Sjf => Noise::Oracle,
            Scheduler::Ranked(tau) => Noise::Rank { tau },
            _ => Noise::Demo,
        }
    }

    /// `requests` of `served` under this scheduler.
    fn scenario(
        self,
        served: Served,
        requests: usize,
        pace: Pace,
        simulation: Simulation,
    ) -> Scenario {
        let (dataset, noise) = (served.dataset(), Arc::new(self.noise()));
        let source = RequestSource::Synthetic { dataset, noise, requests };
        Scenario { policy: self.policy(), pace, source, simulation }
    }
}

/// Mean seconds that requests spent outside the batch, by seed: latency without the steps that
/// generated the output.
fn queueing_s(measured: &Measured, step_s: f64) -> Vec<f64> {
    let outside = |outcome: &JobOutcome| {
        (outcome.latency_s - f64::from(outcome.output_tokens) * step_s).max(0.0)
    };
    let mean = |outcomes: &[JobOutcome]| {
        outcomes.iter().map(outside).sum::<f64>() / outcomes.len().max(1) as f64
    };
    measured.runs.iter().map(|(_, run)| mean(&run.outcomes)).collect()
}

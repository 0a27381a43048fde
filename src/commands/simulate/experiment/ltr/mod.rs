//! Experiments of Learning to Rank.

mod burst;
mod generation;
mod lengths;
mod load;
mod predictions;
mod toy;

use std::sync::Arc;

use trail_runtime::engine::PolicyKind;
use trail_scheduler::{Preemption, SchedulerConfig};
use trail_simulator::{Dataset, Noise, Simulation, StepModel};

pub use burst::{FIG2A, FIG6, TABLE1};
pub use generation::TABLE2;
pub use lengths::FIG7;
pub use load::{FIG3, FIG4, FIG5};
pub use predictions::{FIG2B, TABLE3, TABLE7, TABLE9};
pub use toy::FIG1;

use super::Trial;
use crate::commands::simulate::scenario::{Pace, RequestSource, Scenario};

/// The paper's devices: Llama-3-8B on one A100-80GB, Llama-3-70B on eight.
const SMALL: &str = "a100-80g:8b";
const LARGE: &str = "a100-80g:70b:tp8";

/// A data set, and the rank correlation of the paper's predictors on it: of the ranking (Table 8,
/// OPT-125m) and of the statement by the model itself (Table 3).
struct Set {
    dataset: Dataset,
    ranking_tau: f64,
    stated_tau: f64,
    /// Factor from one of MLFQ's quanta to the next, in the scripts.
    mlfq_growth: f64,
}

const SHAREGPT: Set =
    Set { dataset: Dataset::SHAREGPT, ranking_tau: 0.55, stated_tau: 0.51, mlfq_growth: 10.0 };
const LMSYS: Set =
    Set { dataset: Dataset::LMSYS, ranking_tau: 0.64, stated_tau: 0.67, mlfq_growth: 2.0 };

/// A model on a data set: a row of Tables 1 and 2, a panel of Figure 3.
struct Case {
    name: &'static str,
    model: &'static str,
    set: Set,
}

/// The ranking's correlations for the 70B are those of Table 3.
const CASES: [Case; 4] = [
    Case { name: "8b sharegpt", model: SMALL, set: SHAREGPT },
    Case { name: "8b lmsys", model: SMALL, set: LMSYS },
    Case { name: "70b sharegpt", model: LARGE, set: Set { ranking_tau: 0.54, ..SHAREGPT } },
    Case { name: "70b lmsys", model: LARGE, set: Set { ranking_tau: 0.62, ..LMSYS } },
];

/// The ranking without its control of starvation, the scripts' default.
const RANKING: &str = "ltr:0";

fn policy(text: &str) -> PolicyKind {
    text.parse().expect("a policy")
}

fn rank(tau: f64) -> Noise {
    Noise::Rank { tau }
}

/// A model on a device under the sizes of vLLM 0.4.1, victims swapped to the host.
fn scenario(
    model: &str,
    (dataset, noise): (Dataset, Noise),
    policy: PolicyKind,
    pace: Pace,
    requests: usize,
) -> Scenario {
    let model: StepModel = model.parse().expect("a preset");
    let base = model.scheduler();
    let scheduler = SchedulerConfig {
        token_budget: 768,
        max_requests: base.max_running.max(requests as u32),
        max_context: dataset.prompt.longest() + dataset.max_tokens,
        preemption: Preemption::Swap,
        host_blocks: 4 * base.num_blocks,
        ..base
    };
    let source = RequestSource::Synthetic { dataset, noise: Arc::new(noise), requests };
    Scenario { policy, pace, source, simulation: Simulation::new(scheduler, model) }
}

fn trial(label: impl Into<String>, x: f64, scenario: Scenario) -> Trial {
    Trial { label: label.into(), x, scenario }
}

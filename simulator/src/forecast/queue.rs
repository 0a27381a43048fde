//! The queue whose future is estimated.

use trail_scheduler::policies::{Needs, PolicyKind, Ranking};
use trail_scheduler::{BLOCK_TOKENS, LiveRequest, SchedulerConfig, StepPace};

/// Property by which the next request is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueOrder {
    /// The arrival.
    Arrival,
    /// The predicted remaining length. `preempts`: also the place of a running request, for as long
    /// as its policy lets it go.
    Length {
        /// False if what runs stays.
        preempts: bool,
    },
}

impl QueueOrder {
    /// The order of a policy. Round robin and queues by service received count as by arrival: all
    /// are served at once.
    pub fn of(policy: PolicyKind) -> QueueOrder {
        match policy.needs() {
            Needs::Nothing => QueueOrder::Arrival,
            Needs::Predictor => QueueOrder::Length { preempts: false },
            Needs::Probe | Needs::TrueLengths => QueueOrder::Length { preempts: true },
        }
    }
}

/// The requests of an engine and what they compete for.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Time on the engine's clock, seconds.
    pub now_s: f64,
    /// The live requests, in the scheduler's order.
    pub requests: Vec<LiveRequest>,
    /// Most requests in a step.
    pub max_running: usize,
    /// Tokens that the KV cache holds.
    pub kv_tokens: f64,
    /// The order.
    pub order: QueueOrder,
    /// Options of a rank by length.
    pub ranking: Ranking,
    /// Costs of steps.
    pub pace: StepPace,
    /// Seconds in the system after which a request precedes those ranked by length.
    pub overdue_after_s: Option<f64>,
}

impl Queue {
    /// A queue without requests of a scheduler of these sizes and this policy.
    pub fn new(config: &SchedulerConfig, policy: PolicyKind) -> Queue {
        Queue {
            ranking: ranking_of(policy),
            now_s: 0.0,
            requests: Vec::new(),
            max_running: config.max_running as usize,
            kv_tokens: f64::from(config.num_blocks) * f64::from(BLOCK_TOKENS),
            order: QueueOrder::of(policy),
            pace: StepPace::default(),
            overdue_after_s: None,
        }
    }

    /// Sets the order to that of another policy.
    pub fn set_policy(&mut self, policy: PolicyKind) {
        (self.order, self.ranking) = (QueueOrder::of(policy), ranking_of(policy));
    }
}

fn ranking_of(mut policy: PolicyKind) -> Ranking {
    policy.ranking_mut().map_or(Ranking::PAPER, |ranking| *ranking)
}

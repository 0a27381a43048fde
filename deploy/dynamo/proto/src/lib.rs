//! The load report: a worker's message to the routers on Dynamo's event plane.

#![forbid(unsafe_code)]

pub mod environment;

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Topic of the reports, in the workers' namespace.
pub const LOAD_TOPIC: &str = "trail-load";

/// Time between two reports of a worker.
pub const REPORT_PERIOD: Duration = Duration::from_millis(50);

/// Key of the request metadata that holds `max_tokens` as the client sent it, by which a worker
/// tells the prompt of a moved request from the tokens that were generated before.
pub const MAX_TOKENS_KEY: &str = "trail-max-tokens";

/// Order in which a worker serves its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// By predicted remaining tokens, least first: only work that ranks before a job delays it.
    #[default]
    Sprpt,
    /// By arrival: all work delays a job.
    Fcfs,
}

/// The load of one worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Dynamo's instance id.
    pub worker_id: u64,
    /// Start of the worker's process, nanoseconds since 1970: a restart has a later one.
    pub epoch: u64,
    /// Most sequences in one step.
    pub slots: u32,
    /// Expected remaining tokens of each running request.
    pub running: Vec<f32>,
    /// Expected remaining tokens of each waiting request, preempted ones included.
    pub waiting: Vec<f32>,
    /// KV blocks that no request holds.
    pub kv_free_blocks: u32,
    /// Number of the report within its epoch.
    pub seq: u64,
    /// Order in which it serves.
    #[serde(default)]
    pub order: Order,
    /// Seconds of its steps.
    #[serde(default)]
    pub pace: Pace,
    /// Prompt tokens of its requests so far, and how many of these the prefix cache had.
    #[serde(default)]
    pub prompts: Prompts,
}

/// Prompt tokens since the start of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prompts {
    /// All tokens.
    pub tokens: u64,
    /// Tokens that were found in the prefix cache.
    pub cached: u64,
}

/// Measured times of a worker's steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Seconds of a step without prefill; 0 before the first.
    pub decode_step_s: f32,
    /// Seconds that a prompt token adds to a step; 0 before the first.
    pub prefill_token_s: f32,
}

impl LoadReport {
    /// True if `other` is an earlier report, or one of an earlier process with the same id.
    pub fn supersedes(&self, other: &LoadReport) -> bool {
        (self.epoch, self.seq) > (other.epoch, other.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_supersedes_whatever_its_predecessor_sent() {
        let of = |epoch, seq| LoadReport { epoch, seq, ..LoadReport::default() };
        assert!(of(1, 5).supersedes(&of(1, 4)));
        assert!(!of(1, 4).supersedes(&of(1, 4)));
        assert!(of(2, 0).supersedes(&of(1, 900)));
        assert!(!of(1, 901).supersedes(&of(2, 0)));
    }
}

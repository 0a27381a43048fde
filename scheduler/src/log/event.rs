//! One line of a decision log.

use serde::{Deserialize, Serialize};

use super::policy_line;
use crate::blocks::{BlockHash, BlockId};
use crate::decision::Decision;
use crate::policies::PolicyKind;
use crate::prefill_limit::PrefillLimit;
use crate::request::{NewRequest, RequestId};

/// A call of the scheduler, or a result by which a replay is checked. Calls without effect, such as
/// stale predictions, are left out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LogEvent {
    /// A request was admitted.
    Submit(NewRequest),
    /// The next full block of a request's tokens has a hash.
    BlockHash {
        /// The request.
        id: RequestId,
        /// The hash.
        hash: BlockHash,
    },
    /// A request that found blocks of other tokens by hash began again without hashes.
    ForgetHashes {
        /// The request.
        id: RequestId,
    },
    /// A request that lost its recurrent state began again.
    Restart {
        /// The request.
        id: RequestId,
    },
    /// A block known by hash was marked, or its mark was taken back.
    Resumable {
        /// The block.
        block: BlockId,
        /// True if it was marked.
        is_resumable: bool,
    },
    /// The last step sampled more tokens for a request than one: draft tokens were accepted.
    Accept {
        /// The request.
        id: RequestId,
        /// Tokens beyond the first.
        tokens: u32,
    },
    /// A prediction arrived.
    Predict {
        /// The request.
        id: RequestId,
        /// Step whose activation it comes from.
        step: u64,
        /// Output tokens generated when that step began.
        age: u32,
        /// Output tokens expected then.
        remaining: f32,
        /// The 10 % quantile, tokens.
        p10: f32,
        /// The median, tokens.
        p50: f32,
        /// The 90 % quantile, tokens.
        p90: f32,
    },
    /// A request ended: complete or cancelled.
    Finish {
        /// The request.
        id: RequestId,
        /// Output tokens, those of a step in flight included.
        tokens: u32,
    },
    /// A transfer of a request's KV ended.
    Transferred {
        /// The request.
        id: RequestId,
    },
    /// The bound on prefill chunks changed.
    PrefillLimit(Option<PrefillLimit>),
    /// Requests are ranked by another policy from here on.
    Policy(#[serde(with = "policy_line")] PolicyKind),
    /// Predictions are trusted from here on, or not.
    TrustPredictions(bool),
    /// A step was planned; its decisions follow.
    Plan {
        /// Number of the step.
        step: u64,
        /// Time, seconds on the caller's clock.
        now_s: f64,
        /// Rows of the plan.
        rows: u32,
        /// Tokens of the rows.
        tokens: u32,
        /// Number of decisions.
        decisions: u32,
    },
    /// A decision of the plan.
    Decision(Decision),
    /// The planned step was launched.
    Advance {
        /// Number of the step.
        step: u64,
    },
    /// A launched step was complete.
    Collected {
        /// Number of the step.
        step: u64,
        /// Time of its end, seconds on the caller's clock.
        end_s: f64,
        /// Time that it took, seconds.
        duration_s: f64,
    },
}

/// Largest step number: exact in a double, and no sum of steps overflows.
const MAX_STEP: u64 = 1 << 53;

/// Longest time, seconds: 30 years.
const MAX_S: f64 = 1e9;

impl LogEvent {
    /// The line of the log, without its line break.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("numbers and names are JSON")
    }

    /// Refuses numbers that no run has: those that JSON cannot hold, and those that would overflow.
    pub(super) fn check(&self) -> Result<(), String> {
        match *self {
            LogEvent::Submit(request) => {
                time("arrival_s", request.arrival_s)?;
                time("deadline_s", request.deadline_s.unwrap_or(0.0))?;
                tokens("initial_prediction", request.initial_prediction.unwrap_or(0.0))
            }
            LogEvent::Predict { step: number, remaining, p10, p50, p90, .. } => {
                step(number)?;
                tokens("remaining", remaining)?;
                tokens("p10", p10).and(tokens("p50", p50)).and(tokens("p90", p90))
            }
            LogEvent::PrefillLimit(Some(limit)) => {
                let costs = [limit.token_ns, limit.context_token_ns];
                let sound = limit.ns.is_finite() && costs.iter().all(|ns| (0.0..1e18).contains(ns));
                sound.then_some(()).ok_or_else(|| "a prefill limit is no time".into())
            }
            LogEvent::Plan { step: number, now_s, .. } => step(number).and(time("now_s", now_s)),
            LogEvent::Advance { step: number } => step(number),
            LogEvent::Collected { step: number, end_s, duration_s } => {
                step(number)?;
                time("end_s", end_s).and(time("duration_s", duration_s))
            }
            LogEvent::Decision(decision) => step(decision.step),
            LogEvent::PrefillLimit(None)
            | LogEvent::Policy(_)
            | LogEvent::TrustPredictions(_)
            | LogEvent::BlockHash { .. }
            | LogEvent::ForgetHashes { .. }
            | LogEvent::Restart { .. }
            | LogEvent::Resumable { .. }
            | LogEvent::Accept { .. }
            | LogEvent::Finish { .. }
            | LogEvent::Transferred { .. } => Ok(()),
        }
    }
}

fn time(name: &str, seconds: f64) -> Result<(), String> {
    match (0.0..=MAX_S).contains(&seconds) {
        true => Ok(()),
        false => Err(format!("{name} is {seconds:?}: give seconds from 0 to {MAX_S}")),
    }
}

fn step(number: u64) -> Result<(), String> {
    match number <= MAX_STEP {
        true => Ok(()),
        false => Err(format!("step is {number}: the most is {MAX_STEP}")),
    }
}

fn tokens(name: &str, tokens: f32) -> Result<(), String> {
    match tokens.is_finite() {
        true => Ok(()),
        false => Err(format!("{name} is {tokens:?}: give tokens")),
    }
}

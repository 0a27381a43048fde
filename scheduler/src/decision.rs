//! The reason of each change that a plan makes to a request's place.

use std::fmt;

#[cfg(feature = "log")]
use serde::{Deserialize, Serialize};

use crate::request::{RequestId, RequestState};

/// A change of a request's place, and the request in whose favour it was made.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "log", derive(Serialize, Deserialize), serde(deny_unknown_fields))]
pub struct Decision {
    /// Step of the plan.
    pub step: u64,
    /// The request that changes its place.
    pub request: RequestId,
    /// The change.
    pub action: Action,
    /// Expected remaining tokens of the request, where predicted.
    pub remaining: Option<f32>,
    /// The request that takes its place or its blocks.
    pub by: Option<RequestId>,
    /// Expected remaining tokens of that request, where predicted.
    pub by_remaining: Option<f32>,
}

/// A change of a request's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "log", derive(Serialize, Deserialize), serde(rename_all = "snake_case"))]
pub enum Action {
    /// Enters the batch from the queue.
    Admitted,
    /// Enters the batch again, with its KV.
    Resumed,
    /// Leaves the batch with its KV: for a request ranked before it or, without one, because it
    /// finds no block to grow.
    Preempted,
    /// Loses its KV and is recomputed later.
    Evicted,
    /// Its KV goes to the host; without another request, ahead of need.
    SwappedOut,
    /// Its KV comes back.
    SwappedIn,
}

impl Action {
    /// The name in prose.
    pub fn name(self) -> &'static str {
        match self {
            Action::Admitted => "admitted",
            Action::Resumed => "resumed",
            Action::Preempted => "preempted",
            Action::Evicted => "evicted",
            Action::SwappedOut => "swapped out",
            Action::SwappedIn => "swapped in",
        }
    }
}

impl Decision {
    pub(crate) fn new(
        step: u64,
        action: Action,
        request: &RequestState,
        by: Option<&RequestState>,
    ) -> Decision {
        Decision {
            step,
            request: request.id,
            action,
            remaining: request.remaining(),
            by: by.map(|by| by.id),
            by_remaining: by.and_then(RequestState::remaining),
        }
    }
}

impl fmt::Display for Decision {
    /// `17 preempted at step 913 by 22: 31 < 210 predicted`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at step {}", self.request.0, self.action.name(), self.step)?;
        let Some(by) = self.by else {
            return match (self.action, self.remaining) {
                (Action::Preempted, _) => write!(f, ": no free block"),
                (Action::SwappedOut, _) => write!(f, " ahead of need"),
                (_, Some(tokens)) => write!(f, ": {tokens:.0} predicted"),
                (_, None) => Ok(()),
            };
        };
        write!(f, " by {}", by.0)?;
        match (self.by_remaining, self.remaining) {
            (Some(by), Some(own)) if by < own => write!(f, ": {by:.0} < {own:.0} predicted"),
            // Ranked by class, by arrival or by another rule than the predictions.
            (Some(by), Some(own)) => write!(f, ": ranked first ({by:.0} and {own:.0} predicted)"),
            _ => write!(f, ": ranked first"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_prints_as_a_sentence() {
        let preempted = Decision {
            step: 913,
            request: RequestId(17),
            action: Action::Preempted,
            remaining: Some(210.2),
            by: Some(RequestId(22)),
            by_remaining: Some(30.9),
        };
        let blocked = Decision { by: None, by_remaining: None, ..preempted };
        let pinned = Decision { by_remaining: Some(300.0), ..preempted };
        let unknown = Decision { action: Action::Evicted, remaining: None, ..preempted };
        let admitted = Decision { action: Action::Admitted, ..blocked };
        let printed = [preempted, blocked, pinned, unknown, admitted].map(|d| d.to_string());
        assert_eq!(
            printed,
            [
                "17 preempted at step 913 by 22: 31 < 210 predicted",
                "17 preempted at step 913: no free block",
                "17 preempted at step 913 by 22: ranked first (300 and 210 predicted)",
                "17 evicted at step 913 by 22: ranked first",
                "17 admitted at step 913: 210 predicted",
            ]
        );
    }
}

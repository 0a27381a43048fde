//! The policies by name.

use std::fmt;
use std::str::FromStr;

use trail_scheduler::Policy;
use trail_scheduler::policies::{Fcfs, Oracle, Sjf, Trail};

/// TRAIL's default share of the first prediction during which a request can be preempted.
pub const DEFAULT_C: f32 = 0.8;

/// A scheduling policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PolicyKind {
    /// First come, first served, as vLLM with chunked prefill.
    Fcfs,
    /// Shortest predicted job first, by the prompt alone; never preempts.
    Sjf,
    /// Limited-preemption shortest predicted remaining processing time.
    Trail {
        /// Share of the first prediction during which a request can be preempted, 0..=1.
        c: f32,
    },
    /// Shortest remaining processing time with the true lengths of a recorded run.
    Oracle,
}

/// A requirement of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// A prompt-only predictor.
    Predictor,
    /// A probe.
    Probe,
    /// `Request::true_length` on every request.
    TrueLengths,
}

impl PolicyKind {
    /// The names that [`FromStr`] takes.
    pub const NAMES: [&'static str; 4] = ["fcfs", "sjf", "trail", "oracle"];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Fcfs => "fcfs",
            PolicyKind::Sjf => "sjf",
            PolicyKind::Trail { .. } => "trail",
            PolicyKind::Oracle => "oracle",
        }
    }

    /// The requirement of the policy.
    pub fn needs(self) -> Needs {
        match self {
            PolicyKind::Fcfs => Needs::Nothing,
            PolicyKind::Sjf => Needs::Predictor,
            PolicyKind::Trail { .. } => Needs::Probe,
            PolicyKind::Oracle => Needs::TrueLengths,
        }
    }

    /// The policy itself.
    pub fn build(self) -> Box<dyn Policy> {
        match self {
            PolicyKind::Fcfs => Box::new(Fcfs),
            PolicyKind::Sjf => Box::new(Sjf),
            PolicyKind::Trail { c } => Box::new(Trail::paper(c).policy()),
            PolicyKind::Oracle => Box::new(Oracle::default()),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyKind::Trail { c } => write!(f, "trail(c={c})"),
            other => f.write_str(other.name()),
        }
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "fcfs" => Ok(PolicyKind::Fcfs),
            "sjf" => Ok(PolicyKind::Sjf),
            "trail" => Ok(PolicyKind::Trail { c: DEFAULT_C }),
            "oracle" => Ok(PolicyKind::Oracle),
            other => {
                Err(format!("unknown policy '{other}': choose one of {}", Self::NAMES.join(", ")))
            }
        }
    }
}

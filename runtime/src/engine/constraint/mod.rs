//! Constraints on the tokens of an answer: a grammar, a JSON schema, forbidden words.
//!
//! A [`Constraint`] is made once and shared; each request that has it follows its own answer with a
//! [`Matcher`]. Matchers run on threads of their own ([`MaskWorkers`]) while the step computes. A
//! sampler waits for a mask that is not ready; the engine's thread, which allocates nothing, waits
//! for the tokens that are forced before it plans a step.
//!
//! Where one token alone may follow, it and those after it are known before they are sampled: they
//! are computed in one step, as draft tokens that cannot be wrong
//! ([`Speculation`](super::speculation::Speculation)).

mod answer;
mod workers;

pub(super) use answer::ConstrainedAnswer;
pub(super) use workers::MaskWorkers;

use std::fmt;

use crate::backend::TokenMask;

/// The set of allowed answers, in tokens. Made once, and shared by requests.
pub trait Constraint: Send + Sync {
    /// A matcher at the beginning of an answer. It may end with each of `ends`: the model's
    /// end-of-sequence tokens and the request's stop tokens.
    fn matcher(&self, ends: &[u32]) -> Box<dyn Matcher>;
}

/// State of one answer under a [`Constraint`].
pub trait Matcher: Send {
    /// Takes the next token, one that was allowed.
    fn accept(&mut self, token: u32) -> Result<(), ConstraintFault>;

    /// Takes the tokens that must come next, as long as there is no choice, and appends them to
    /// `forced`. The answer that is complete is followed by an end token. It may leave forced
    /// tokens out: the mask then has each alone.
    fn force(&mut self, forced: &mut Vec<u32>) -> Result<(), ConstraintFault>;

    /// The tokens that may come next.
    fn mask(&mut self) -> Result<TokenMask, ConstraintFault>;
}

/// The reason for which a constrained answer ends before it is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConstraintFault {
    /// The constraint allows no token, or is beyond its limits: one line.
    Refused(String),
    /// The matcher panicked: a defect.
    Panicked,
}

impl fmt::Display for ConstraintFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConstraintFault::Refused(why) => f.write_str(why),
            ConstraintFault::Panicked => f.write_str("the matcher of a constraint panicked"),
        }
    }
}

impl std::error::Error for ConstraintFault {}

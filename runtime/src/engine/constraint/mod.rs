//! Constraints on the tokens of an answer: a grammar, a JSON schema, forbidden words.
//!
//! A [`Constraint`] is made once and shared; each request that has it follows its own answer with a
//! [`Matcher`]. Matchers run on threads of their own ([`MaskWorkers`]) while the step computes, and
//! on those of the sampler where a mask is not ready. The engine's thread, which allocates nothing,
//! waits only for the tokens that are forced, before it plans a step; with a device it samples for,
//! too, and computes masks that are not ready when it launches a step.
//!
//! Where one token alone may follow, it and those after it are known before they are sampled: they
//! are computed in one step, as draft tokens that cannot be wrong
//! ([`Speculation`](super::speculation::Speculation)).

mod answer;
mod workers;

pub(super) use answer::ConstrainedAnswer;
pub(super) use workers::MaskWorkers;

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

/// A constraint went beyond its limits, or allows no token: the answer ends. The text says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConstraintFault(pub String);

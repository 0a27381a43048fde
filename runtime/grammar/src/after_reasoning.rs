//! A constraint of what follows a model's reasoning.

use std::sync::Arc;

use trail_runtime::backend::TokenMask;
use trail_runtime::engine::{Constraint, ConstraintFault, Matcher};

/// Reasoning of any tokens but an end, up to the token `close`; then `inner`.
pub struct AfterReasoning {
    /// The token with which the answer may begin its reasoning, or else has none; `None` for an
    /// answer that begins in its reasoning.
    pub open: Option<u32>,
    /// The token that ends the reasoning.
    pub close: u32,
    /// The constraint of what follows.
    pub inner: Arc<dyn Constraint>,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
}

impl Constraint for AfterReasoning {
    fn matcher(&self, ends: &[u32]) -> Box<dyn Matcher> {
        let mut reasoning = TokenMask::all(self.vocab_size);
        ends.iter().for_each(|&end| reasoning.forbid(end));
        let place = self.open.map_or(Place::Reasoning, Place::Start);
        let inner = self.inner.matcher(ends);
        Box::new(AfterReasoningMatcher { place, close: self.close, reasoning, inner })
    }
}

/// Place of the next token.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// The first one, which opens the reasoning if it is this one.
    Start(u32),
    Reasoning,
    Inner,
}

struct AfterReasoningMatcher {
    place: Place,
    close: u32,
    /// Tokens of reasoning.
    reasoning: TokenMask,
    inner: Box<dyn Matcher>,
}

impl Matcher for AfterReasoningMatcher {
    fn accept(&mut self, token: u32) -> Result<(), ConstraintFault> {
        self.place = match self.place {
            Place::Start(open) if token == open => Place::Reasoning,
            Place::Reasoning if token != self.close => Place::Reasoning,
            Place::Reasoning => Place::Inner,
            Place::Start(_) | Place::Inner => {
                self.inner.accept(token)?;
                Place::Inner
            }
        };
        Ok(())
    }

    fn force(&mut self, forced: &mut Vec<u32>) -> Result<(), ConstraintFault> {
        if self.place == Place::Inner { self.inner.force(forced) } else { Ok(()) }
    }

    fn mask(&mut self) -> Result<TokenMask, ConstraintFault> {
        match self.place {
            Place::Start(open) => {
                let mut mask = self.inner.mask()?;
                mask.allow(open);
                Ok(mask)
            }
            Place::Reasoning => Ok(self.reasoning.clone()),
            Place::Inner => self.inner.mask(),
        }
    }
}

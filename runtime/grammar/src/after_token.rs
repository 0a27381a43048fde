//! A constraint that begins behind a token, such as the end of a model's reasoning.

use std::sync::Arc;

use trail_runtime::backend::TokenMask;
use trail_runtime::engine::{Constraint, ConstraintFault, Matcher};

/// Any tokens but an end, up to the first `token`; then `inner`.
pub struct AfterToken {
    /// The token.
    pub token: u32,
    /// The constraint of what follows.
    pub inner: Arc<dyn Constraint>,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
}

impl Constraint for AfterToken {
    fn matcher(&self, ends: &[u32]) -> Box<dyn Matcher> {
        let mut before = TokenMask::all(self.vocab_size);
        ends.iter().for_each(|&end| before.forbid(end));
        let inner = self.inner.matcher(ends);
        Box::new(AfterTokenMatcher { token: self.token, before: Some(before), inner })
    }
}

struct AfterTokenMatcher {
    token: u32,
    /// Tokens that may come before the token; `None` behind it.
    before: Option<TokenMask>,
    inner: Box<dyn Matcher>,
}

impl Matcher for AfterTokenMatcher {
    fn accept(&mut self, token: u32) -> Result<(), ConstraintFault> {
        match &self.before {
            None => self.inner.accept(token),
            Some(_) => {
                self.before.take_if(|_| token == self.token);
                Ok(())
            }
        }
    }

    fn force(&mut self, forced: &mut Vec<u32>) -> Result<(), ConstraintFault> {
        if self.before.is_some() { Ok(()) } else { self.inner.force(forced) }
    }

    fn mask(&mut self) -> Result<TokenMask, ConstraintFault> {
        self.before.clone().map_or_else(|| self.inner.mask(), Ok)
    }
}

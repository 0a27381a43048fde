//! A compiled grammar, and the matcher of an answer.

use trail_runtime::backend::TokenMask;
use trail_runtime::engine::{Constraint, ConstraintFault, Matcher};

/// A compiled [`GrammarSpec`](crate::GrammarSpec), for the vocabulary of one model.
pub struct Grammar {
    start: llguidance::Matcher,
    vocab_size: usize,
    /// Tokens that end an answer, beside those of the request.
    eos: Vec<u32>,
}

impl Grammar {
    pub(crate) fn new(start: llguidance::Matcher, vocab_size: usize, eos: &[u32]) -> Grammar {
        Grammar { start, vocab_size, eos: eos.to_vec() }
    }
}

impl Constraint for Grammar {
    fn matcher(&self, ends: &[u32]) -> Box<dyn Matcher> {
        Box::new(GrammarMatcher {
            // Shares the lexer, whose states are slow to make, with all answers of the grammar.
            inner: self.start.clone(),
            vocab_size: self.vocab_size,
            eos: self.eos.clone(),
            ends: ends.to_vec(),
        })
    }
}

struct GrammarMatcher {
    inner: llguidance::Matcher,
    vocab_size: usize,
    eos: Vec<u32>,
    ends: Vec<u32>,
}

impl GrammarMatcher {
    /// True if nothing may follow but an end.
    fn is_complete(&self) -> bool {
        self.inner.is_stopped() && !self.inner.is_error()
    }

    /// The fault of the last call.
    fn fault(&self) -> Result<(), ConstraintFault> {
        match self.inner.get_error() {
            Some(error) => Err(ConstraintFault(first_line(&error))),
            None => Ok(()),
        }
    }
}

impl Matcher for GrammarMatcher {
    fn accept(&mut self, token: u32) -> Result<(), ConstraintFault> {
        // A fault is kept by the matcher.
        let _ = self.inner.consume_token(token);
        self.fault()
    }

    fn force(&mut self, forced: &mut Vec<u32>) -> Result<(), ConstraintFault> {
        while !self.is_complete() {
            let tokens = self.inner.compute_ff_tokens();
            self.fault()?;
            if tokens.is_empty() {
                return Ok(());
            }
            let _ = self.inner.consume_tokens(&tokens);
            self.fault()?;
            forced.extend(tokens);
        }
        forced.extend(self.ends.first());
        Ok(())
    }

    fn mask(&mut self) -> Result<TokenMask, ConstraintFault> {
        if self.is_complete() {
            let mut mask = TokenMask::none(self.vocab_size);
            self.ends.iter().for_each(|&end| mask.allow(end));
            return Ok(mask);
        }
        let tokens = self.inner.compute_mask();
        self.fault()?;
        let tokens = tokens.map_err(|error| ConstraintFault(first_line(&error.to_string())))?;
        let mut mask = TokenMask::from_words(self.vocab_size, tokens.as_slice());
        if self.eos.iter().any(|&id| mask.allows(id)) {
            self.ends.iter().for_each(|&end| mask.allow(end));
        }
        Ok(mask)
    }
}

/// llguidance's messages without the state that follows.
pub(crate) fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().trim().to_owned()
}

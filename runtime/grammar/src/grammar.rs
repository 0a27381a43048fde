//! A compiled grammar, and the matcher of an answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use llguidance::TokenParser;
use trail_runtime::backend::TokenMask;
use trail_runtime::engine::{Constraint, ConstraintFault, Matcher};

/// States of a lexer, at most: some kilobytes each.
pub(crate) const MAX_LEXER_STATES: usize = 65_536;

/// A compiled [`GrammarSpec`](crate::GrammarSpec), for the vocabulary of one model.
///
/// Its answers share a lexer, whose states are slow to make. A lexer that has failed, or has half
/// of the states that it may have, is left to the answers that use it, and another is begun.
pub struct Grammar {
    /// The parser at the beginning, with a lexer that no answer uses.
    start: TokenParser,
    /// The same, with the lexer that new answers use.
    shared: Mutex<TokenParser>,
    vocab_size: usize,
    /// Tokens that end an answer, beside those of the request.
    eos: Vec<u32>,
}

impl Grammar {
    /// A grammar of the parser `start`, which has begun.
    pub(crate) fn new(start: TokenParser, vocab_size: usize, eos: &[u32]) -> Grammar {
        let shared = Mutex::new(start.deep_clone());
        Grammar { start, shared, vocab_size, eos: eos.to_vec() }
    }

    /// A parser at the beginning.
    fn parser(&self) -> TokenParser {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        // A panic within the lexer leaves it locked for good: asking for its states panics, too.
        let stats = catch_unwind(AssertUnwindSafe(|| shared.parser.lexer_stats()));
        if stats.map_or(true, |stats| stats.error || stats.num_states > MAX_LEXER_STATES / 2) {
            *shared = self.start.deep_clone();
        }
        shared.clone()
    }
}

impl Constraint for Grammar {
    fn matcher(&self, ends: &[u32]) -> Box<dyn Matcher> {
        Box::new(GrammarMatcher {
            inner: llguidance::Matcher::new(Ok(self.parser())),
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
            Some(error) => Err(ConstraintFault::Refused(first_line(&error))),
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
        let tokens =
            tokens.map_err(|error| ConstraintFault::Refused(first_line(&error.to_string())))?;
        let mut mask = TokenMask::from_words(self.vocab_size, tokens.as_slice());
        if self.eos.iter().any(|&id| mask.allows(id)) {
            self.ends.iter().for_each(|&end| mask.allow(end));
        }
        Ok(mask)
    }
}

/// Longest message, characters: some repeat an expression that is as long as a grammar may be.
const MAX_MESSAGE: usize = 400;

/// llguidance's messages without the state that follows.
pub(crate) fn first_line(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default().trim();
    match line.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

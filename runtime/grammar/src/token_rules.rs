//! Rules on single tokens, as vLLM has them.

use std::sync::Arc;

use trail_runtime::backend::TokenMask;
use trail_runtime::engine::{Constraint, ConstraintFault, Matcher};

/// Tokens that an answer may have at all, sequences that it may not have, and its least length.
#[derive(Clone, Debug)]
pub struct TokenRules {
    /// Tokens that may occur.
    pub allowed: TokenMask,
    /// Sequences of tokens that may not occur, each of at least one token. Shared by the answers.
    pub bad_words: Arc<[Vec<u32>]>,
    /// Tokens before the answer may end.
    pub min_tokens: u32,
}

impl TokenRules {
    /// No rule on a vocabulary of `vocab_size` tokens.
    pub fn none(vocab_size: usize) -> TokenRules {
        let allowed = TokenMask::all(vocab_size);
        TokenRules { allowed, bad_words: Arc::default(), min_tokens: 0 }
    }

    /// True if every token may come anywhere.
    pub fn is_none(&self) -> bool {
        let all = TokenMask::all(self.allowed.vocab_size());
        self.bad_words.is_empty() && self.min_tokens == 0 && self.allowed == all
    }
}

impl Constraint for TokenRules {
    fn matcher(&self, ends: &[u32]) -> Box<dyn Matcher> {
        let rules = self.clone();
        Box::new(RulesMatcher { rules, ends: ends.to_vec(), tokens: Vec::new() })
    }
}

struct RulesMatcher {
    rules: TokenRules,
    ends: Vec<u32>,
    tokens: Vec<u32>,
}

impl Matcher for RulesMatcher {
    fn accept(&mut self, token: u32) -> Result<(), ConstraintFault> {
        self.tokens.push(token);
        Ok(())
    }

    fn force(&mut self, _: &mut Vec<u32>) -> Result<(), ConstraintFault> {
        Ok(())
    }

    fn mask(&mut self) -> Result<TokenMask, ConstraintFault> {
        let TokenRules { allowed, bad_words, min_tokens } = &self.rules;
        let mut mask = allowed.clone();
        for word in bad_words.iter() {
            let last = word.split_last().filter(|(_, before)| self.tokens.ends_with(before));
            last.into_iter().for_each(|(&last, _)| mask.forbid(last));
        }
        if self.tokens.len() < *min_tokens as usize {
            self.ends.iter().for_each(|&end| mask.forbid(end));
        }
        match mask.is_empty() {
            true => {
                Err(ConstraintFault::Refused("the rules on tokens leave none: relax one".into()))
            }
            false => Ok(mask),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_kept_token_by_token() {
        let mut rules = TokenRules::none(40);
        assert!(rules.is_none());
        rules.allowed = TokenMask::none(40);
        [3, 4, 5, 39].into_iter().for_each(|id| rules.allowed.allow(id));
        rules.bad_words = [vec![5], vec![3, 4, 3]].into();
        rules.min_tokens = 3;
        assert!(!rules.is_none());
        let mut matcher = rules.matcher(&[39]);
        let mut allowed = |token: Option<u32>| {
            token.into_iter().for_each(|token| matcher.accept(token).unwrap());
            let mask = matcher.mask().unwrap();
            (0..64).filter(|&id| mask.allows(id)).collect::<Vec<u32>>()
        };
        assert_eq!(allowed(None), [3, 4]);
        assert_eq!(allowed(Some(3)), [3, 4]);
        assert_eq!(allowed(Some(4)), [4]);
        assert_eq!(allowed(Some(4)), [3, 4, 39]);
        rules.bad_words = [3, 4, 5, 39].map(|id| vec![id]).into();
        assert!(rules.matcher(&[39]).mask().is_err());
    }
}

//! The tokens that a request may continue with.

use std::sync::Arc;

/// Bits of a word of a [`TokenMask`].
const WORD: usize = u32::BITS as usize;

/// A set of tokens of a vocabulary, one bit each; bits beyond the vocabulary are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    vocab_size: usize,
    words: Vec<u32>,
}

impl TokenMask {
    /// The empty set of a vocabulary of `vocab_size` tokens.
    pub fn none(vocab_size: usize) -> TokenMask {
        TokenMask { vocab_size, words: vec![0; vocab_size.div_ceil(WORD)] }
    }

    /// All tokens of a vocabulary of `vocab_size` tokens.
    pub fn all(vocab_size: usize) -> TokenMask {
        let mut mask = TokenMask::none(vocab_size);
        mask.words.fill(u32::MAX);
        mask.clear_rest();
        mask
    }

    /// Tokens of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The set with the bits `words`: missing words are zero, bits beyond the vocabulary are
    /// ignored.
    pub fn from_words(vocab_size: usize, words: &[u32]) -> TokenMask {
        let mut mask = TokenMask::none(vocab_size);
        let len = words.len().min(mask.words.len());
        mask.words[..len].copy_from_slice(&words[..len]);
        mask.clear_rest();
        mask
    }

    fn clear_rest(&mut self) {
        let rest = self.vocab_size % WORD;
        if let Some(last) = self.words.last_mut().filter(|_| rest > 0) {
            *last &= (1 << rest) - 1;
        }
    }

    /// Adds `id`; one outside the vocabulary is ignored.
    pub fn allow(&mut self, id: u32) {
        if (id as usize) < self.vocab_size {
            self.words[id as usize / WORD] |= 1 << (id as usize % WORD);
        }
    }

    /// Removes `id`.
    pub fn forbid(&mut self, id: u32) {
        if let Some(word) = self.words.get_mut(id as usize / WORD) {
            *word &= !(1 << (id as usize % WORD));
        }
    }

    /// True if `id` is in the set.
    pub fn allows(&self, id: u32) -> bool {
        let word = self.words.get(id as usize / WORD).copied().unwrap_or(0);
        word >> (id as usize % WORD) & 1 == 1
    }

    /// Removes the tokens that are not in `other`, a set of the same vocabulary.
    pub fn intersect(&mut self, other: &TokenMask) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= other);
    }

    /// True if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// The bits: token `id` is bit `id % 32` of word `id / 32`.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Copies `logits` to `masked`, with minus infinity for tokens that are not in the set.
    ///
    /// # Panics
    ///
    /// If the lengths are not that of the vocabulary.
    pub fn apply(&self, logits: &[f32], masked: &mut [f32]) {
        assert_eq!((logits.len(), masked.len()), (self.vocab_size, self.vocab_size));
        let chunks = logits.chunks(WORD).zip(masked.chunks_mut(WORD));
        for (&word, (logits, masked)) in self.words.iter().zip(chunks) {
            match word {
                0 => masked.fill(f32::NEG_INFINITY),
                u32::MAX => masked.copy_from_slice(logits),
                _ => {
                    for (at, (masked, &logit)) in masked.iter_mut().zip(logits).enumerate() {
                        let is_allowed = word >> at & 1 == 1;
                        *masked = if is_allowed { logit } else { f32::NEG_INFINITY };
                    }
                }
            }
        }
    }
}

/// Tokens that may come at one position of an answer.
#[derive(Clone, Debug)]
pub enum Allowed {
    /// All tokens.
    Any,
    /// This token alone.
    Only(u32),
    /// The tokens of a mask.
    Mask(Arc<TokenMask>),
}

/// The tokens that one request may continue with.
pub trait AllowedTokens: Send + Sync {
    /// Tokens that may come after the first `generated` tokens of the answer, which include the
    /// draft tokens of the step. May wait until they are known.
    fn after(&self, generated: usize) -> Allowed;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_a_set_of_tokens() {
        for vocab_size in [1, 31, 32, 33, 70] {
            let mut mask = TokenMask::none(vocab_size);
            assert!(mask.is_empty());
            let ids = (0..vocab_size as u32).filter(|id| id % 3 == 0);
            ids.clone().for_each(|id| mask.allow(id));
            mask.allow(vocab_size as u32);
            mask.allow(u32::MAX);
            let all: Vec<u32> = (0..200).filter(|&id| mask.allows(id)).collect();
            assert_eq!(all, ids.collect::<Vec<_>>());
            assert_eq!(TokenMask::from_words(vocab_size, mask.words()), mask);
            let mut same = TokenMask::all(vocab_size);
            assert_eq!(same, TokenMask::from_words(vocab_size, &[u32::MAX; 9]));
            same.intersect(&mask);
            assert_eq!(same, mask);
            same.forbid(0);
            same.forbid(u32::MAX);
            assert!(!same.allows(0) && same.words()[1..] == mask.words()[1..]);
        }
    }

    #[test]
    fn masked_logits_are_those_of_the_set() {
        let logits: Vec<f32> = (0..100).map(|id| id as f32).collect();
        let words = [0, u32::MAX, 0x8000_0001, 4];
        let mask = TokenMask::from_words(100, &words);
        let mut masked = vec![0.0; 100];
        mask.apply(&logits, &mut masked);
        for id in 0..100 {
            let expected = if mask.allows(id) { id as f32 } else { f32::NEG_INFINITY };
            assert_eq!(masked[id as usize], expected);
        }
    }
}

//! A prompt as a bag of words.

use std::collections::BTreeMap;

use trail_probe::predictor::Features as Inputs;

/// Buckets of the hash that a word falls into: the vocabulary, as the proxy has no tokenizer. With
/// some thousand prompts two frequent words rarely share one.
pub(super) const VOCAB: usize = 1 << 14;

/// Longest part of a prompt that is read, bytes: both ends of a long one say what it asks for.
const MAX_BYTES: usize = 32 << 10;

/// How often each word occurs in a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Features {
    counts: BTreeMap<u32, u32>,
    bytes: usize,
}

impl Features {
    /// Adds the words of `text`.
    pub(super) fn add_text(&mut self, text: &str) {
        let room = MAX_BYTES.saturating_sub(self.bytes).min(text.len());
        // A character has at most four bytes.
        let end = (room.saturating_sub(3)..=room).rev().find(|&end| text.is_char_boundary(end));
        let end = end.unwrap_or(0);
        self.bytes += end;
        let words = text[..end].split(|letter: char| !letter.is_alphanumeric());
        words.filter(|word| !word.is_empty()).for_each(|word| {
            self.add(word.chars().flat_map(char::to_lowercase));
        });
    }

    /// Adds a fact that is no word of the prompt.
    pub(super) fn add_fact(&mut self, name: &str, value: &str) {
        self.add(name.chars().chain(['=']).chain(value.chars()));
    }

    /// FNV-1a, which is the same in every run: a trained predictor is kept in a file.
    fn add(&mut self, letters: impl Iterator<Item = char>) {
        let hash = letters.fold(0xCBF2_9CE4_8422_2325, |hash: u64, letter| {
            (hash ^ u64::from(u32::from(letter))).wrapping_mul(0x0100_0000_01B3)
        });
        *self.counts.entry((hash >> 32) as u32 % VOCAB as u32).or_default() += 1;
    }

    /// The inputs of a predictor that are not zero, as those of [`Inputs::BagOfTokens`].
    pub(super) fn inputs(&self) -> Vec<(u32, f64)> {
        self.counts.iter().map(|(&word, &count)| (word, f64::from(count).ln_1p())).collect()
    }

    /// The kind of these features.
    pub(super) fn kind() -> Inputs {
        Inputs::BagOfTokens { vocab: VOCAB }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Features {
        let mut features = Features::default();
        features.add_text(text);
        features
    }

    #[test]
    fn words_count_whatever_their_order_and_case() {
        assert_eq!(
            of("List the primes, the PRIMES").inputs(),
            of("the list: primes The primes").inputs()
        );
        assert_ne!(of("list").inputs(), of("lists").inputs());
        let inputs = of("one one two").inputs();
        assert_eq!(inputs.len(), 2);
        assert!(inputs.iter().all(|&(word, _)| (word as usize) < VOCAB));
        assert!(inputs.iter().any(|&(_, value)| value == 2f64.ln_1p()));
    }

    #[test]
    fn the_hash_is_that_of_files_written_before() {
        assert_eq!(of("prime").inputs(), [(13092, 1f64.ln_1p())]);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let text = "\u{fc}".repeat(MAX_BYTES);
        let cut = of(&text);
        assert!((MAX_BYTES - 1..=MAX_BYTES).contains(&cut.bytes), "{}", cut.bytes);
        let mut more = cut.clone();
        more.add_text("a");
        assert_eq!(more.inputs(), cut.inputs());
    }
}

//! SentencePiece's BPE: of all adjacent pairs that make a token, the one with the best score is
//! merged, the leftmost of equal ones.
//!
//! The tokenizers crate has merges of distinct ranks only. Merges derived from the scores would
//! give the two ways to make one token different ranks, and other ids than llama.cpp's.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use tokenizers::Token;
use tokenizers::models::bpe::Vocab;

/// No symbol.
const NONE: usize = usize::MAX;

/// A vocabulary with a score for each token.
pub(super) struct ScoredMerges {
    ids: Vocab,
    tokens: Vec<String>,
    scores: Vec<f32>,
    /// Tokens that text never becomes by merging: control tokens.
    unmergeable: Vec<bool>,
    /// Tokens of single bytes, for characters that are no tokens.
    bytes: Vec<Option<u32>>,
}

/// A piece of the text, in a list of its neighbours.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    /// Bytes; 0 after it was merged into its left neighbour.
    len: usize,
    left: usize,
    right: usize,
}

/// Two neighbours whose text is a token.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both: another number than now means that one of the two has changed.
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_score = self.score.total_cmp(&other.score);
        by_score.then_with(|| Reverse(self.left).cmp(&Reverse(other.left)))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl ScoredMerges {
    /// A model of distinct `tokens`, each with its score and a flag for those that text never
    /// becomes.
    pub(super) fn new(tokens: Vec<String>, scores: Vec<f32>, unmergeable: Vec<bool>) -> Self {
        let ids: Vocab = tokens.iter().cloned().zip(0..).collect();
        // A byte without its own token is that character, as in llama.cpp.
        let byte = |byte: u8| {
            let named = ids.get(format!("<0x{byte:02X}>").as_str());
            named.or_else(|| ids.get(std::str::from_utf8(&[byte]).ok()?)).copied()
        };
        let bytes = (0..=u8::MAX).map(byte).collect();
        // Scores are compared by `total_cmp`, where -0 is below 0; SentencePiece writes both.
        let scores = scores.into_iter().map(|score| score + 0.0).collect();
        ScoredMerges { ids, tokens, scores, unmergeable, bytes }
    }

    /// The id of `token`.
    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    /// The token of `id`.
    pub(super) fn token(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).map(String::as_str)
    }

    /// All tokens, in the order of their ids.
    pub(super) fn tokens(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tokens.iter().map(String::as_str)
    }

    /// Returns true if any text has tokens.
    pub(super) fn has_all_bytes(&self) -> bool {
        self.bytes.iter().all(Option::is_some)
    }

    /// Encodes `text`, whose spaces are U+2581 already.
    pub(super) fn tokenize(&self, text: &str) -> tokenizers::Result<Vec<Token>> {
        let mut symbols = symbols_of(text);
        self.merge(text, &mut symbols);
        let mut tokens = Vec::new();
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            let (start, end) = (symbol.start, symbol.start + symbol.len);
            let piece = &text[start..end];
            if let Some(id) = self.mergeable(piece) {
                tokens.push(Token::new(id, piece.to_string(), (start, end)));
                continue;
            }
            for byte in piece.bytes() {
                let id = self.bytes[usize::from(byte)];
                let id = id.ok_or_else(|| format!("no token for the byte {byte:#04x}"))?;
                tokens.push(Token::new(id, self.tokens[id as usize].clone(), (start, end)));
            }
        }
        Ok(tokens)
    }

    /// The id of `piece`, unless it is a control token.
    fn mergeable(&self, piece: &str) -> Option<u32> {
        self.id(piece).filter(|&id| !self.unmergeable[id as usize])
    }

    fn merge(&self, text: &str, symbols: &mut [Symbol]) {
        let mut queue = BinaryHeap::new();
        for left in 0..symbols.len() {
            queue.extend(self.pair(text, symbols, left));
        }
        while let Some(pair) = queue.pop() {
            let (left, right) = (symbols[pair.left], symbols[pair.right]);
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
                continue;
            }
            symbols[pair.right].len = 0;
            symbols[pair.left].len = pair.len;
            symbols[pair.left].right = right.right;
            if right.right != NONE {
                symbols[right.right].left = pair.left;
            }
            if left.left != NONE {
                queue.extend(self.pair(text, symbols, left.left));
            }
            queue.extend(self.pair(text, symbols, pair.left));
        }
    }

    /// The symbol `left` with its right neighbour, if they make a token.
    fn pair(&self, text: &str, symbols: &[Symbol], left: usize) -> Option<Pair> {
        let symbol = symbols[left];
        let right = (symbol.right != NONE).then_some(symbol.right)?;
        let len = symbol.len + symbols[right].len;
        let id = self.mergeable(&text[symbol.start..symbol.start + len])?;
        Some(Pair { score: self.scores[id as usize], left, right, len })
    }
}

/// The characters of `text`.
fn symbols_of(text: &str) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
    for (start, character) in text.char_indices() {
        let index = symbols.len();
        let left = index.checked_sub(1).unwrap_or(NONE);
        symbols.push(Symbol { start, len: character.len_utf8(), left, right: index + 1 });
    }
    if let Some(last) = symbols.last_mut() {
        last.right = NONE;
    }
    symbols
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(text: &str) -> Vec<String> {
        let scored = [
            ("a", 0.0),
            ("aa", -2.0),
            ("ab", -1.0),
            ("ba", -1.0),
            ("b", 0.0),
            ("aab", -3.0),
            ("<s", -3.0),
            ("<s>", 9.0),
            ("<", 0.0),
            ("s", 0.0),
            (">", 0.0),
            ("<0xC3>", 0.0),
            ("<0xA9>", 0.0),
        ];
        let tokens = scored.map(|(token, _)| token.to_string()).to_vec();
        let scores = scored.map(|(_, score)| score).to_vec();
        let control = scored.map(|(token, _)| token == "<s>").to_vec();
        let model = ScoredMerges::new(tokens, scores, control);
        let tokens = model.tokenize(text).expect("tokens");
        tokens.into_iter().map(|token| token.value).collect()
    }

    #[test]
    fn the_best_score_is_merged_first_and_the_leftmost_of_equal_ones() {
        assert_eq!(encode("aaaa"), ["aa", "aa"]);
        assert_eq!(encode("aba"), ["ab", "a"]);
        assert_eq!(encode("bab"), ["ba", "b"]);
        assert_eq!(encode("aab"), ["aab"]);
        assert_eq!(encode("aaab"), ["aa", "ab"]);
        assert_eq!(encode(""), [""; 0]);
    }

    #[test]
    fn unknown_characters_are_bytes_and_control_tokens_are_not_made() {
        assert_eq!(encode("aé"), ["a", "<0xC3>", "<0xA9>"]);
        assert_eq!(encode("<s>"), ["<s", ">"]);
    }
}

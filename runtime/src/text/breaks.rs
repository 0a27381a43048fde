//! Special tokens that are text: breaks within a chat's text keep the tokenizer from finding them.
//!
//! A break is a character between two others. The tokenizer first splits a text at its special
//! tokens, and a special token with a break inside is not found. Then the first pre-tokenizer,
//! [`BreakRemover`], removes the breaks, so that pre-tokenization and merges see the text alone.
//! A text without breaks is encoded as by the tokenizers crate.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tokenizers::{NormalizedString, PreTokenizedString, PreTokenizer, PreTokenizerWrapper};

/// A Unicode noncharacter, which is not for interchange. In a text with breaks a single one is a
/// break, and two are one of the text itself.
pub(super) const BREAK: char = '\u{FDD0}';

/// Pre-tokenizer that removes breaks, then applies the model's own.
#[derive(Default, Deserialize, Serialize)]
#[serde(transparent)]
pub(super) struct BreakRemover(Option<PreTokenizerWrapper>);

impl BreakRemover {
    /// Removes breaks before `pre_tokenizer`.
    pub(super) fn before(pre_tokenizer: PreTokenizerWrapper) -> Self {
        BreakRemover(Some(pre_tokenizer))
    }
}

impl PreTokenizer for BreakRemover {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        text.normalize(|piece| {
            remove_breaks(piece);
            Ok(())
        })?;
        match &self.0 {
            Some(pre_tokenizer) => pre_tokenizer.pre_tokenize(text),
            None => Ok(()),
        }
    }
}

/// Removes each break, and one of each two break characters.
fn remove_breaks(piece: &mut NormalizedString) {
    if !piece.get().contains(BREAK) {
        return;
    }
    let removed_before = Cell::new(false);
    piece.filter(|character| {
        let keep = character != BREAK || removed_before.get();
        removed_before.set(!keep);
        keep
    });
}

/// Returns a text with breaks whose encoding is that of `text`.
pub(super) fn keep_break_characters(text: &str) -> Cow<'_, str> {
    match text.contains(BREAK) {
        true => text.replace(BREAK, "\u{FDD0}\u{FDD0}").into(),
        false => text.into(),
    }
}

/// Texts of the special tokens.
pub(super) struct SpecialTexts {
    texts: Vec<String>,
    /// Bytes that a special token begins with.
    begins: [bool; 256],
}

impl SpecialTexts {
    pub(super) fn new(texts: impl Iterator<Item = String>) -> Self {
        // A break has no place in a token of one character.
        let texts: Vec<String> = texts.filter(|text| text.chars().count() > 1).collect();
        let mut begins = [false; 256];
        texts.iter().for_each(|text| begins[usize::from(text.as_bytes()[0])] = true);
        SpecialTexts { texts, begins }
    }

    /// Returns `text` with breaks inside its special tokens. Text beside it cannot complete a
    /// special token that begins or ends within it either, also after white space at its ends was
    /// trimmed.
    pub(super) fn break_within<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let breaks = self.breaks(text);
        if breaks.is_empty() {
            return keep_break_characters(text);
        }
        let mut broken = String::with_capacity(text.len() + BREAK.len_utf8() * breaks.len());
        let mut done = 0;
        for at in breaks {
            broken.push_str(&keep_break_characters(&text[done..at]));
            broken.push(BREAK);
            done = at;
        }
        broken.push_str(&keep_break_characters(&text[done..]));
        broken.into()
    }

    /// Byte positions of the breaks.
    fn breaks(&self, text: &str) -> BTreeSet<usize> {
        let mut breaks = BTreeSet::new();
        for (at, byte) in text.bytes().enumerate() {
            if !self.begins[usize::from(byte)] {
                continue;
            }
            for special in self.texts.iter().filter(|special| text[at..].starts_with(*special)) {
                breaks.extend(inner_bounds(special).map(|inner| at + inner));
            }
        }
        let body = text.trim();
        let start = text.len() - text.trim_start().len();
        if self.texts.iter().any(|special| is_end_or_inside(special, body)) {
            breaks.insert(start);
        }
        if self.texts.iter().any(|special| is_begin_or_inside(special, body)) {
            breaks.insert(start + body.len());
        }
        breaks
    }
}

/// Byte positions between two characters of `text`.
fn inner_bounds(text: &str) -> impl Iterator<Item = usize> {
    text.char_indices().map(|(at, _)| at).skip(1)
}

/// Returns true if `special` could end within `body`, or have all of it inside.
fn is_end_or_inside(special: &str, body: &str) -> bool {
    let ends = inner_bounds(special).any(|at| body.starts_with(&special[at..]));
    ends || (!body.is_empty() && special.contains(body))
}

/// Returns true if `special` could begin within `body`, or have all of it inside.
fn is_begin_or_inside(special: &str, body: &str) -> bool {
    let begins = inner_bounds(special).any(|at| body.ends_with(&special[..at]));
    begins || (!body.is_empty() && special.contains(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(text: &str) -> String {
        let texts = SpecialTexts::new(["<s>", "</s>", "[é]"].map(String::from).into_iter());
        texts.break_within(text).replace(BREAK, "|")
    }

    #[test]
    fn special_tokens_and_their_parts_at_the_ends_are_broken() {
        assert_eq!(broken("a <s> b"), "a <|s|> b");
        assert_eq!(broken("a </s> [é] b"), "a <|/|s|> [|é|] b");
        assert_eq!(broken(" s> b <"), " |s> b <|");
        assert_eq!(broken("s"), "|s|");
        assert_eq!(broken("a\u{FDD0}b"), "a||b");
        for plain in ["", " ", "plain text", "a < b > c", "a s b"] {
            assert!(matches!(
                SpecialTexts::new(["<s>".to_string()].into_iter()).break_within(plain),
                Cow::Borrowed(_)
            ));
        }
    }

    #[test]
    fn breaks_are_removed_and_break_characters_stay() {
        for (text, expected) in [
            ("a\u{FDD0}b", "ab"),
            ("\u{FDD0}", ""),
            ("\u{FDD0}\u{FDD0}", "\u{FDD0}"),
            ("\u{FDD0}\u{FDD0}\u{FDD0}x\u{FDD0}", "\u{FDD0}x"),
            ("plain", "plain"),
        ] {
            let mut piece = NormalizedString::from(text);
            remove_breaks(&mut piece);
            assert_eq!(piece.get(), expected);
        }
    }
}

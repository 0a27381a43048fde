//! The bytes of single tokens.

use std::sync::OnceLock;

use tokenizers::DecoderWrapper;

use super::tokenizer::Tokenizer;

/// Rule by which a tokenizer's decoder makes bytes of tokens.
pub(super) struct TokenBytes {
    byte_level: bool,
    byte_fallback: bool,
    /// A token of ordinary text, before which another one is decoded.
    anchor: OnceLock<Option<u32>>,
}

impl TokenBytes {
    pub(super) fn new(decoder: Option<&DecoderWrapper>) -> Self {
        let parts = match decoder {
            Some(DecoderWrapper::Sequence(sequence)) => sequence.get_decoders(),
            decoder => decoder.map(std::slice::from_ref).unwrap_or_default(),
        };
        let has = |is: fn(&DecoderWrapper) -> bool| parts.iter().any(is);
        TokenBytes {
            byte_level: has(|part| matches!(part, DecoderWrapper::ByteLevel(_))),
            byte_fallback: has(|part| matches!(part, DecoderWrapper::ByteFallback(_))),
            anchor: OnceLock::new(),
        }
    }

    pub(super) fn of(&self, tokenizer: &Tokenizer, id: u32, first: bool) -> Vec<u8> {
        let Some(token) = tokenizer.token(id) else { return Vec::new() };
        if self.byte_level {
            return bytes_of_characters(&token).unwrap_or(token.into_bytes());
        }
        match byte_of_fallback(&token).filter(|_| self.byte_fallback) {
            Some(byte) => vec![byte],
            None => self.in_context(tokenizer, id, first).into_bytes(),
        }
    }

    /// The text of a token of whole characters. Decoders treat the first token in another way:
    /// SentencePiece drops the space before it.
    fn in_context(&self, tokenizer: &Tokenizer, id: u32, first: bool) -> String {
        let alone = || tokenizer.decode(&[id], false);
        let anchor = *self.anchor.get_or_init(|| ordinary_token(tokenizer));
        let Some(anchor) = anchor.filter(|_| !first) else { return alone() };
        let both = tokenizer.decode(&[anchor, id], false);
        let anchor = tokenizer.decode(&[anchor], false);
        both.strip_prefix(&anchor).map_or_else(alone, str::to_owned)
    }
}

/// A token of letters.
fn ordinary_token(tokenizer: &Tokenizer) -> Option<u32> {
    let is_ordinary = |&id: &u32| {
        let text = tokenizer.decode(&[id], false);
        !tokenizer.is_special(id) && !text.is_empty() && text.chars().all(char::is_alphabetic)
    };
    (0..tokenizer.vocab_size()).find(is_ordinary)
}

/// The byte of a byte-fallback token such as `<0xE2>`.
fn byte_of_fallback(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// The bytes that the characters of a byte-level token represent; `None` if one represents none,
/// as in a token that was added as text.
pub(super) fn bytes_of_characters(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte_of_character).collect()
}

/// Inverse of GPT-2's map from bytes to printable characters: a printable byte is its own
/// character, the others are U+0100 and following, in order.
fn byte_of_character(character: char) -> Option<u8> {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(character) {
        code @ 0x100.. => (0..=255).filter(|byte| !printable(byte)).nth(code as usize - 0x100),
        code => Some(code as u8).filter(printable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_byte_level_tokens_are_bytes() {
        assert_eq!(bytes_of_characters("Ġthe"), Some(b" the".to_vec()));
        assert_eq!(bytes_of_characters("ðŁĺ"), Some(vec![0xF0, 0x9F, 0x98]));
        assert_eq!(bytes_of_characters("日"), None);
        let all: Vec<u8> =
            (0..0x144).filter_map(char::from_u32).filter_map(byte_of_character).collect();
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..=255).collect::<Vec<u8>>(), "each byte has one character");
    }

    #[test]
    fn fallback_tokens_are_bytes() {
        assert_eq!(byte_of_fallback("<0xE2>"), Some(0xE2));
        for token in ["<0x2>", "<0xZZ>", "<0xE2", "a"] {
            assert_eq!(byte_of_fallback(token), None);
        }
    }
}

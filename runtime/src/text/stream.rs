//! Incremental detokenization.

use std::sync::Arc;

/// Decoder interface that a stream needs of a tokenizer.
pub trait Decode {
    /// Decodes `ids`. Invalid UTF-8, including an incomplete character, becomes U+FFFD.
    fn decode(&self, ids: &[u32]) -> String;
    /// Returns true for tokens without text (end of sequence, start of turn).
    fn is_special(&self, id: u32) -> bool;
}

impl<D: Decode + ?Sized> Decode for &D {
    fn decode(&self, ids: &[u32]) -> String {
        (**self).decode(ids)
    }
    fn is_special(&self, id: u32) -> bool {
        (**self).is_special(id)
    }
}

impl<D: Decode + ?Sized> Decode for Arc<D> {
    fn decode(&self, ids: &[u32]) -> String {
        (**self).decode(ids)
    }
    fn is_special(&self, id: u32) -> bool {
        (**self).is_special(id)
    }
}

/// Maximum number of tokens held back for an incomplete character. A character has at most 4 bytes
/// and a token at least one, so in a longer run each token ends a character and begins another, or
/// the bytes are invalid. All but the last character is released, which bounds the work per token.
const MAX_HELD: usize = 64;

/// Tokens kept after that, at least the 3 that can hold the bytes of an incomplete character.
const KEPT: usize = 8;

/// Decodes tokens incrementally, without splitting a character.
///
/// The text of a token can depend on the tokens before it: a character may span tokens, and
/// SentencePiece drops the space before the first one. So the stream decodes a window: the tokens
/// of the last piece as context, then those held back. The window's text beyond the context's text
/// is new. It is held back while it ends in U+FFFD, as the next token may complete a character.
///
/// The concatenated pieces are the decoded text of all tokens but the special ones. Both can
/// differ only where decoding a longer run changes earlier text: invalid bytes of byte-fallback
/// tokenizers, or bytes on both sides of a token without text.
pub struct TextStream<D> {
    decoder: D,
    /// Context and held-back tokens.
    window: Vec<u32>,
    /// Number of context tokens at the start of `window`.
    context: usize,
    /// Length of the part of the window's text that was returned, bytes.
    sent_bytes: usize,
    /// Length of the window's text, bytes.
    text_bytes: usize,
}

impl<D: Decode> TextStream<D> {
    /// A stream at the start of an answer.
    pub fn new(decoder: D) -> Self {
        TextStream { decoder, window: Vec::new(), context: 0, sent_bytes: 0, text_bytes: 0 }
    }

    /// Appends a token. Returns the text that is now certain, often empty.
    pub fn push(&mut self, id: u32) -> String {
        if self.decoder.is_special(id) {
            return String::new();
        }
        self.window.push(id);
        let text = self.decoder.decode(&self.window);
        if text.len() > self.sent_bytes && !text.ends_with(char::REPLACEMENT_CHARACTER) {
            return self.release(text);
        }
        // A token without text would take the place of one that begins a character.
        let adds_nothing = text.len() == self.text_bytes && self.window.len() > 1;
        if adds_nothing && self.decoder.decode(&[id]).is_empty() {
            self.window.pop();
        } else if self.window.len() - self.context >= MAX_HELD {
            return self.release_all_but_the_last(text);
        } else {
            self.text_bytes = text.len();
        }
        String::new()
    }

    /// Returns the text still held back, with an incomplete character as U+FFFD. Called once, at
    /// the end.
    pub fn flush(&mut self) -> String {
        let text = self.decoder.decode(&self.window);
        self.release(text)
    }

    /// Returns what is new in `text`, the decoded window, and makes the tokens held back the new
    /// context.
    fn release(&mut self, text: String) -> String {
        let new = self.unsent(text);
        self.window.drain(..self.context);
        self.context = self.window.len();
        self.text_bytes = self.decoder.decode(&self.window).len();
        self.sent_bytes = self.text_bytes;
        new
    }

    /// Returns what is new in `text`, the decoded window, but not the U+FFFD at its end: its bytes
    /// may begin a character. They are in the last tokens, which become the new context.
    fn release_all_but_the_last(&mut self, mut text: String) -> String {
        let incomplete = char::REPLACEMENT_CHARACTER.len_utf8();
        text.truncate(text.len().saturating_sub(incomplete));
        let new = self.unsent(text);
        self.window.drain(..self.window.len() - KEPT);
        self.context = self.window.len();
        self.text_bytes = self.decoder.decode(&self.window).len();
        self.sent_bytes = self.text_bytes.saturating_sub(incomplete);
        new
    }

    /// The part of `text`, which begins with the context's, that was not returned before.
    fn unsent(&self, mut text: String) -> String {
        // A decoder that rewrites its context can move the boundary into a character: start at the
        // next one.
        let start = (self.sent_bytes..text.len()).find(|&byte| text.is_char_boundary(byte));
        text.split_off(start.unwrap_or(text.len()))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use trail_platform::Rng;

    use super::*;

    /// A byte-level tokenizer: ids below 256 are bytes, others [`WORDS`]; [`SPECIAL`] is special.
    #[derive(Default)]
    struct Bytes {
        widest: Cell<usize>,
    }

    /// Tokens that end a character, begin one, or both.
    const WORDS: [&[u8]; 7] =
        [b"Hello", b" \xF0\x9F", b"\x98\x80", b"\x98\x80\xF0\x9F", "é".as_bytes(), b"<eos>", b""];
    const SPECIAL: u32 = 261;

    fn bytes_of(id: u32) -> Vec<u8> {
        u8::try_from(id).map_or_else(|_| WORDS[id as usize - 256].to_vec(), |byte| vec![byte])
    }

    impl Decode for Bytes {
        fn decode(&self, ids: &[u32]) -> String {
            self.widest.set(self.widest.get().max(ids.len()));
            let bytes: Vec<u8> = ids.iter().flat_map(|&id| bytes_of(id)).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
        fn is_special(&self, id: u32) -> bool {
            id == SPECIAL
        }
    }

    /// A SentencePiece-like tokenizer with byte fallback: a run of bytes is text only if all bytes
    /// are valid.
    struct Fallback;

    impl Decode for Fallback {
        fn decode(&self, ids: &[u32]) -> String {
            let mut text = String::new();
            for run in ids.chunk_by(|&a, &b| (a < 256) == (b < 256)) {
                let bytes: Vec<u8> = run.iter().flat_map(|&id| bytes_of(id)).collect();
                match String::from_utf8(bytes) {
                    Ok(valid) => text.push_str(&valid),
                    Err(_) => text.extend(run.iter().map(|_| char::REPLACEMENT_CHARACTER)),
                }
            }
            text.strip_prefix(' ').map(str::to_owned).unwrap_or(text)
        }
        fn is_special(&self, _: u32) -> bool {
            false
        }
    }

    fn pieces(decoder: impl Decode, ids: &[u32]) -> Vec<String> {
        let mut stream = TextStream::new(decoder);
        let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
        pieces.push(stream.flush());
        pieces
    }

    #[test]
    fn pieces_of_random_bytes_concatenate_to_the_whole() {
        let mut rng = Rng::new(1);
        for case in 0..3000 {
            let ids: Vec<u32> = (0..rng.below(60))
                .flat_map(|_| match rng.below(4) {
                    0 => vec![rng.below(256) as u32],
                    1 => "😀".bytes().map(u32::from).collect(),
                    2 => "a→".bytes().map(u32::from).collect(),
                    _ => vec![256 + rng.below(6) as u32],
                })
                .collect();
            let decoder = Bytes::default();
            let kept: Vec<u32> = ids.iter().copied().filter(|&id| id != SPECIAL).collect();
            assert_eq!(
                pieces(&decoder, &ids).concat(),
                decoder.decode(&kept),
                "case {case}: {ids:?}"
            );
        }
    }

    #[test]
    fn pieces_of_any_text_are_whole_characters() {
        let text = " Größe 😀👩‍👩‍👧 日本語 \u{FFFD}x";
        let ids: Vec<u32> = text.bytes().map(u32::from).collect();
        for (decoder, expected) in
            [(&Bytes::default() as &dyn Decode, text), (&Fallback, text.trim_start())]
        {
            let pieces = pieces(decoder, &ids);
            assert_eq!(pieces.concat(), expected);
            assert!(pieces.iter().all(|piece| piece.chars().count() <= 2), "{pieces:?}");
        }
    }

    #[test]
    fn a_character_cut_short_is_replaced_at_the_end() {
        assert_eq!(
            pieces(Bytes::default(), &[b'a'.into(), 0xF0, 0x9F, 0x98]),
            ["a", "", "", "", "\u{FFFD}"]
        );
        assert_eq!(pieces(Bytes::default(), &[]), [""]);
    }

    #[test]
    fn special_tokens_say_nothing() {
        assert_eq!(
            pieces(Bytes::default(), &[SPECIAL, 256, SPECIAL, 257, SPECIAL, 258]),
            ["", "Hello", "", "", "", " 😀", ""]
        );
    }

    /// With an empty token as the only context, the space after it would count as leading and be
    /// dropped.
    #[test]
    fn tokens_without_text_are_no_context() {
        assert_eq!(pieces(Fallback, &[256, 262, 257, 258]), ["Hello", "", "", " 😀", ""]);
    }

    #[test]
    fn invalid_bytes_neither_grow_the_window_nor_panic() {
        for ids in [vec![0xFF; 1000], vec![0xF0; 1000], [vec![257], vec![259; 1000]].concat()] {
            let decoder = Bytes::default();
            assert!(!pieces(&decoder, &ids).concat().is_empty());
            assert!(
                decoder.widest.get() <= 2 * MAX_HELD,
                "window of {} tokens",
                decoder.widest.get()
            );
            pieces(Fallback, &ids);
        }
        let mut rng = Rng::new(2);
        let ids: Vec<u32> = (0..5000).map(|_| rng.below(261) as u32).collect();
        pieces(Fallback, &ids);
    }

    #[test]
    fn long_runs_that_end_within_a_character_lose_none() {
        let empty = |count| vec![262; count];
        let cases = [
            // A character whose bytes are far apart.
            [vec![0xE0], empty(70), vec![0xBD], empty(70), vec![0xBD]].concat(),
            // The 64th token that is held back begins one.
            [vec![0xFF; 63], vec![0xE0, 0xBD, 0xBD]].concat(),
            [vec![0xFF; 61], vec![0xF0, 0x9F, 0x98, 0x80]].concat(),
            // Each token ends one and begins the next.
            [vec![257], vec![259; 1000], vec![258]].concat(),
            // Nothing but tokens without text, then a word.
            [empty(200), vec![256]].concat(),
        ];
        for (case, ids) in cases.iter().enumerate() {
            let decoder = Bytes::default();
            assert_eq!(pieces(&decoder, ids).concat(), decoder.decode(ids), "case {case}");
            // Others can change earlier text.
            if ids.iter().all(|&id| id < 256) {
                assert_eq!(pieces(Fallback, ids).concat(), Fallback.decode(ids), "case {case}");
            }
        }
    }

    #[test]
    fn ordinary_text_is_decoded_in_small_windows() {
        let decoder = Bytes::default();
        pieces(
            &decoder,
            &"plain text 😀 and more of it".bytes().map(u32::from).collect::<Vec<_>>(),
        );
        assert!(decoder.widest.get() <= 8, "window of {} tokens", decoder.widest.get());
    }
}

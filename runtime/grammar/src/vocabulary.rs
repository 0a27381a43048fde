//! A model's vocabulary as llguidance sees it: the bytes of each token, and the tokens of a text.

use std::sync::Arc;

use llguidance::toktrie::{TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use trail_runtime::text::Tokenizer;

/// A token before the text that is tokenized, as a tokenizer can treat the first one in another
/// way: SentencePiece puts a space before it.
const ANCHOR: &str = "\u{2}";

/// Bytes and tokenization of a vocabulary.
pub(crate) struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
    /// Tokens of [`ANCHOR`].
    anchor: Vec<TokenId>,
}

impl Vocabulary {
    /// The first `vocab_size` tokens of `tokenizer`. Those of `ends` end an answer; at least one.
    /// Takes about a second for 250,000 tokens.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize, ends: &[u32]) -> Vocabulary {
        let words: Vec<Vec<u8>> = (0..vocab_size as u32).map(|id| word(&tokenizer, id)).collect();
        let info = TokRxInfo::new(vocab_size as u32, ends[0]);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(ends);
        let anchor = tokenizer.encode_text(ANCHOR, false).unwrap_or_default();
        Vocabulary { tokenizer, trie, anchor }
    }

    /// The tokens of `text` as the model's own answers have them; `None` if they are not known to
    /// be: a normalizer changed the text, or the anchor is not apart from it.
    fn canonical(&self, text: &str) -> Option<Vec<TokenId>> {
        let anchored = self.tokenizer.encode_text(&format!("{ANCHOR}{text}"), false).ok()?;
        let tokens = anchored.strip_prefix(&*self.anchor)?;
        let is_known = |&id: &TokenId| (id as usize) < self.trie.vocab_size();
        let is_exact =
            tokens.iter().all(is_known) && self.trie.decode_raw(tokens) == text.as_bytes();
        is_exact.then(|| tokens.to_vec())
    }
}

/// The bytes of token `id` within an answer. Special tokens have none: they are named after
/// llguidance's marker.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id, false);
    match tokenizer.is_special(id) {
        true => [&[TokTrie::SPECIAL_TOKEN_MARKER], &*bytes].concat(),
        false => bytes,
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            self.canonical(text).unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }
}

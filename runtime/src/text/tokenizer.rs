//! The model's tokenizer: encodes text to token ids and decodes them.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;

use tokenizers::{
    DecoderWrapper, NormalizerWrapper, PostProcessor, PostProcessorWrapper, TokenizerImpl,
    TruncationParams,
};

use super::breaks::{BreakRemover, SpecialTexts, keep_break_characters};
use super::json_syntax;
use super::stream::Decode;
use super::text_bound::TokenBound;
use super::text_growth;
use super::token_bytes::TokenBytes;
use super::token_model::TokenModel;
use crate::model::LoadError;
use crate::model::files::{model_folder, read_json};

/// A tokenizer of the tokenizers crate whose pre-tokenizer removes breaks.
pub(super) type Inner = TokenizerImpl<
    TokenModel,
    NormalizerWrapper,
    BreakRemover,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// A tokenizer read from a Hugging Face `tokenizer.json` or from the metadata of a GGUF file.
pub struct Tokenizer {
    inner: Inner,
    /// Ids of the special tokens, such as end-of-sequence, which are not part of the text.
    special: HashSet<u32>,
    /// Texts of the special tokens.
    special_texts: SpecialTexts,
    token_bytes: TokenBytes,
    bound: OnceLock<Option<TokenBound>>,
}

/// Error: the tokenizer has no tokens for the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodeError(String);

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the text cannot be tokenized: {}", self.0)
    }
}

impl std::error::Error for EncodeError {}

impl Tokenizer {
    /// Loads the `tokenizer.json` of the model at `path` (the folder, or a file in it), whose
    /// embedding table has `vocab_size` rows. Added tokens may have ids beyond: the engine refuses
    /// a prompt with one, and samples none.
    pub fn load(path: &Path, vocab_size: usize) -> Result<Self, LoadError> {
        let file = model_folder(path).join("tokenizer.json");
        if !file.is_file() {
            return Err(LoadError::new(
                &file,
                "tokenizer",
                "a tokenizer.json beside the weights",
                "no such file",
                "download it with the model, convert tokenizer.model with transformers, or pass token ids",
            ));
        }
        let tokenizer = Self::parse(&file, &read_json(&file)?)?;
        let largest = tokenizer.inner.get_vocab(false).into_values().max();
        tokenizer.with_ids_below(&file, vocab_size, largest)
    }

    /// A tokenizer from the bytes of `file`, all of whose ids are below `vocab_size`.
    pub fn from_bytes(file: &Path, bytes: &[u8], vocab_size: usize) -> Result<Self, LoadError> {
        let tokenizer = Self::parse(file, bytes)?;
        let largest = tokenizer.inner.get_vocab(true).into_values().max();
        tokenizer.with_ids_below(file, vocab_size, largest)
    }

    fn parse(file: &Path, bytes: &[u8]) -> Result<Self, LoadError> {
        let fault = |found: String| {
            let expected = "a Hugging Face fast tokenizer";
            LoadError::new(file, "content", expected, found, "download it again")
        };
        json_syntax::check(bytes).map_err(|error| fault(error.to_string()))?;
        let inner = contained(|| Inner::from_bytes(bytes));
        let inner = inner.map_err(fault)?.map_err(|error| fault(error.to_string()))?;
        text_growth::check(&inner).map_err(fault)?;
        contained(|| Self::new(inner)).map_err(fault)
    }

    fn with_ids_below(
        self,
        file: &Path,
        vocab_size: usize,
        largest: Option<u32>,
    ) -> Result<Self, LoadError> {
        match largest {
            Some(largest) if largest as usize >= vocab_size => Err(LoadError::new(
                file,
                "vocab",
                format!("ids below the model's vocab_size {vocab_size}"),
                format!("id {largest}"),
                "take tokenizer.json and the weights from the same model",
            )),
            _ => Ok(self),
        }
    }

    /// A tokenizer of the crate's parts, without padding and truncation.
    pub(super) fn new(mut inner: Inner) -> Self {
        // Settings left over from training, which would truncate or pad every prompt.
        inner.with_padding(None);
        // `None` never fails: only truncation parameters are validated.
        let _ = inner.with_truncation(None);
        if inner.get_pre_tokenizer().is_none() {
            inner.with_pre_tokenizer(Some(BreakRemover::default()));
        }
        let added = inner.get_added_tokens_decoder();
        let special: Vec<_> = added.iter().filter(|(_, token)| token.special).collect();
        let texts = special.iter().map(|(_, token)| token.content.clone());
        Tokenizer {
            special_texts: SpecialTexts::new(texts),
            special: special.iter().map(|&(&id, _)| id).collect(),
            token_bytes: TokenBytes::new(inner.get_decoder()),
            bound: OnceLock::new(),
            inner,
        }
    }

    /// The same with a text's tokens cut at `max_length`, special ones included. The error says how
    /// many of those there are, unless there is room for one more.
    pub fn truncated(mut self, max_length: usize) -> Result<Self, String> {
        let post_processor = self.inner.get_post_processor();
        let special = post_processor.map_or(0, |post_processor| post_processor.added_tokens(false));
        if max_length <= special {
            return Err(format!("{max_length} tokens of a text, but {special} are special"));
        }
        let truncation = TruncationParams { max_length, ..TruncationParams::default() };
        self.inner.with_truncation(Some(truncation)).map_err(|error| error.to_string())?;
        Ok(self)
    }

    /// Encodes `text`. `add_special` adds the tokenizer's own special tokens, usually the
    /// beginning-of-sequence token. Special tokens within the text become control tokens.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, EncodeError> {
        self.encode_broken(&keep_break_characters(text), add_special)
    }

    /// Encodes text with breaks, which keep special tokens from becoming control tokens.
    pub(super) fn encode_broken(
        &self,
        text: &str,
        add_special: bool,
    ) -> Result<Vec<u32>, EncodeError> {
        let encoding = contained(|| self.inner.encode_fast(text, add_special));
        let encoding =
            encoding.map_err(EncodeError)?.map_err(|error| EncodeError(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Encodes `text` with its special tokens as text; see [`encode`](Self::encode).
    pub fn encode_text(&self, text: &str, add_special: bool) -> Result<Vec<u32>, EncodeError> {
        self.encode_broken(&self.special_texts.break_within(text), add_special)
    }

    /// Tokens that `text` has at least, known without encoding it; 0 where the tokenizer's rules
    /// set no bound.
    pub fn least_tokens(&self, text: &str) -> usize {
        let bound = self.bound.get_or_init(|| TokenBound::new(&self.inner));
        bound.as_ref().map_or(0, |bound| bound.least_tokens(text))
    }

    /// Tokens that a long `text` has at least, by encoding its first `bytes` alone: those of all
    /// words of the pre-tokenizer but the last two, since what follows may change where these end.
    /// 0 where it makes no words, or the text cannot be encoded.
    pub fn least_tokens_of_beginning(&self, text: &str, bytes: usize) -> usize {
        let end = (0..=bytes.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
        let beginning = keep_break_characters(&text[..end.unwrap_or(0)]);
        // `encode_fast` knows no words.
        let encoded = contained(|| self.inner.encode(&*beginning, false));
        let Ok(Ok(encoding)) = encoded else { return 0 };
        let words = encoding.get_word_ids();
        let last = words.iter().flatten().max().copied().unwrap_or(0);
        words.iter().flatten().filter(|&&word| word + 1 < last).count()
    }

    /// Returns `text` with breaks, so that it has no control tokens within a rendered chat.
    pub(super) fn break_special<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.special_texts.break_within(text)
    }

    /// Returns the bytes that token `id` adds to an answer, as its `first` token or a later one.
    /// They can be part of a character. A special token has the bytes of its name.
    pub fn token_bytes(&self, id: u32, first: bool) -> Vec<u8> {
        self.token_bytes.of(self, id, first)
    }

    /// Decodes `ids`, without special tokens if `skip_special`. Ids outside the vocabulary have no
    /// text. An incomplete character decodes to U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        // A decoder fails only on malformed rules; the fallback is the tokens' vocabulary entries.
        match contained(|| self.inner.decode(ids, skip_special)) {
            Ok(Ok(text)) => text,
            _ => ids.iter().filter_map(|&id| self.inner.id_to_token(id)).collect(),
        }
    }

    /// Returns true if `id` is a special token.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// Returns the id of vocabulary entry `token`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Returns the vocabulary entry of `id`. It is not text: a byte-level `Ġthe` decodes to ` the`.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Kind of the model behind the vocabulary.
    pub fn kind(&self) -> &'static str {
        self.inner.get_model().kind()
    }

    /// Tokens of the vocabulary, added ones included.
    pub fn vocab_size(&self) -> u32 {
        self.inner.get_vocab_size(true) as u32
    }
}

/// Calls the tokenizers crate, which panics on some rules that it has read without complaint: a
/// template of a special token that it does not define, for one. The error is the panic's message.
pub(super) fn contained<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    // A panic leaves no state behind: the crate's caches ignore a poisoned lock.
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message =
            message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        format!("a rule of the tokenizer is not applicable ({})", message.replace('\n', " "))
    })
}

/// Decodes answers, whose text has no special tokens.
impl Decode for Tokenizer {
    fn decode(&self, ids: &[u32]) -> String {
        Tokenizer::decode(self, ids, true)
    }

    fn is_special(&self, id: u32) -> bool {
        Tokenizer::is_special(self, id)
    }
}

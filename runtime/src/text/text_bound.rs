//! A lower bound of a text's tokens, by which a server refuses a prompt before it is tokenized.

use serde_json::Value;

use super::token_bytes::bytes_of_characters;
use super::token_model::TokenModel;
use super::tokenizer::Inner;
use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// Lower bounds of the tokens of texts.
pub(super) struct TokenBound {
    /// 2^32 over the most bytes of a token that can have the byte, rounded down. A token's bytes
    /// add up to 2^32 at most.
    shares: [u64; 256],
}

impl TokenBound {
    /// The bound of `tokenizer`, or `None` if there is none.
    pub(super) fn new(tokenizer: &Inner) -> Option<Self> {
        let longest = longest_by_byte(tokenizer)
            .or_else(|| max_token_bytes(tokenizer).map(|longest| [longest; 256]))?;
        let share = |longest: usize| (1_u64 << 32).checked_div(longest as u64).unwrap_or(0);
        Some(TokenBound { shares: longest.map(share) })
    }

    /// Tokens that `text` has at least.
    pub(super) fn least_tokens(&self, text: &str) -> usize {
        let sum: u64 = text.bytes().map(|byte| self.shares[usize::from(byte)]).sum();
        (sum >> 32) as usize
    }
}

/// The most bytes of a token that has the byte, of a byte-level BPE which leaves the bytes of a
/// text as they are; 0 for a byte that no token has, which is dropped. `None` for other tokenizers.
fn longest_by_byte(tokenizer: &Inner) -> Option<[usize; 256]> {
    let TokenModel::Crate(ModelWrapper::BPE(model)) = tokenizer.get_model() else { return None };
    let pre_tokenizer = serde_json::to_value(tokenizer.get_pre_tokenizer()).ok()?;
    let added = tokenizer.get_added_tokens_decoder();
    let strips = added.values().any(|token| token.lstrip || token.rstrip);
    let changes = strips || tokenizer.get_normalizer().is_some();
    if changes || keeps_text(&pre_tokenizer) != Some(true) {
        return None;
    }
    let mut longest = [0; 256];
    let mut add = |bytes: &[u8]| {
        bytes.iter().for_each(|&byte| {
            let longest = &mut longest[usize::from(byte)];
            *longest = (*longest).max(bytes.len());
        });
    };
    // An entry that is not spelled in bytes is never part of a text.
    let entries = model.get_vocab();
    entries.keys().filter_map(|entry| bytes_of_characters(entry)).for_each(|bytes| add(&bytes));
    added.values().for_each(|token| add(token.content.as_bytes()));
    Some(longest)
}

/// Most bytes of text that one token can have, or `None` if there is no such bound: some tokenizers
/// drop characters, or join any number of unknown ones to one token.
fn max_token_bytes(tokenizer: &Inner) -> Option<usize> {
    let added = tokenizer.get_added_tokens_decoder();
    if added.values().any(|token| token.lstrip || token.rstrip) {
        return None;
    }
    let shrinks = shrink_factor(&serde_json::to_value(tokenizer.get_normalizer()).ok()?)?;
    let pre_tokenizer = serde_json::to_value(tokenizer.get_pre_tokenizer()).ok()?;
    let model = match tokenizer.get_model() {
        TokenModel::Crate(ModelWrapper::BPE(model)) => model,
        TokenModel::Crate(_) => return None,
        TokenModel::Scored(model) => {
            let longest = model.tokens().map(str::len).max().unwrap_or(0);
            return model.has_all_bytes().then(|| longest.saturating_mul(shrinks));
        }
    };
    let vocabulary = model.get_vocab();
    let is_byte_level = keeps_text(&pre_tokenizer)?;
    let has_all_bytes = match is_byte_level {
        true => ByteLevel::alphabet().iter().all(|c| vocabulary.contains_key(&c.to_string())),
        false => {
            let has = |byte: u8| vocabulary.contains_key(&format!("<0x{byte:02X}>"));
            model.byte_fallback && (0..=255).all(has)
        }
    };
    // A byte-level entry has one character for each byte of text. Others are spelled with at least
    // the bytes of their text: a space is U+2581, a byte is `<0x0A>`.
    let entry = |entry: &String| if is_byte_level { entry.chars().count() } else { entry.len() };
    let longest = vocabulary.keys().map(entry).max().unwrap_or(0);
    let longest_added = added.values().map(|token| token.content.len()).max().unwrap_or(0);
    has_all_bytes.then(|| longest.max(longest_added).saturating_mul(shrinks))
}

/// Factor by which a normalizer may shorten a text; `None` if it is not known.
fn shrink_factor(normalizer: &Value) -> Option<usize> {
    if normalizer.is_null() {
        return Some(1);
    }
    match normalizer["type"].as_str()? {
        "Sequence" => normalizer["normalizers"].as_array()?.iter().map(shrink_factor).product(),
        "Prepend" => Some(1),
        "Replace" => {
            let from = normalizer["pattern"]["String"].as_str()?;
            (normalizer["content"].as_str()?.len() >= from.len()).then_some(1)
        }
        // Three Hangul jamo of 3 bytes become one syllable of 3, and U+212A (3 bytes) becomes `K`.
        "NFC" => Some(3),
        _ => None,
    }
}

/// Returns `Some` if the pre-tokenizer drops nothing: true if it maps bytes to characters.
fn keeps_text(pre_tokenizer: &Value) -> Option<bool> {
    if pre_tokenizer.is_null() {
        return Some(false);
    }
    match pre_tokenizer["type"].as_str()? {
        "Sequence" => {
            let parts = pre_tokenizer["pretokenizers"].as_array()?.iter().map(keeps_text);
            Some(parts.collect::<Option<Vec<bool>>>()?.contains(&true))
        }
        "ByteLevel" => Some(true),
        "Metaspace" | "Digits" => Some(false),
        "Split" => (pre_tokenizer["behavior"].as_str()? != "Removed").then_some(false),
        _ => None,
    }
}

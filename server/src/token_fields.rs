//! Fields on single tokens: OpenAI's `logit_bias`, and `min_tokens`, `bad_words` and
//! `allowed_token_ids` of vLLM.

use std::collections::BTreeMap;

use serde::Deserialize;
use trail_grammar::TokenRules;
use trail_runtime::backend::{MAX_LOGIT_BIAS, TokenMask};
use trail_runtime::text::Tokenizer;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::number::{Count, Real};

/// Most entries of a list of words or biases.
const MAX_ENTRIES: usize = MAX_LOGIT_BIAS;
/// Longest list of words, bytes: each is tokenized twice, and sought in each step.
const MAX_WORDS_BYTES: usize = 64 << 10;

/// Rules on tokens, as a request gives them.
#[derive(Deserialize, ToSchema, Clone, Debug, Default)]
pub(crate) struct TokenFields {
    pub min_tokens: Option<Count>,
    bad_words: Option<Vec<String>>,
    #[schema(min_items = 1)]
    allowed_token_ids: Option<Vec<Count>>,
    logit_bias: Option<BTreeMap<String, Real>>,
}

impl TokenFields {
    /// True if there are words, which are tokenized.
    pub(crate) fn has_words(&self) -> bool {
        self.bad_words.is_some()
    }

    /// The rules that need a mask in every step; `None` for none.
    pub(crate) fn rules(
        &self,
        tokenizer: &Tokenizer,
        vocab_size: usize,
    ) -> Result<Option<TokenRules>, ApiError> {
        let mut rules = TokenRules::none(vocab_size);
        rules.min_tokens = self.min_tokens.map_or(0, Count::get);
        let words = self.bad_words.as_deref().unwrap_or_default();
        if words.len() > MAX_ENTRIES {
            return Err(too_many("bad_words", words.len()));
        }
        let bytes: usize = words.iter().map(String::len).sum();
        if bytes > MAX_WORDS_BYTES {
            let message =
                format!("'bad_words' must have at most {MAX_WORDS_BYTES} bytes, not {bytes}");
            return Err(ApiError::invalid_field("bad_words", message));
        }
        rules.bad_words = words.iter().flat_map(|word| sequences(tokenizer, word)).collect();
        if let Some(ids) = &self.allowed_token_ids {
            rules.allowed = TokenMask::none(vocab_size);
            for id in ids.iter().map(|id| id.get()) {
                check_id("allowed_token_ids", id, vocab_size)?;
                rules.allowed.allow(id);
            }
            if rules.allowed.is_empty() {
                let message = "'allowed_token_ids' is empty: leave it out to allow all tokens";
                return Err(ApiError::invalid_field("allowed_token_ids", message));
            }
        }
        Ok((!rules.is_none()).then_some(rules))
    }

    /// Token ids with what is added to their logits.
    pub(crate) fn logit_bias(&self, vocab_size: usize) -> Result<Vec<(u32, f32)>, ApiError> {
        const NAME: &str = "logit_bias";
        let entries = self.logit_bias.iter().flatten();
        if entries.clone().count() > MAX_ENTRIES {
            return Err(too_many(NAME, entries.count()));
        }
        let bias = |(id, bias): (&String, &Real)| {
            let id = id.parse().map_err(|_| {
                let message = format!("'{NAME}': the key '{id}' is no token id");
                ApiError::invalid_field(NAME, message)
            })?;
            check_id(NAME, id, vocab_size)?;
            if !(-100.0..=100.0).contains(&bias.0) {
                let message = format!("'{NAME}' must be between -100 and 100, not {}", bias.0);
                return Err(ApiError::invalid_field(NAME, message));
            }
            Ok((id, bias.0))
        };
        entries.map(bias).collect()
    }
}

/// The tokens of a word, and those that it has after a space.
fn sequences(tokenizer: &Tokenizer, word: &str) -> Vec<Vec<u32>> {
    let word = word.trim_start();
    let encode = |text: &str| tokenizer.encode_text(text, false).unwrap_or_default();
    let mut all = vec![encode(word), encode(&format!(" {word}"))];
    all.dedup();
    all.retain(|tokens| !tokens.is_empty());
    all
}

fn check_id(field: &str, id: u32, vocab_size: usize) -> Result<(), ApiError> {
    if (id as usize) < vocab_size {
        return Ok(());
    }
    let message = format!("'{field}': token {id} is not in the vocabulary of {vocab_size} tokens");
    Err(ApiError::invalid_field(field, message))
}

fn too_many(field: &str, count: usize) -> ApiError {
    let message = format!("'{field}' must have at most {MAX_ENTRIES} entries, not {count}");
    ApiError::invalid_field(field, message)
}

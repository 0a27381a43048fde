//! The model behind a tokenizer's vocabulary: one of the tokenizers crate, or merges by score.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use tokenizers::models::TrainerWrapper;
use tokenizers::{Model, ModelWrapper, Result, Token};

use super::scored_merges::ScoredMerges;

/// The model of a tokenizer.
#[allow(clippy::large_enum_variant, reason = "a tokenizer has one value")]
pub(super) enum TokenModel {
    /// One of the tokenizers crate.
    Crate(ModelWrapper),
    /// SentencePiece's BPE, from a GGUF file.
    Scored(ScoredMerges),
}

impl TokenModel {
    /// Name of the algorithm.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            TokenModel::Crate(ModelWrapper::BPE(_)) => "BPE",
            TokenModel::Crate(ModelWrapper::WordPiece(_)) => "WordPiece",
            TokenModel::Crate(ModelWrapper::WordLevel(_)) => "WordLevel",
            TokenModel::Crate(ModelWrapper::Unigram(_)) => "Unigram",
            TokenModel::Scored(_) => "BPE by scores",
        }
    }
}

/// The model of a `tokenizer.json`.
impl<'de> Deserialize<'de> for TokenModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        ModelWrapper::deserialize(deserializer).map(TokenModel::Crate)
    }
}

impl Model for TokenModel {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, text: &str) -> Result<Vec<Token>> {
        match self {
            TokenModel::Crate(model) => model.tokenize(text),
            TokenModel::Scored(model) => model.tokenize(text),
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            TokenModel::Crate(model) => model.token_to_id(token),
            TokenModel::Scored(model) => model.id(token),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            TokenModel::Crate(model) => model.id_to_token(id),
            TokenModel::Scored(model) => model.token(id).map(str::to_string),
        }
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        match self {
            TokenModel::Crate(model) => model.get_vocab(),
            TokenModel::Scored(model) => model.tokens().map(str::to_string).zip(0..).collect(),
        }
    }

    fn get_vocab_size(&self) -> usize {
        match self {
            TokenModel::Crate(model) => model.get_vocab_size(),
            TokenModel::Scored(model) => model.tokens().len(),
        }
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> Result<Vec<PathBuf>> {
        match self {
            TokenModel::Crate(model) => model.save(folder, prefix),
            TokenModel::Scored(_) => Err("merges by score have no file of their own".into()),
        }
    }

    fn get_trainer(&self) -> TrainerWrapper {
        match self {
            TokenModel::Crate(model) => model.get_trainer(),
            // Nothing here is trained.
            TokenModel::Scored(_) => ModelWrapper::BPE(Default::default()).get_trainer(),
        }
    }
}

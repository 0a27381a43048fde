//! The files of an encoder's folder.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};
use trail_platform::read::read_up_to;

use crate::error::EncoderError;

/// Largest file of weights, and of another kind, MiB.
const MAX_WEIGHTS_MIB: u64 = 4096;
const MAX_JSON_MIB: u64 = 64;

/// Digits of a fingerprint.
const FINGERPRINT: usize = 32;

/// Names of the files; all but the last must be there.
pub(crate) const CONFIG: &str = "config.json";
pub(crate) const WEIGHTS: &str = "model.safetensors";
pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const SENTENCE: &str = "sentence_bert_config.json";

/// Their contents.
pub(crate) struct Files {
    pub(crate) folder: PathBuf,
    pub(crate) config: Vec<u8>,
    pub(crate) weights: Vec<u8>,
    pub(crate) tokenizer: Vec<u8>,
    pub(crate) sentence: Option<Vec<u8>>,
}

/// `sentence_bert_config.json`.
#[derive(Deserialize)]
struct Sentence {
    max_seq_length: Option<usize>,
}

impl Files {
    /// Reads the files of `folder`.
    pub(crate) fn read(folder: &Path) -> Result<Files, EncoderError> {
        let needed = |name: &str, max_mib| {
            read_up_to(&folder.join(name), max_mib).map_err(|error| {
                EncoderError::of(
                    &folder.join(name),
                    format!(
                        "{error}; give the folder of a BERT, DistilBERT, BGE or MiniLM with \
                         {CONFIG}, {TOKENIZER} and {WEIGHTS}"
                    ),
                )
            })
        };
        let sentence = match read_up_to(&folder.join(SENTENCE), MAX_JSON_MIB) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(EncoderError::of(&folder.join(SENTENCE), error.to_string())),
        };
        let config = needed(CONFIG, MAX_JSON_MIB)?;
        let weights = needed(WEIGHTS, MAX_WEIGHTS_MIB)?;
        let tokenizer = needed(TOKENIZER, MAX_JSON_MIB)?;
        Ok(Files { folder: folder.to_owned(), config, weights, tokenizer, sentence })
    }

    /// Names the file of an error.
    pub(crate) fn error(&self, name: &str) -> impl Fn(String) -> EncoderError {
        let file = self.folder.join(name);
        move |why| EncoderError::of(&file, why)
    }

    /// Most tokens of a text: `max_seq_length`, and not more than the encoder's `positions`.
    pub(crate) fn max_length(&self, positions: usize) -> Result<usize, String> {
        let Some(bytes) = &self.sentence else { return Ok(positions) };
        let sentence: Sentence = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        Ok(sentence.max_seq_length.map_or(positions, |length| length.min(positions)))
    }

    /// Digits that depend on all that an embedding depends on but the text and the pooling:
    /// configuration, weights, tokenizer and `max_length`.
    pub(crate) fn fingerprint(&self, max_length: usize) -> String {
        let mut digest = Sha256::new();
        for bytes in [&self.config, &self.weights, &self.tokenizer] {
            digest.update((bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        }
        digest.update((max_length as u64).to_le_bytes());
        let mut digits = format!("{:x}", digest.finalize());
        digits.truncate(FINGERPRINT);
        digits
    }
}

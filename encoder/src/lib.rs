//! Embeddings of text by an encoder in a Hugging Face folder: BERT (with MiniLM and BGE, which have
//! its shape) and DistilBERT.
//!
//! The path of a text, one module per stage: [`mod@config`] (`config.json`) -> `weights`
//! (`model.safetensors`) -> `forward` (text to tokens to embedding). An encoder reads a prompt
//! once, before its request is scheduled; products are ndarray's, on the caller's thread.

#![forbid(unsafe_code)]

pub mod config;
mod forward;
mod weights;

use std::fmt;
use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};
use tokenizers::{Tokenizer, TruncationParams};
use trail_probe::predictor::Pooling;

use config::Config;
use weights::Weights;

/// The reason for which an encoder cannot be used: one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderError(pub String);

impl fmt::Display for EncoderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for EncoderError {}

/// Digits of a fingerprint.
const FINGERPRINT: usize = 32;

/// A loaded encoder.
pub struct Encoder {
    config: Config,
    weights: Weights,
    tokenizer: Tokenizer,
    pooling: Pooling,
    fingerprint: String,
}

impl Encoder {
    /// Loads `config.json`, `model.safetensors` and `tokenizer.json` of `folder`. Texts are cut at
    /// `max_seq_length` of `sentence_bert_config.json`, or at the encoder's positions.
    pub fn open(folder: &Path, pooling: Pooling) -> Result<Encoder, EncoderError> {
        let config =
            Config::parse(&read(folder, "config.json")?).map_err(of(folder, "config.json"))?;
        let bytes = read(folder, "model.safetensors")?;
        let weights = Weights::parse(&bytes, &config).map_err(of(folder, "model.safetensors"))?;
        let tokenizer = tokenizer(folder, &config).map_err(of(folder, "tokenizer.json"))?;
        let mut fingerprint = format!("{:x}", Sha256::digest(&bytes));
        fingerprint.truncate(FINGERPRINT);
        Ok(Encoder { config, weights, tokenizer, pooling, fingerprint })
    }

    /// Digits that depend on the weights.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Elements of an embedding.
    pub fn width(&self) -> usize {
        self.config.width
    }

    /// The embedding of `text`, `[width]`: the last layer's output, pooled, not normalised.
    pub fn embed(&self, text: &str) -> Result<Vec<f32>, EncoderError> {
        let encoding = self.tokenizer.encode(text, true);
        let encoding = encoding.map_err(|error| EncoderError(format!("the tokenizer: {error}")))?;
        self.embed_ids(encoding.get_ids())
    }

    /// The same for the encoder's own token `ids`, special ones included.
    pub fn embed_ids(&self, ids: &[u32]) -> Result<Vec<f32>, EncoderError> {
        let Config { vocab, positions, .. } = self.config;
        if ids.is_empty() || ids.len() > positions {
            let count = ids.len();
            return Err(EncoderError(format!(
                "{count} tokens: the encoder reads 1 to {positions}"
            )));
        }
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
            return Err(EncoderError(format!("token {id} is not among the encoder's {vocab}")));
        }
        let rows = forward::forward(&self.config, &self.weights, ids);
        Ok(match self.pooling {
            Pooling::Cls => rows.row(0).to_vec(),
            Pooling::Mean => {
                let sum = rows.sum_axis(ndarray::Axis(0));
                (sum / ids.len() as f32).to_vec()
            }
        })
    }
}

/// Parses configuration and weights as [`Encoder::open`] does, for the fuzz target.
#[cfg(fuzzing)]
pub fn check(config: &[u8], weights: &[u8]) -> Result<(), String> {
    Weights::parse(weights, &Config::parse(config)?).map(drop)
}

/// The tokenizer, which cuts and does not pad.
fn tokenizer(folder: &Path, config: &Config) -> Result<Tokenizer, String> {
    let bytes = read(folder, "tokenizer.json").map_err(|error| error.0)?;
    let mut tokenizer =
        Tokenizer::from_bytes(bytes).map_err(|error| one_line(&error.to_string()))?;
    let cut = fs::read(folder.join("sentence_bert_config.json")).ok();
    let cut = cut.and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
    let cut = cut.and_then(|value| value["max_seq_length"].as_u64());
    let max_length = cut.map_or(config.positions, |cut| config.positions.min(cut as usize));
    let truncation = TruncationParams { max_length, ..TruncationParams::default() };
    tokenizer.with_truncation(Some(truncation)).map_err(|error| one_line(&error.to_string()))?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

fn read(folder: &Path, name: &str) -> Result<Vec<u8>, EncoderError> {
    let file = folder.join(name);
    fs::read(&file).map_err(|error| {
        EncoderError(format!(
            "{}: {error}; give the folder of a BERT, DistilBERT, BGE or MiniLM with config.json, \
             tokenizer.json and model.safetensors",
            file.display()
        ))
    })
}

/// Names the file of an error.
fn of<'a>(folder: &'a Path, name: &'a str) -> impl Fn(String) -> EncoderError + 'a {
    move |why| EncoderError(format!("{}: {why}", folder.join(name).display()))
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

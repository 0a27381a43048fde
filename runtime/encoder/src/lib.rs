//! Embeddings of text by an encoder in a Hugging Face folder: BERT (with MiniLM and BGE, which have
//! its shape) and DistilBERT.
//!
//! The path of a text, one module per stage: `files` (a folder's bytes) -> [`mod@config`]
//! (`config.json`) -> `weights` (`model.safetensors`) -> `forward` (text to tokens to embedding).
//! The tokenizer is trail-runtime's. An encoder reads a prompt once, before its request is
//! scheduled; products are ndarray's, on the caller's thread.

#![forbid(unsafe_code)]

pub mod config;
mod error;
mod files;
mod forward;
mod pooling;
mod weights;

use std::path::Path;

use trail_probe::predictor::Pooling;
use trail_runtime::text::Tokenizer;

pub use error::EncoderError;
pub use pooling::pooling_of;

use config::Config;
use files::Files;
use weights::Weights;

/// Largest value of an embedding. Values are of the order of 1; sums of finite weights and inputs
/// can be too large for f32, and so can the sum of an embedding's squares in a training.
const LARGEST: f32 = 1e15;

/// A loaded encoder.
pub struct Encoder {
    config: Config,
    weights: Weights,
    tokenizer: Tokenizer,
    pooling: Pooling,
    max_length: usize,
    fingerprint: String,
}

impl Encoder {
    /// Loads `config.json`, `model.safetensors` and `tokenizer.json` of `folder`. Texts are cut at
    /// `max_seq_length` of `sentence_bert_config.json`, or at the encoder's positions.
    pub fn open(folder: &Path, pooling: Pooling) -> Result<Encoder, EncoderError> {
        Encoder::parse(&Files::read(folder)?, pooling)
    }

    fn parse(files: &Files, pooling: Pooling) -> Result<Encoder, EncoderError> {
        let config = Config::parse(&files.config).map_err(files.error(files::CONFIG))?;
        let weights =
            Weights::parse(&files.weights, &config).map_err(files.error(files::WEIGHTS))?;
        let max_length = files.max_length(config.positions);
        let max_length = max_length.map_err(files.error(files::SENTENCE))?;
        let tokenizer = files.folder.join(files::TOKENIZER);
        let tokenizer = Tokenizer::from_bytes(&tokenizer, &files.tokenizer, config.vocab);
        let tokenizer = tokenizer.map_err(|error| EncoderError(error.to_string()))?;
        let tokenizer = tokenizer.truncated(max_length).map_err(files.error(files::TOKENIZER))?;
        let fingerprint = files.fingerprint(max_length);
        let encoder = Encoder { config, weights, tokenizer, pooling, max_length, fingerprint };
        // Rules of a tokenizer can be read and yet apply to no text.
        encoder.embed("a").map_err(|error| EncoderError::of(&files.folder, error.0))?;
        Ok(encoder)
    }

    /// Digits that depend on weights, configuration, tokenizer and [`Encoder::max_length`].
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Tokens at which a text is cut, special ones included.
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// Elements of an embedding.
    pub fn width(&self) -> usize {
        self.config.width
    }

    /// The embedding of `text`, `[width]`: the last layer's output, pooled, not normalised.
    pub fn embed(&self, text: &str) -> Result<Vec<f32>, EncoderError> {
        self.embed_ids(&self.encode(text)?)
    }

    /// The encoder's own tokens of `text`, special ones included, cut at [`Encoder::max_length`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, EncoderError> {
        let ids = self.tokenizer.encode(text, true);
        ids.map_err(|error| EncoderError(error.to_string().replace('\n', " ")))
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
        let embedding = match self.pooling {
            Pooling::Cls => rows.row(0).to_vec(),
            Pooling::Mean => {
                let sum = rows.sum_axis(ndarray::Axis(0));
                (sum / ids.len() as f32).to_vec()
            }
        };
        match embedding.iter().all(|value| value.abs() <= LARGEST) {
            true => Ok(embedding),
            false => Err(EncoderError(format!(
                "the encoder's output is not finite, or has values over {LARGEST:e}"
            ))),
        }
    }
}

/// Loads an encoder as [`Encoder::open`] does, for the fuzz target.
#[cfg(fuzzing)]
pub fn check(config: &[u8], tokenizer: &[u8], weights: &[u8]) -> Result<(), EncoderError> {
    let [config, tokenizer, weights] = [config, tokenizer, weights].map(<[u8]>::to_vec);
    let files = Files { folder: "encoder".into(), config, tokenizer, weights, sentence: None };
    Encoder::parse(&files, Pooling::Mean).map(drop)
}

//! Embeddings of prompts by an encoder.

use std::path::Path;
use std::sync::Arc;

use trail_encoder::Encoder;
use trail_probe::predictor::Pooling;
use trail_probe::{LengthPredictor, Prediction, Predictor, Prompt};
use trail_runtime::text::Tokenizer;

use crate::error::Error;

/// An encoder and the tokenizer that turns a prompt back into text: the encoder has tokens of its
/// own.
pub struct Embedder {
    tokenizer: Arc<Tokenizer>,
    encoder: Encoder,
}

impl Embedder {
    /// The encoder in `folder`, for prompts of `tokenizer`.
    pub fn open(folder: &Path, tokenizer: Arc<Tokenizer>, pooling: Pooling) -> Result<Self, Error> {
        let encoder = Encoder::open(folder, pooling);
        let encoder = encoder.map_err(|error| Error::usage(error.to_string()))?;
        Ok(Embedder { tokenizer, encoder })
    }

    /// Fingerprint of the encoder.
    pub fn fingerprint(&self) -> &str {
        self.encoder.fingerprint()
    }

    /// Elements of an embedding.
    pub fn width(&self) -> usize {
        self.encoder.width()
    }

    /// The embedding of the text of a prompt of tokens `ids`, without special tokens.
    pub fn embed(&self, ids: &[u32]) -> Result<Vec<f32>, Error> {
        let text = self.tokenizer.decode(ids, true);
        self.encoder.embed(&text).map_err(|error| Error::failed(error.to_string()))
    }
}

/// A head over an encoder's embeddings.
pub(crate) struct EncoderPredictor {
    pub(crate) embedder: Embedder,
    pub(crate) head: Predictor,
}

impl LengthPredictor for EncoderPredictor {
    fn predict(&self, prompt: &Prompt<'_>) -> Option<Prediction> {
        // An encoder that fails on a text predicts nothing of it.
        let embedding = self.embedder.embed(prompt.ids).ok()?;
        Some(self.head.of_embedding(&embedding))
    }

    fn is_slow(&self) -> bool {
        true
    }
}

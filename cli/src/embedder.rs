//! Embeddings of prompts by an encoder.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trail_encoder::Encoder;
use trail_probe::predictor::Pooling;
use trail_probe::{LengthPredictor, Prediction, Predictor, Prompt};
use trail_runtime::text::Tokenizer;

use crate::error::Error;
use crate::notice::notice;

/// Tokens of a prompt that are decoded for each one that the encoder reads. A word of the encoder
/// has seldom as many; beyond, the text of a long prompt would be made to be cut.
const IDS_PER_TOKEN: usize = 16;

/// An encoder and the tokenizer that turns a prompt back into text: the encoder has its own tokens.
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

    /// The embedding of the text of a prompt of tokens `ids`, without special tokens. Of a long
    /// prompt only the beginning is decoded.
    pub fn embed(&self, ids: &[u32]) -> Result<Vec<f32>, Error> {
        let read = ids.len().min(self.encoder.max_length() * IDS_PER_TOKEN);
        let text = self.tokenizer.decode(&ids[..read], true);
        self.encoder.embed(&text).map_err(|error| Error::failed(error.to_string()))
    }
}

/// A head over an encoder's embeddings.
pub(crate) struct EncoderPredictor {
    embedder: Embedder,
    head: Predictor,
    failures: AtomicU64,
}

impl EncoderPredictor {
    /// `head` over the embeddings of `embedder`.
    pub(crate) fn new(embedder: Embedder, head: Predictor) -> Self {
        EncoderPredictor { embedder, head, failures: AtomicU64::new(0) }
    }
}

impl LengthPredictor for EncoderPredictor {
    fn predict(&self, prompt: &Prompt<'_>) -> Option<Prediction> {
        match self.embedder.embed(prompt.ids) {
            Ok(embedding) => Some(self.head.of_embedding(&embedding)),
            Err(error) => {
                if self.failures.fetch_add(1, Ordering::Relaxed) == 0 {
                    notice(format_args!(
                        "warning: a prompt has no predicted length, as the encoder cannot read it: \
                         {error} (said once; /metrics counts them)"
                    ));
                }
                None
            }
        }
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

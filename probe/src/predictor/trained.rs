//! A trained head over features of the prompt.

use std::collections::BTreeMap;

use super::layers::{Layer, forward};
use super::{LengthPredictor, Prediction, Prompt, RankScale};
use crate::bins::Bins;
use crate::softmax::softmax;

/// Tokens of an encoder's output that make its embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The first token's (TRAIL's DistilBERT classifier).
    Cls,
    /// The mean over all tokens (ELIS).
    Mean,
}

impl Pooling {
    /// Both kinds.
    pub const ALL: [Pooling; 2] = [Pooling::Cls, Pooling::Mean];

    /// Name in files and options.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::Cls => "cls",
            Pooling::Mean => "mean",
        }
    }
}

/// The inputs of a head.
#[derive(Clone, Debug, PartialEq)]
pub enum Features {
    /// ln(1 + occurrences) of each token of the vocabulary.
    BagOfTokens {
        /// Tokens of the vocabulary.
        vocab: usize,
    },
    /// ln(1 + tokens of the prompt).
    PromptLength,
    /// An encoder's embedding of the prompt's text.
    Encoder {
        /// Elements of the embedding.
        width: usize,
        /// Fingerprint of the encoder.
        encoder: String,
        /// Tokens that make the embedding.
        pooling: Pooling,
    },
}

impl Features {
    /// Name in files, options and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Features::BagOfTokens { .. } => "bag-of-tokens",
            Features::PromptLength => "prompt-length",
            Features::Encoder { .. } => "encoder",
        }
    }

    /// Number of inputs.
    pub fn width(&self) -> usize {
        match self {
            Features::BagOfTokens { vocab } => *vocab,
            Features::PromptLength => 1,
            Features::Encoder { width, .. } => *width,
        }
    }

    /// The inputs that are not zero, with their indices, of a prompt of tokens `ids`. Ids outside
    /// the vocabulary are ignored. `None` if the tokens are not enough: an encoder reads text.
    pub fn of(&self, ids: &[u32]) -> Option<Vec<(u32, f64)>> {
        match self {
            Features::BagOfTokens { vocab } => {
                let known = ids.iter().copied().filter(|&id| (id as usize) < *vocab);
                let mut known: Vec<u32> = known.collect();
                known.sort_unstable();
                let runs = known.chunk_by(|a, b| a == b);
                Some(runs.map(|run| (run[0], (run.len() as f64).ln_1p())).collect())
            }
            Features::PromptLength => Some(vec![(0, (ids.len() as f64).ln_1p())]),
            Features::Encoder { .. } => None,
        }
    }
}

/// The meaning of a head's outputs.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Logits of bins of the total length.
    Bins(Box<Bins>),
    /// The total length, tokens.
    Tokens,
    /// A score that orders answers, longer ones above, and its scale.
    Score(RankScale),
}

impl Output {
    /// Number of outputs.
    pub fn count(&self) -> usize {
        match self {
            Output::Bins(bins) => bins.count(),
            Output::Tokens | Output::Score(_) => 1,
        }
    }
}

/// A trained prompt-only predictor of the total output length.
///
/// A linear head over [`Features::BagOfTokens`] replaces TRAIL's fine-tuned DistilBERT (section
/// 3.1) at a fraction of the cost: only the tokens that occur are visited.
#[derive(Clone, Debug, PartialEq)]
pub struct Predictor {
    pub(super) features: Features,
    pub(super) output: Output,
    pub(super) layers: Vec<Layer>,
    /// Fingerprint of the model that it was trained for, at most 128 characters.
    pub model: Option<String>,
    /// Record of the training: the metadata that the format does not define.
    pub record: BTreeMap<String, String>,
}

impl Predictor {
    /// A predictor of `layers`, without fingerprint and record. Panics unless the layers lead from
    /// the features to the outputs.
    pub fn new(features: Features, output: Output, layers: Vec<Layer>) -> Predictor {
        let mut width = features.width();
        for layer in &layers {
            assert_eq!(layer.inputs(), width, "inputs of a layer");
            width = layer.outputs;
        }
        assert!(!layers.is_empty() && width == output.count(), "outputs of the last layer");
        Predictor { features, output, layers, model: None, record: BTreeMap::new() }
    }

    /// The inputs.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// The meaning of the outputs.
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// The layers.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Outputs of the last layer for the inputs that are not zero, with their indices.
    pub fn outputs(&self, inputs: &[(u32, f64)]) -> Vec<f64> {
        forward(&self.layers, inputs)
    }

    /// The prediction for the inputs that are not zero, with their indices.
    pub fn of_features(&self, inputs: &[(u32, f64)]) -> Prediction {
        let outputs = self.outputs(inputs);
        match &self.output {
            Output::Tokens => Prediction::Tokens(outputs[0].clamp(0.0, f64::from(f32::MAX)) as f32),
            Output::Score(scale) => Prediction::Tokens(scale.tokens(outputs[0])),
            Output::Bins(bins) => {
                let largest = outputs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let mut q: Vec<f32> =
                    outputs.iter().map(|logit| (logit - largest) as f32).collect();
                softmax(&mut q);
                Prediction::Bins { bins: bins.clone(), q }
            }
        }
    }

    /// The prediction for `embedding`, an encoder's.
    pub fn of_embedding(&self, embedding: &[f32]) -> Prediction {
        let inputs: Vec<(u32, f64)> = (0..).zip(embedding.iter().copied().map(f64::from)).collect();
        self.of_features(&inputs)
    }
}

impl LengthPredictor for Predictor {
    /// `None` for an encoder's features: they need the prompt's text.
    fn predict(&self, prompt: &Prompt<'_>) -> Option<Prediction> {
        Some(self.of_features(&self.features.of(prompt.ids)?))
    }
}

//! Output length from the prompt alone, before any step: [`LengthPredictor`] and its kinds.
//!
//! [`Constant`], [`PromptLength`] and [`Hint`] learn nothing. [`Predictor`] is a trained head over
//! the prompt's tokens, its length, or an encoder's embedding of its text. [`PromptProbe`] leaves
//! the first prediction to the probe, on the mean of the prompt's activations.

mod layers;
mod plain;
mod prediction;
mod rank_scale;
mod trained;
mod trained_file;

pub use layers::Layer;
pub use plain::{Constant, Hint, PromptLength, PromptProbe};
pub use prediction::Prediction;
pub use rank_scale::RankScale;
pub use trained::{Features, Output, Pooling, Predictor};

/// The facts about a request that a prompt-only predictor can use.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// Token ids.
    pub ids: &'a [u32],
    /// The client's estimate of the output length, tokens.
    pub hint: Option<u32>,
}

impl<'a> Prompt<'a> {
    /// A prompt of tokens `ids`, without a hint.
    pub fn new(ids: &'a [u32]) -> Prompt<'a> {
        Prompt { ids, hint: None }
    }
}

/// Predicts the total output length of a request before its first step. Called on the thread that
/// submits the request.
pub trait LengthPredictor: Send + Sync {
    /// The prediction for `prompt`; `None` if there is none, as for a request without a hint.
    fn predict(&self, prompt: &Prompt<'_>) -> Option<Prediction>;

    /// True if a prediction takes milliseconds: an async caller submits where it may block.
    fn is_slow(&self) -> bool {
        false
    }

    /// True if the first prediction is the probe's, which is known when the prompt is prefilled.
    fn needs_probe(&self) -> bool {
        false
    }

    /// True if [`Prompt::hint`] is read.
    fn reads_hint(&self) -> bool {
        false
    }

    /// Number of prompts so far that could not be read, and have no prediction therefore.
    fn failures(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests;

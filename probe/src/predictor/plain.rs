//! Predictors that learn nothing.

use std::sync::Arc;

use super::{LengthPredictor, Prediction, Prompt};

/// The same length for every request, tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constant(pub f32);

impl LengthPredictor for Constant {
    fn predict(&self, _prompt: &Prompt<'_>) -> Option<Prediction> {
        Some(Prediction::Tokens(self.0))
    }
}

/// An answer as long as its prompt: shortest prompt first. A [`Predictor`](super::Predictor) over
/// [`Features::PromptLength`](super::Features) learns the relation instead.
#[derive(Clone, Copy, Debug)]
pub struct PromptLength;

impl LengthPredictor for PromptLength {
    fn predict(&self, prompt: &Prompt<'_>) -> Option<Prediction> {
        Some(Prediction::Tokens(prompt.ids.len().max(1) as f32))
    }
}

/// The client's estimate; for a request without one, that of another predictor, if any.
pub struct Hint {
    /// The predictor of requests without a hint.
    pub otherwise: Option<Arc<dyn LengthPredictor>>,
}

impl LengthPredictor for Hint {
    fn predict(&self, prompt: &Prompt<'_>) -> Option<Prediction> {
        let hint = prompt.hint.map(|tokens| Prediction::Tokens(tokens.max(1) as f32));
        hint.or_else(|| self.otherwise.as_ref()?.predict(prompt))
    }

    fn is_slow(&self) -> bool {
        self.otherwise.as_ref().is_some_and(|otherwise| otherwise.is_slow())
    }

    fn needs_probe(&self) -> bool {
        self.otherwise.as_ref().is_some_and(|otherwise| otherwise.needs_probe())
    }

    fn reads_hint(&self) -> bool {
        true
    }

    fn failures(&self) -> u64 {
        self.otherwise.as_ref().map_or(0, |otherwise| otherwise.failures())
    }
}

/// The probe's prediction from the mean of the prompt's activations (TRAIL section 3.1), which is
/// known when the prompt is prefilled. Until then the scheduler assumes the length of a request
/// without a prediction; then the probe's first prediction is r.
#[derive(Clone, Copy, Debug)]
pub struct PromptProbe;

impl LengthPredictor for PromptProbe {
    fn predict(&self, _prompt: &Prompt<'_>) -> Option<Prediction> {
        None
    }

    fn needs_probe(&self) -> bool {
        true
    }
}

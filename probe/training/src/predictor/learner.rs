//! A head while it is trained.

use trail_probe::predictor::{Features, Layer};

use crate::objective::Objective;

/// A prompt with the length of its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// The inputs that are not zero, with their indices.
    pub inputs: Vec<(u32, f64)>,
    /// Output tokens of the answer.
    pub tokens: u32,
}

/// A head and its loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The inputs.
    pub features: Features,
    /// The loss.
    pub objective: Objective,
    /// Units of a hidden layer.
    pub hidden: usize,
    /// Hidden layers; none over a bag of tokens.
    pub layers: usize,
    /// Seed of the weights and of the order of prompts.
    pub seed: u64,
}

/// Parameters of the optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Size of a step.
    pub rate: f64,
    /// Share of a weight, times the rate, by which a step shrinks it.
    pub weight_decay: f64,
}

/// A head while it is trained.
pub(super) trait Learner: Clone {
    /// Settings that are tried.
    const SETTINGS: &[Setting];

    /// Examples of a step.
    fn batch(&self, objective: &Objective) -> usize;

    /// Outputs for `examples` `[examples, outputs]`.
    fn outputs(&self, examples: &[&Example]) -> Vec<f64>;

    /// One step on the loss that `slopes` returns of the outputs, which it replaces by its slopes.
    fn step(
        &mut self,
        examples: &[&Example],
        slopes: impl FnOnce(&mut [f64]) -> f64,
        setting: Setting,
    );

    /// The layers, for inputs as they are.
    fn layers(&self) -> Vec<Layer>;
}

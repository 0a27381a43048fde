//! A linear head or an MLP over inputs that all have values.

use ndarray::Array2;
use trail_probe::predictor::Layer;

use super::learner::{Example, Learner, Recipe, Setting};
use crate::mlp::{Mlp, MlpShape};
use crate::objective::{LIST, Objective};

/// The MLP over standardized inputs.
#[derive(Clone)]
pub(super) struct Dense {
    mean: Vec<f32>,
    /// Inverses of the deviations.
    scale: Vec<f32>,
    mlp: Mlp,
}

impl Dense {
    /// An MLP as `recipe` says, for inputs like those of `training`.
    pub(super) fn new(recipe: &Recipe, training: &[Example]) -> Dense {
        let d = recipe.features.width();
        let count = training.len().max(1) as f64;
        let (mut sums, mut squares) = (vec![0.0_f64; d], vec![0.0_f64; d]);
        for &(input, value) in training.iter().flat_map(|example| &example.inputs) {
            sums[input as usize] += value;
            squares[input as usize] += value * value;
        }
        let mean: Vec<f32> = sums.iter().map(|sum| (sum / count) as f32).collect();
        let scale = sums.iter().zip(&squares).map(|(sum, square)| {
            let mean = sum / count;
            // An input that hardly varies is not blown up.
            (1.0 / ((square / count - mean * mean).max(0.0).sqrt() + 1e-3)) as f32
        });
        let Recipe { hidden, layers, .. } = *recipe;
        let shape = MlpShape { d, hidden, layers, outputs: recipe.objective.outputs() };
        let lengths: Vec<u32> = training.iter().map(|example| example.tokens).collect();
        let mlp = Mlp::new(shape, recipe.seed);
        let mlp = mlp.with_output_bias(&recipe.objective.constant(&lengths));
        Dense { mean, scale: scale.collect(), mlp }
    }

    /// The standardized inputs of `examples`, `[examples, d]`.
    fn inputs(&self, examples: &[&Example]) -> Array2<f32> {
        let mut inputs = Array2::zeros((examples.len(), self.mean.len()));
        for (example, mut row) in examples.iter().zip(inputs.rows_mut()) {
            for &(input, value) in &example.inputs {
                row[input as usize] = value as f32;
            }
            let moments = self.mean.iter().zip(&self.scale);
            row.iter_mut().zip(moments).for_each(|(x, (mean, scale))| *x = (*x - mean) * scale);
        }
        inputs
    }
}

impl Learner for Dense {
    /// The papers' weight decay, 0.01, and strong ones: a few thousand prompts are few for the
    /// hundreds of elements of an embedding, and a step of AdamW is about the rate, whatever the
    /// slope.
    const SETTINGS: &[Setting] = &[
        Setting { rate: 1e-4, weight_decay: 0.01 },
        Setting { rate: 1e-3, weight_decay: 0.01 },
        Setting { rate: 1e-2, weight_decay: 0.01 },
        Setting { rate: 1e-4, weight_decay: 100.0 },
        Setting { rate: 1e-3, weight_decay: 10.0 },
        Setting { rate: 1e-3, weight_decay: 30.0 },
    ];

    fn batch(&self, _objective: &Objective) -> usize {
        LIST
    }

    fn outputs(&self, examples: &[&Example]) -> Vec<f64> {
        let outputs = self.mlp.outputs(self.inputs(examples).view());
        outputs.iter().copied().map(f64::from).collect()
    }

    fn step(
        &mut self,
        examples: &[&Example],
        slopes: impl FnOnce(&mut [f64]) -> f64,
        setting: Setting,
    ) {
        let inputs = self.inputs(examples);
        let replace = |outputs: &mut Array2<f32>| {
            let mut wide: Vec<f64> = outputs.iter().copied().map(f64::from).collect();
            let loss = slopes(&mut wide);
            outputs.iter_mut().zip(wide).for_each(|(output, slope)| *output = slope as f32);
            loss
        };
        let (rate, decay) = (setting.rate as f32, setting.weight_decay as f32);
        self.mlp.step_on(inputs.view(), replace, rate, decay);
    }

    fn layers(&self) -> Vec<Layer> {
        let layers = self.mlp.folded_layers(&self.mean, &self.scale);
        layers.iter().map(|[weight, bias]| Layer::new(weight, bias)).collect()
    }
}

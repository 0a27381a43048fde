//! A linear head over sparse inputs.
//!
//! Source of the optimizer: Duchi, Hazan and Singer, "Adaptive subgradient methods", JMLR 2011: a
//! token that is rare keeps a high rate.

use trail_probe::predictor::Layer;

use super::learner::{Example, Learner, Setting};
use crate::objective::Objective;

/// Weights and sums of squared slopes, by input: `[inputs + 1][outputs]`, the bias last.
#[derive(Clone)]
pub(super) struct Sparse {
    inputs: usize,
    outputs: usize,
    weights: Vec<f64>,
    squares: Vec<f64>,
}

impl Sparse {
    pub(super) fn new(inputs: usize, outputs: usize) -> Sparse {
        let zeros = vec![0.0; (inputs + 1) * outputs];
        Sparse { inputs, outputs, weights: zeros.clone(), squares: zeros }
    }
}

impl Learner for Sparse {
    const SETTINGS: &[Setting] = &[
        Setting { rate: 0.003, weight_decay: 0.0 },
        Setting { rate: 0.01, weight_decay: 0.0 },
        Setting { rate: 0.03, weight_decay: 0.0 },
        Setting { rate: 0.1, weight_decay: 0.0 },
    ];

    fn batch(&self, objective: &Objective) -> usize {
        objective.list()
    }

    fn outputs(&self, examples: &[&Example]) -> Vec<f64> {
        let mut all = Vec::with_capacity(examples.len() * self.outputs);
        for example in examples {
            let first = all.len();
            all.extend_from_slice(&self.weights[self.inputs * self.outputs..]);
            for &(input, value) in &example.inputs {
                let weights = &self.weights[input as usize * self.outputs..][..self.outputs];
                let both = all[first..].iter_mut().zip(weights);
                both.for_each(|(output, weight)| *output += value * weight);
            }
        }
        all
    }

    fn step(
        &mut self,
        examples: &[&Example],
        slopes: impl FnOnce(&mut [f64]) -> f64,
        setting: Setting,
    ) {
        let mut outputs = self.outputs(examples);
        slopes(&mut outputs);
        let bias = (self.inputs as u32, 1.0);
        for (example, slopes) in examples.iter().zip(outputs.chunks_exact(self.outputs)) {
            for &(input, value) in example.inputs.iter().chain([&bias]) {
                let range = input as usize * self.outputs..(input as usize + 1) * self.outputs;
                let both = self.weights[range.clone()].iter_mut().zip(&mut self.squares[range]);
                for ((weight, square), slope) in both.zip(slopes) {
                    let slope = slope * value;
                    *square += slope * slope;
                    *weight -= setting.rate * slope / (square.sqrt() + 1e-8);
                }
            }
        }
    }

    fn layers(&self) -> Vec<Layer> {
        let rows = |input: usize| &self.weights[input * self.outputs..][..self.outputs];
        let of = |output: usize| (0..self.inputs).map(move |input| rows(input)[output] as f32);
        let weight: Vec<f32> = (0..self.outputs).flat_map(of).collect();
        let bias: Vec<f32> = rows(self.inputs).iter().map(|&bias| bias as f32).collect();
        vec![Layer::new(&weight, &bias)]
    }
}

//! Training of one probe: epochs of AdamW over shuffled examples; the best epoch is kept.
//!
//! Every epoch depends on the seed, its number and the state alone, so that a training that was
//! stopped between two epochs ends with the weights of one that was not.

use ndarray::Array2;
use trail_platform::Rng;
use trail_platform::rng::mix;
use trail_probe::{Bins, HeadKind, Weights};

use crate::dataset::{Dataset, Example, Place};
use crate::mlp::{Labelled, Mlp, MlpShape};

/// Examples from which mean and deviation of the inputs are estimated.
const STANDARD_ROWS: usize = 50_000;

/// Rows of a validation pass.
const VALIDATION_ROWS: usize = 1024;

/// Settings of a training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recipe {
    /// Bins of remaining tokens.
    pub bins: Bins,
    /// Meaning of the outputs: to a survival head, answers that were cut say only that they go on.
    pub kind: HeadKind,
    /// Hidden units.
    pub hidden: usize,
    /// Passes over the examples.
    pub epochs: u32,
    /// Examples of a step.
    pub batch: usize,
    /// Learning rate of the first step; it falls to 0 along a cosine.
    pub rate: f32,
    /// Decay of the weights.
    pub weight_decay: f32,
    /// True if every input is brought to mean 0 and deviation 1 first.
    pub standardize: bool,
    /// Share of the inputs, and of the hidden units, that a step leaves out at random: rows of one
    /// answer say much the same, and an MLP learns answers by heart.
    pub dropout: [f32; 2],
    /// True if answers have equal shares of the loss of rows, and not their steps: by steps long
    /// answers outweigh the short ones that the scheduler must find.
    pub by_answer: bool,
    /// Share of the loss that prompts have, beside the rows of their answers.
    pub prompt_share: f64,
    /// Epochs without a better validation loss after which the training ends.
    pub patience: u32,
    /// Seed of the weights and of the order of examples.
    pub seed: u64,
}

impl Recipe {
    /// The paper's (section 3.1): 30 epochs in batches of 32, rate 0.01, inputs as they are.
    pub fn paper() -> Recipe {
        Recipe {
            bins: Bins::default(),
            kind: HeadKind::Bins,
            hidden: trail_probe::weights::HIDDEN,
            epochs: 30,
            batch: 32,
            rate: 0.01,
            weight_decay: 0.01,
            standardize: false,
            dropout: [0.0; 2],
            by_answer: false,
            prompt_share: 0.05,
            patience: 30,
            seed: 1,
        }
    }
}

impl Default for Recipe {
    fn default() -> Recipe {
        Recipe {
            epochs: 16,
            batch: 256,
            rate: 1e-3,
            standardize: true,
            dropout: [0.3, 0.5],
            by_answer: true,
            patience: 4,
            ..Recipe::paper()
        }
    }
}

/// Result of an epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epoch {
    /// Number of the epoch, from 1.
    pub number: u32,
    /// Mean cross-entropy over the training examples, while the weights changed.
    pub training_loss: f64,
    /// Mean cross-entropy over the validation's answers, weighted as in the training.
    pub loss: f64,
    /// Mean absolute error of the expected remaining tokens over these answers' steps, tokens.
    pub mae: f64,
    /// Share of these steps whose likeliest bin is the true one.
    pub accuracy: f64,
}

/// A training between two epochs.
#[derive(Clone)]
pub struct Trainer<'a> {
    data: Dataset<'a>,
    recipe: Recipe,
    mean: Vec<f32>,
    scale: Vec<f32>,
    pub(crate) mlp: Mlp,
    pub(crate) epochs: Vec<Epoch>,
    /// Parameters after the epoch of the least validation loss.
    pub(crate) best: Vec<f32>,
}

impl<'a> Trainer<'a> {
    /// A training that has not begun.
    pub fn new(data: Dataset<'a>, recipe: Recipe) -> Trainer<'a> {
        let (mean, scale) = match recipe.standardize {
            true => moments(&data, recipe.seed),
            false => (vec![0.0; data.d()], vec![1.0; data.d()]),
        };
        let shape = MlpShape {
            d: data.d(),
            hidden: recipe.hidden,
            layers: 1,
            outputs: recipe.bins.count(),
        };
        let mlp = Mlp::new(shape, recipe.seed);
        let best = mlp.parameters.clone();
        Trainer { data, recipe, mean, scale, mlp, epochs: Vec::new(), best }
    }

    /// The epochs so far.
    pub fn epochs(&self) -> &[Epoch] {
        &self.epochs
    }

    /// The settings.
    pub fn recipe(&self) -> Recipe {
        self.recipe
    }

    /// The examples.
    pub fn data(&self) -> &Dataset<'a> {
        &self.data
    }

    /// Examples that are trained on.
    pub fn rows(&self) -> usize {
        self.data.training.len()
    }

    /// The epoch whose weights are kept.
    pub fn best_epoch(&self) -> Option<Epoch> {
        self.epochs.iter().copied().min_by(|a, b| a.loss.total_cmp(&b.loss))
    }

    /// True after the last epoch, or if the validation loss has not fallen for too long.
    pub fn is_done(&self) -> bool {
        let done = self.epochs.len() as u32;
        let best = self.best_epoch().map_or(0, |best| best.number);
        done >= self.recipe.epochs || done >= best + self.recipe.patience
    }

    /// The weights of the best epoch, for activations as they are.
    pub fn weights(&self) -> Weights {
        let mlp = Mlp::with(self.mlp.shape(), self.best.clone());
        let (width, inputs) = (self.data.activation_width(), self.data.inputs());
        mlp.folded(&self.mean, &self.scale, width, inputs, self.recipe.kind)
    }

    /// Runs the next epoch. Fails if the loss is no longer finite.
    pub fn run_epoch(&mut self) -> Result<Epoch, String> {
        let epoch = self.run_epoch_until(&mut || false)?;
        Ok(epoch.expect("not stopped"))
    }

    /// As [`Trainer::run_epoch`]; asks `stop` before every batch. After `None`, for an epoch that
    /// was stopped, the training cannot go on.
    pub fn run_epoch_until(
        &mut self,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Epoch>, String> {
        let number = self.epochs.len() as u32 + 1;
        let Some(training_loss) = self.pass(number, stop) else { return Ok(None) };
        if !training_loss.is_finite() {
            return Err(format!("the loss of epoch {number} is {training_loss}: lower the rate"));
        }
        let Some(epoch) = self.validate(number, training_loss, stop) else { return Ok(None) };
        let before = self.best_epoch().map_or(f64::INFINITY, |best| best.loss);
        if epoch.loss < before {
            self.best.copy_from_slice(&self.mlp.parameters);
        }
        self.epochs.push(epoch);
        Ok(Some(epoch))
    }

    /// A pass over the training examples in random order; the mean loss.
    fn pass(&mut self, number: u32, stop: &mut dyn FnMut() -> bool) -> Option<f64> {
        let Recipe { batch, rate, weight_decay, epochs, seed, dropout, .. } = self.recipe;
        let mut rng = Rng::new(seed ^ mix(u64::from(number)));
        let mut order = self.data.training.clone();
        shuffle(&mut order, &mut rng);
        let [row_weight, prompt_weight] = self.loss_weights();
        let steps = (self.steps_of_an_epoch() * u64::from(epochs)) as f64;
        let (mut inputs, mut bins, mut weights) = (Array2::zeros((0, 0)), Vec::new(), Vec::new());
        let mut censored = Vec::new();
        let (mut loss, mut count) = (0.0, 0);
        for examples in order.chunks(batch) {
            if stop() {
                return None;
            }
            self.gather(examples, &mut inputs);
            drop_out(&mut inputs, dropout[0], &mut rng);
            bins.clear();
            bins.extend(examples.iter().map(|of| self.recipe.bins.bin_of(of.remaining)));
            censored.clear();
            censored.extend(examples.iter().map(|of| self.is_censored(of)));
            weights.clear();
            weights.extend(examples.iter().map(|of| match of.place {
                Place::Row(_) => self.weight(of) * row_weight,
                Place::Prompt(_) => prompt_weight,
            }));
            let cosine = (std::f64::consts::PI * self.mlp.steps as f64 / steps).cos();
            let rate = rate * (0.5 * (1.0 + cosine)) as f32;
            let hidden = (examples.len(), self.recipe.hidden);
            let keep = (dropout[1] > 0.0).then(|| mask(hidden, dropout[1], &mut rng));
            let keep = keep.as_ref().map(|keep| keep.view());
            let (inputs, bins, weights) = (inputs.view(), &bins[..], &weights[..]);
            let rows = Labelled { inputs, bins, censored: &censored, weights, keep };
            loss += self.mlp.step(rows, rate, weight_decay) * examples.len() as f64;
            count += examples.len();
        }
        Some(loss / count as f64)
    }

    /// Steps of an epoch.
    pub(crate) fn steps_of_an_epoch(&self) -> u64 {
        self.data.training.len().div_ceil(self.recipe.batch) as u64
    }

    /// Factors of the losses of rows and of prompts, so that prompts have their share of the whole,
    /// and the mean weight is 1.
    fn loss_weights(&self) -> [f32; 2] {
        let sum = |is_wanted: fn(&Place) -> bool| -> f64 {
            let wanted = self.data.training.iter().filter(|of| is_wanted(&of.place));
            wanted.map(|of| f64::from(self.weight(of))).sum()
        };
        let rows = sum(|place| matches!(place, Place::Row(_)));
        let prompts = sum(|place| matches!(place, Place::Prompt(_)));
        let share = if rows > 0.0 { self.recipe.prompt_share } else { 1.0 };
        let count = self.data.training.len() as f64;
        [(1.0 - share) * count / rows.max(1.0), share * count / prompts.max(1.0)]
            .map(|weight| weight as f32)
    }

    /// The weight of a row in the loss.
    fn weight(&self, row: &Example) -> f32 {
        if self.recipe.by_answer { row.share } else { row.weight }
    }

    /// True if an example says only that its answer goes on.
    fn is_censored(&self, of: &Example) -> bool {
        of.is_cut && self.recipe.kind == HeadKind::Survival
    }

    fn validate(
        &self,
        number: u32,
        training_loss: f64,
        stop: &mut dyn FnMut() -> bool,
    ) -> Option<Epoch> {
        let is_row = |of: &&Example| matches!(of.place, Place::Row(_));
        let rows: Vec<Example> = self.data.validation.iter().filter(is_row).copied().collect();
        let mut inputs = Array2::zeros((0, 0));
        let (mut loss, mut error, mut correct) = (0.0, 0.0, 0.0);
        let (mut total, mut steps) = (0.0, 0.0);
        for examples in rows.chunks(VALIDATION_ROWS) {
            if stop() {
                return None;
            }
            self.gather(examples, &mut inputs);
            let log_p = self.mlp.log_probabilities(inputs.view());
            for (of, log_p) in examples.iter().zip(log_p.rows()) {
                let bin = self.recipe.bins.bin_of(of.remaining);
                let weight = f64::from(self.weight(of));
                total += weight;
                steps += f64::from(of.weight);
                let mut p: Vec<f32> = log_p.iter().map(|x| x.exp()).collect();
                let mut predicted = self.recipe.bins.expected(&p);
                if self.recipe.kind == HeadKind::Survival {
                    let left = self.recipe.bins.left(of.generated);
                    predicted = self.recipe.bins.expected_until(&p, left);
                    self.recipe.bins.cut(&mut p, left);
                }
                let last = if self.is_censored(of) { p.len() } else { bin + 1 };
                let likelihood = p[bin..last].iter().sum::<f32>();
                loss -= weight * f64::from(likelihood.max(f32::MIN_POSITIVE).ln());
                error += f64::from(of.weight) * f64::from((predicted - of.remaining as f32).abs());
                correct += f64::from(of.weight)
                    * f64::from(u8::from(p.iter().all(|&other| other <= p[bin])));
            }
        }
        let loss = loss / f64::max(total, f64::MIN_POSITIVE);
        let [mae, accuracy] = [error, correct].map(|sum| sum / f64::max(steps, 1.0));
        Some(Epoch { number, training_loss, loss, mae, accuracy })
    }

    /// The standardized inputs of `examples`, `[examples, d]`.
    fn gather(&self, examples: &[Example], inputs: &mut Array2<f32>) {
        if inputs.dim() != (examples.len(), self.data.d()) {
            *inputs = Array2::zeros((examples.len(), self.data.d()));
        }
        self.data.gather(examples, &mut inputs.view_mut());
        if self.recipe.standardize {
            for mut row in inputs.rows_mut() {
                let row = row.as_slice_mut().expect("rows in standard order");
                for ((x, mean), scale) in row.iter_mut().zip(&self.mean).zip(&self.scale) {
                    *x = (*x - mean) * scale;
                }
            }
        }
    }
}

/// Factors of `shape`: 0 for a share of `drop`, and the inverse of the others' share.
fn mask(shape: (usize, usize), drop: f32, rng: &mut Rng) -> Array2<f32> {
    let keep = 1.0 / (1.0 - drop);
    // Four draws of 16 bits from one number.
    let limit = (drop * 65536.0) as u64;
    let (mut bits, mut left) = (0, 0);
    Array2::from_shape_simple_fn(shape, || {
        if left == 0 {
            (bits, left) = (rng.next_u64(), 4);
        }
        let draw = bits & 0xffff;
        (bits, left) = (bits >> 16, left - 1);
        if draw < limit { 0.0 } else { keep }
    })
}

/// Leaves out a share of `drop` of the inputs.
fn drop_out(inputs: &mut Array2<f32>, drop: f32, rng: &mut Rng) {
    if drop > 0.0 {
        *inputs *= &mask(inputs.dim(), drop, rng);
    }
}

/// Mean of every input over some examples, and the inverse of its deviation.
fn moments(data: &Dataset<'_>, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let mut order = data.training.clone();
    shuffle(&mut order, &mut Rng::new(seed));
    order.truncate(STANDARD_ROWS);
    let (mut sums, mut squares) = (vec![0.0_f64; data.d()], vec![0.0_f64; data.d()]);
    let mut row = Array2::zeros((1, data.d()));
    for example in &order {
        data.gather(std::slice::from_ref(example), &mut row.view_mut());
        for ((sum, square), &x) in sums.iter_mut().zip(&mut squares).zip(&row) {
            *sum += f64::from(x);
            *square += f64::from(x) * f64::from(x);
        }
    }
    let count = order.len() as f64;
    let moments = sums.iter().zip(&squares).map(|(sum, square)| {
        let mean = sum / count;
        // An input that hardly varies is not blown up.
        let deviation = (square / count - mean * mean).max(0.0).sqrt() + 1e-3;
        (mean as f32, (1.0 / deviation) as f32)
    });
    moments.unzip()
}

/// Shuffles in place (Fisher and Yates).
pub(crate) fn shuffle<T>(items: &mut [T], rng: &mut Rng) {
    for last in (1..items.len()).rev() {
        items.swap(last, rng.below(last as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests;

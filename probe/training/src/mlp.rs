//! An MLP while it is trained, the probe's or a length predictor's: forward, gradient, AdamW.
//!
//! Parameters are one vector, in the order of [`trail_probe::Weights`]: the optimizer is one
//! loop over it.
//!
//! Source: TRAIL section 3.1 (shape, cross-entropy over bins, AdamW); Loshchilov and Hutter,
//! "Decoupled weight decay regularization", ICLR 2019 (AdamW).

use std::ops::Range;

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView1, ArrayView2, ArrayViewMut2, Axis, Zip};
use trail_platform::Rng;
use trail_probe::{AGES, HeadKind, Inputs, PromptWeights, Weights};

/// Decay of the running mean of gradients, and of their squares.
const BETA: (f32, f32) = (0.9, 0.999);

/// Added to the root of the mean square.
const EPSILON: f32 = 1e-8;

/// Sizes of the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlpShape {
    /// Width of an input.
    pub d: usize,
    /// Units of a hidden layer.
    pub hidden: usize,
    /// Hidden layers: 1 for the probe; 0 for a linear map.
    pub layers: usize,
    /// Width of an output: the bins of a classifier.
    pub outputs: usize,
}

impl MlpShape {
    /// Inputs and outputs of each layer, the hidden ones first.
    fn sizes(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let MlpShape { d, hidden, layers, outputs } = *self;
        let width = move |at: usize| if at == 0 { d } else { hidden };
        let hidden_layers = (0..layers).map(move |at| (width(at), hidden));
        hidden_layers.chain([(width(layers), outputs)])
    }

    /// Places of each layer's weight `[outputs, inputs]` and bias among the parameters.
    fn ranges(&self) -> Vec<[Range<usize>; 2]> {
        let mut first = 0;
        let mut next = |size: usize| {
            first += size;
            first - size..first
        };
        self.sizes().map(|(inputs, outputs)| [next(inputs * outputs), next(outputs)]).collect()
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.sizes().map(|(inputs, outputs)| (inputs + 1) * outputs).sum()
    }
}

/// Labelled rows of one step.
#[derive(Clone, Copy, Debug)]
pub struct Labelled<'a> {
    /// `[rows, d]`.
    pub inputs: ArrayView2<'a, f32>,
    /// Bin of each row.
    pub bins: &'a [usize],
    /// Rows whose bin is only the least one that it may be.
    pub censored: &'a [bool],
    /// Weight of each row's loss.
    pub weights: &'a [f32],
    /// Factors of the hidden units `[rows, hidden]`, 0 for those that are left out.
    pub keep: Option<ArrayView2<'a, f32>>,
}

/// Parameters and the optimizer's state.
#[derive(Clone, Debug, PartialEq)]
pub struct Mlp {
    shape: MlpShape,
    /// `[parameters]`.
    pub(crate) parameters: Vec<f32>,
    /// Running means of the gradients `[parameters]`.
    pub(crate) first_moments: Vec<f32>,
    /// Running means of their squares `[parameters]`.
    pub(crate) second_moments: Vec<f32>,
    /// Steps so far.
    pub(crate) steps: u64,
    /// Gradient of the current step `[parameters]`; kept for its memory.
    gradient: Vec<f32>,
}

impl Mlp {
    /// An MLP with random weights, with one hidden layer those of [`Weights::random`]; a linear map
    /// starts at 0.
    pub fn new(shape: MlpShape, seed: u64) -> Mlp {
        let mut parameters = vec![0.0; shape.parameters()];
        let mut rng = Rng::from_state(seed);
        for ((inputs, _), ranges) in shape.sizes().zip(shape.ranges()) {
            let scale = if shape.layers > 0 { 1.0 / (inputs as f32).sqrt() } else { 0.0 };
            for range in ranges {
                parameters[range].iter_mut().for_each(|w| *w = scale * rng.signed());
            }
        }
        Mlp::with(shape, parameters)
    }

    /// An MLP of these `parameters`, whose optimizer has made no step.
    pub fn with(shape: MlpShape, parameters: Vec<f32>) -> Mlp {
        assert_eq!(parameters.len(), shape.parameters());
        let zeros = vec![0.0; parameters.len()];
        Mlp {
            shape,
            parameters,
            first_moments: zeros.clone(),
            second_moments: zeros.clone(),
            steps: 0,
            gradient: zeros,
        }
    }

    /// The same with `bias` `[outputs]` of the last layer.
    pub fn with_output_bias(mut self, bias: &[f32]) -> Mlp {
        let first = self.parameters.len() - self.shape.outputs;
        self.parameters[first..].copy_from_slice(bias);
        self
    }

    /// Sizes.
    pub fn shape(&self) -> MlpShape {
        self.shape
    }

    /// Outputs for `inputs` `[rows, d]`: `[rows, outputs]`.
    pub fn outputs(&self, inputs: ArrayView2<'_, f32>) -> Array2<f32> {
        self.forward(inputs, None).pop().expect("at least one layer")
    }

    /// Log probabilities of `inputs` `[rows, d]`: `[rows, bins]`.
    pub fn log_probabilities(&self, inputs: ArrayView2<'_, f32>) -> Array2<f32> {
        log_softmax(self.outputs(inputs))
    }

    /// Weight `[outputs, inputs]` and bias of each layer, for inputs that are not standardized:
    /// this MLP reads `(x - mean) * scale`.
    pub fn folded_layers(&self, mean: &[f32], scale: &[f32]) -> Vec<[Vec<f32>; 2]> {
        let ranges = self.shape.ranges();
        let part = |range: &Range<usize>| self.parameters[range.clone()].to_vec();
        let mut layers: Vec<_> = ranges.iter().map(|[w, b]| [part(w), part(b)]).collect();
        let [weight, bias] = &mut layers[0];
        weight.iter_mut().zip(scale.iter().cycle()).for_each(|(w, scale)| *w *= scale);
        for (row, b) in weight.chunks_exact(self.shape.d).zip(bias) {
            let offset: f64 = row.iter().zip(mean).map(|(w, m)| f64::from(w * m)).sum();
            *b -= offset as f32;
        }
        layers
    }

    /// The same as the weights of a probe of activations `width` wide, whose inputs are those of
    /// [`Dataset`](crate::Dataset). Panics unless there is one hidden layer.
    pub fn folded(
        &self,
        mean: &[f32],
        scale: &[f32],
        width: usize,
        inputs: Inputs,
        kind: HeadKind,
    ) -> Weights {
        let MlpShape { d, hidden, outputs, .. } = self.shape;
        let layers = self.folded_layers(mean, scale).try_into().expect("one hidden layer");
        let [[weight, hidden_bias], [output_weight, output_bias]]: [_; 2] = layers;
        let columns = |columns: Range<usize>| -> Vec<f32> {
            weight.chunks_exact(d).flat_map(|row| &row[columns.clone()]).copied().collect()
        };
        let ages = if inputs.age { d - AGES..d } else { d..d };
        Weights {
            d: width,
            hidden,
            bins: outputs,
            hidden_weight: columns(0..width),
            hidden_bias,
            output_weight,
            output_bias,
            kind,
            prompt: inputs.prompt.then(|| PromptWeights {
                mean_weight: columns(width..2 * width),
                length_weight: columns(2 * width..2 * width + 1),
            }),
            age_bias: ages.flat_map(|age| columns(age..age + 1)).collect(),
        }
    }

    /// One step of AdamW on the mean of the rows' weighted cross-entropies, which is returned.
    pub fn step(&mut self, rows: Labelled<'_>, rate: f32, weight_decay: f32) -> f64 {
        let loss = self.classify(rows);
        self.descend(rate, weight_decay, weight_decay);
        loss
    }

    /// One step of AdamW, without decay of biases, on the loss that `slopes` returns of the outputs
    /// for `inputs` `[rows, outputs]`, which it replaces by the loss's slopes.
    pub fn step_on(
        &mut self,
        inputs: ArrayView2<'_, f32>,
        slopes: impl FnOnce(&mut Array2<f32>) -> f64,
        rate: f32,
        weight_decay: f32,
    ) -> f64 {
        let mut outputs = self.forward(inputs, None);
        let loss = slopes(outputs.last_mut().expect("at least one layer"));
        self.backward(inputs, outputs, None);
        self.descend(rate, weight_decay, 0.0);
        loss
    }

    /// Outputs of every layer `[rows, outputs]`, of hidden ones after ReLU; `keep` are factors of
    /// the last hidden layer's.
    fn forward(
        &self,
        inputs: ArrayView2<'_, f32>,
        keep: Option<ArrayView2<'_, f32>>,
    ) -> Vec<Array2<f32>> {
        let mut outputs: Vec<Array2<f32>> = Vec::with_capacity(self.shape.layers + 1);
        for (at, (weight, bias)) in self.views().enumerate() {
            let from = outputs.last().map_or(inputs.reborrow(), |last| last.view());
            let mut out = affine(from, weight, bias);
            if at < self.shape.layers {
                out.mapv_inplace(|h| if h < 0.0 { 0.0 } else { h });
            }
            if let Some(keep) = keep.filter(|_| at + 1 == self.shape.layers) {
                out *= &keep;
            }
            outputs.push(out);
        }
        outputs
    }

    /// Fills the gradient of the cross-entropies of `rows`, and returns the loss.
    fn classify(&mut self, rows: Labelled<'_>) -> f64 {
        let mut outputs = self.forward(rows.inputs, rows.keep);
        let log_p = log_softmax(outputs.pop().expect("at least one layer"));
        let share = 1.0 / rows.bins.len() as f32;
        let mut loss = 0.0;
        let mut slopes = log_p.mapv(f32::exp);
        for (i, (&bin, &weight)) in rows.bins.iter().zip(rows.weights).enumerate() {
            // The likelihood is the mass of the bins that it may be; each has its share of it.
            let end = if rows.censored[i] { log_p.ncols() } else { bin + 1 };
            let mut slopes = slopes.row_mut(i);
            let slopes = slopes.as_slice_mut().expect("rows in standard order");
            let mass = slopes[bin..end].iter().sum::<f32>().max(f32::MIN_POSITIVE);
            let log_mass = if end == bin + 1 { log_p[[i, bin]] } else { mass.ln() };
            loss -= f64::from(log_mass * weight * share);
            match end == bin + 1 {
                true => slopes[bin] -= 1.0,
                false => slopes[bin..end].iter_mut().for_each(|p| *p -= *p / mass),
            }
            slopes.iter_mut().for_each(|slope| *slope *= weight * share);
        }
        outputs.push(slopes);
        self.backward(rows.inputs, outputs, rows.keep);
        loss
    }

    /// Fills the gradient. `outputs`: of every layer, the last one's replaced by slopes.
    fn backward(
        &mut self,
        inputs: ArrayView2<'_, f32>,
        mut outputs: Vec<Array2<f32>>,
        keep: Option<ArrayView2<'_, f32>>,
    ) {
        let mut slopes = outputs.pop().expect("at least one layer");
        for (at, [weight, bias]) in self.shape.ranges().into_iter().enumerate().rev() {
            let below = outputs.pop();
            let from = below.as_ref().map_or(inputs.reborrow(), |below| below.view());
            let sizes = (slopes.ncols(), from.ncols());
            self.gradient[bias].copy_from_slice(&slopes.sum_axis(Axis(0)).to_vec());
            let out = &mut self.gradient[weight.clone()];
            let mut out = ArrayViewMut2::from_shape(sizes, out).expect("the weight's shape");
            general_mat_mul(1.0, &slopes.t(), &from, 0.0, &mut out);
            let Some(hidden) = below else { return };
            let weight = ArrayView2::from_shape(sizes, &self.parameters[weight]);
            slopes = slopes.dot(&weight.expect("the weight's shape"));
            Zip::from(&mut slopes).and(&hidden).for_each(|d, &h| {
                if h <= 0.0 {
                    *d = 0.0;
                }
            });
            if let Some(keep) = keep.filter(|_| at == self.shape.layers) {
                slopes *= &keep;
            }
        }
    }

    /// Moves the parameters against the gradient; weights and biases decay by these shares.
    fn descend(&mut self, rate: f32, weight_decay: f32, bias_decay: f32) {
        self.steps += 1;
        let correction = |beta: f32| 1.0 - f64::from(beta).powi(self.steps as i32) as f32;
        let (first, second) = (correction(BETA.0), correction(BETA.1));
        let (step, root) = (rate / first, 1.0 / second.sqrt());
        for (range, decay) in self
            .shape
            .ranges()
            .into_iter()
            .flat_map(|[weight, bias]| [(weight, weight_decay), (bias, bias_decay)])
        {
            let keep = 1.0 - rate * decay;
            let first = self.first_moments[range.clone()].iter_mut();
            let moments = first.zip(&mut self.second_moments[range.clone()]);
            let parameters = self.parameters[range.clone()].iter_mut();
            for ((p, (m, v)), &g) in parameters.zip(moments).zip(&self.gradient[range]) {
                *m = BETA.0 * *m + (1.0 - BETA.0) * g;
                *v = BETA.1 * *v + (1.0 - BETA.1) * g * g;
                *p = *p * keep - step * *m / (v.sqrt() * root + EPSILON);
            }
        }
    }

    /// Weight `[outputs, inputs]` and bias `[outputs]` of each layer.
    fn views(&self) -> impl Iterator<Item = (ArrayView2<'_, f32>, ArrayView1<'_, f32>)> {
        self.shape.sizes().zip(self.shape.ranges()).map(|((inputs, outputs), [weight, bias])| {
            let weight = ArrayView2::from_shape((outputs, inputs), &self.parameters[weight]);
            (weight.expect("a range of this size"), ArrayView1::from(&self.parameters[bias]))
        })
    }
}

/// Log softmax of every row.
fn log_softmax(mut logits: Array2<f32>) -> Array2<f32> {
    for mut row in logits.rows_mut() {
        let largest = row.fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        let sum: f32 = row.iter().map(|x| (x - largest).exp()).sum();
        let shift = largest + sum.ln();
        row.mapv_inplace(|x| x - shift);
    }
    logits
}

/// `inputs . weight^T + bias`.
fn affine(
    inputs: ArrayView2<'_, f32>,
    weight: ArrayView2<'_, f32>,
    bias: ArrayView1<'_, f32>,
) -> Array2<f32> {
    let mut out = Array2::zeros((inputs.nrows(), weight.nrows()));
    out.rows_mut().into_iter().for_each(|mut row| row.assign(&bias));
    general_mat_mul(1.0, &inputs, &weight.t(), 1.0, &mut out);
    out
}

#[cfg(test)]
mod tests;

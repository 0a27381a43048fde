//! The probe's MLP while it is trained: forward, gradient, AdamW.
//!
//! Parameters lie in one vector, in the order of [`trail_probe::Weights`]: the optimizer is one
//! loop over it.
//!
//! Source: TRAIL section 3.1 (shape, cross-entropy over bins, AdamW); Loshchilov and Hutter,
//! "Decoupled weight decay regularization", ICLR 2019 (AdamW).

use std::ops::Range;

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView1, ArrayView2, ArrayViewMut2, Axis, Zip};
use trail_probe::Weights;

/// Decay of the running mean of gradients, and of their squares.
const BETA: (f32, f32) = (0.9, 0.999);

/// Added to the root of the mean square.
const EPSILON: f32 = 1e-8;

/// Sizes of the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Width of an input.
    pub d: usize,
    /// Hidden units.
    pub hidden: usize,
    /// Bins, the width of an output.
    pub bins: usize,
}

impl Shape {
    /// Places of hidden weight, hidden bias, output weight and output bias among the parameters.
    fn ranges(&self) -> [Range<usize>; 4] {
        let sizes = [self.hidden * self.d, self.hidden, self.bins * self.hidden, self.bins];
        let mut first = 0;
        sizes.map(|size| {
            first += size;
            first - size..first
        })
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.ranges()[3].end
    }
}

/// Labelled rows of one step.
#[derive(Clone, Copy, Debug)]
pub struct Labelled<'a> {
    /// `[rows, d]`.
    pub inputs: ArrayView2<'a, f32>,
    /// Bin of each row.
    pub bins: &'a [usize],
    /// Weight of each row's loss.
    pub weights: &'a [f32],
    /// Factors of the hidden units `[rows, hidden]`, 0 for those that are left out.
    pub keep: Option<ArrayView2<'a, f32>>,
}

/// Parameters and the optimizer's state.
#[derive(Clone, Debug, PartialEq)]
pub struct Mlp {
    shape: Shape,
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
    /// An MLP with random weights.
    pub fn new(shape: Shape, seed: u64) -> Mlp {
        let Shape { d, hidden, bins } = shape;
        let weights = Weights::random(d, hidden, bins, seed);
        let parts = [
            weights.hidden_weight,
            weights.hidden_bias,
            weights.output_weight,
            weights.output_bias,
        ];
        Mlp::with(shape, parts.concat())
    }

    /// An MLP of these `parameters`, whose optimizer has made no step.
    pub fn with(shape: Shape, parameters: Vec<f32>) -> Mlp {
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

    /// Sizes.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Log probabilities of `inputs` `[rows, d]`: `[rows, bins]`.
    pub fn log_probabilities(&self, inputs: ArrayView2<'_, f32>) -> Array2<f32> {
        self.layers(inputs, None).1
    }

    /// The weights for inputs that are not standardized: this MLP reads `(x - mean) * scale`.
    pub fn folded(&self, mean: &[f32], scale: &[f32]) -> Weights {
        let Shape { d, hidden, bins } = self.shape;
        let [w1, b1, w2, b2] = self.shape.ranges().map(|range| self.parameters[range].to_vec());
        let scaled = w1.iter().zip(scale.iter().cycle()).map(|(w, scale)| w * scale);
        let hidden_weight: Vec<f32> = scaled.collect();
        let offset = |row: &[f32]| row.iter().zip(mean).map(|(w, m)| f64::from(w * m)).sum::<f64>();
        let rows = hidden_weight.chunks_exact(d);
        let hidden_bias = rows.zip(b1).map(|(row, b)| b - offset(row) as f32).collect();
        Weights { d, hidden, bins, hidden_weight, hidden_bias, output_weight: w2, output_bias: b2 }
    }

    /// One step of AdamW on the mean of the rows' weighted cross-entropies, which is returned.
    pub fn step(&mut self, rows: Labelled<'_>, rate: f32, weight_decay: f32) -> f64 {
        let loss = self.backward(rows);
        self.descend(rate, weight_decay);
        loss
    }

    /// Outputs of the hidden units `[rows, hidden]`, and log probabilities `[rows, bins]`.
    fn layers(
        &self,
        inputs: ArrayView2<'_, f32>,
        keep: Option<ArrayView2<'_, f32>>,
    ) -> (Array2<f32>, Array2<f32>) {
        let [w1, b1, w2, b2] = self.views();
        let mut hidden = affine(inputs, w1, row(&b1));
        hidden.mapv_inplace(|h| if h < 0.0 { 0.0 } else { h });
        if let Some(keep) = keep {
            hidden *= &keep;
        }
        let mut logits = affine(hidden.view(), w2, row(&b2));
        for mut row in logits.rows_mut() {
            let largest = row.fold(f32::NEG_INFINITY, |a, &b| a.max(b));
            let sum: f32 = row.iter().map(|x| (x - largest).exp()).sum();
            let shift = largest + sum.ln();
            row.mapv_inplace(|x| x - shift);
        }
        (hidden, logits)
    }

    /// Fills the gradient, and returns the loss.
    fn backward(&mut self, rows: Labelled<'_>) -> f64 {
        let (hidden, log_p) = self.layers(rows.inputs, rows.keep);
        let share = 1.0 / rows.bins.len() as f32;
        let mut loss = 0.0;
        let mut d_logits = log_p.mapv(f32::exp);
        for (i, (&bin, &weight)) in rows.bins.iter().zip(rows.weights).enumerate() {
            loss -= f64::from(log_p[[i, bin]] * weight * share);
            d_logits[[i, bin]] -= 1.0;
            d_logits.row_mut(i).mapv_inplace(|d| d * weight * share);
        }
        let [_, _, w2, _] = self.views();
        let mut d_hidden = d_logits.dot(&w2);
        Zip::from(&mut d_hidden).and(&hidden).for_each(|d, &h| {
            if h <= 0.0 {
                *d = 0.0;
            }
        });
        if let Some(keep) = rows.keep {
            d_hidden *= &keep;
        }
        let [w1, b1, w2, b2] = self.shape.ranges();
        self.gradient[b1].copy_from_slice(&d_hidden.sum_axis(Axis(0)).to_vec());
        self.gradient[b2].copy_from_slice(&d_logits.sum_axis(Axis(0)).to_vec());
        let Shape { d, hidden: units, bins } = self.shape;
        let mut product = |range: Range<usize>, a: &Array2<f32>, b: ArrayView2<'_, f32>| {
            let shape = (a.ncols(), b.ncols());
            let out = &mut self.gradient[range];
            let mut out = ArrayViewMut2::from_shape(shape, out).expect("the weight's shape");
            general_mat_mul(1.0, &a.t(), &b, 0.0, &mut out);
        };
        debug_assert_eq!((rows.inputs.ncols(), d_hidden.ncols()), (d, units));
        debug_assert_eq!(d_logits.ncols(), bins);
        product(w1, &d_hidden, rows.inputs);
        product(w2, &d_logits, hidden.view());
        loss
    }

    /// Moves the parameters against the gradient.
    fn descend(&mut self, rate: f32, weight_decay: f32) {
        self.steps += 1;
        let correction = |beta: f32| 1.0 - f64::from(beta).powi(self.steps as i32) as f32;
        let (first, second) = (correction(BETA.0), correction(BETA.1));
        let (step, root) = (rate / first, 1.0 / second.sqrt());
        let keep = 1.0 - rate * weight_decay;
        let moments = self.first_moments.iter_mut().zip(&mut self.second_moments);
        for ((p, (m, v)), &g) in self.parameters.iter_mut().zip(moments).zip(&self.gradient) {
            *m = BETA.0 * *m + (1.0 - BETA.0) * g;
            *v = BETA.1 * *v + (1.0 - BETA.1) * g * g;
            *p = *p * keep - step * *m / (v.sqrt() * root + EPSILON);
        }
    }

    /// Hidden weight `[hidden, d]`, hidden bias `[1, hidden]`, output weight `[bins, hidden]`,
    /// output bias `[1, bins]`.
    fn views(&self) -> [ArrayView2<'_, f32>; 4] {
        let Shape { d, hidden, bins } = self.shape;
        let [w1, b1, w2, b2] = self.shape.ranges();
        let shapes = [(w1, (hidden, d)), (b1, (1, hidden)), (w2, (bins, hidden)), (b2, (1, bins))];
        shapes.map(|(range, shape)| {
            ArrayView2::from_shape(shape, &self.parameters[range]).expect("a range of this size")
        })
    }
}

/// The only row of `matrix`.
fn row<'a>(matrix: &'a ArrayView2<'_, f32>) -> ArrayView1<'a, f32> {
    matrix.row(0)
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
mod tests {
    use trail_base::Rng;

    use super::*;

    const SHAPE: Shape = Shape { d: 5, hidden: 7, bins: 3 };

    fn inputs(rows: usize) -> Array2<f32> {
        let mut rng = Rng::new(3);
        Array2::from_shape_fn((rows, SHAPE.d), |_| rng.signed())
    }

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        let (inputs, bins, weights) = (inputs(4), [0, 2, 1, 2], [1.0, 2.0, 0.5, 1.0]);
        let rows = Labelled { inputs: inputs.view(), bins: &bins, weights: &weights, keep: None };
        let mut mlp = Mlp::new(SHAPE, 1);
        mlp.backward(rows);
        let gradient = mlp.gradient.clone();
        let loss = |mlp: &Mlp| -> f64 {
            let log_p = mlp.log_probabilities(inputs.view());
            let of = |(i, &bin): (usize, &usize)| -f64::from(log_p[[i, bin]] * weights[i]) / 4.0;
            bins.iter().enumerate().map(of).sum()
        };
        let step = 1e-2;
        for (at, &expected) in gradient.iter().enumerate() {
            let mut at_both = [step, -step].map(|step| {
                let mut moved = mlp.clone();
                moved.parameters[at] += step;
                loss(&moved)
            });
            at_both[0] -= at_both[1];
            let slope = at_both[0] / f64::from(2.0 * step);
            // The second derivatives are of the order of 1; a kink of ReLU adds as much.
            assert!((slope - f64::from(expected)).abs() < 2e-3, "{at}: {slope}");
        }
    }

    #[test]
    fn a_standardized_input_is_folded_into_the_weights() {
        let mlp = Mlp::new(SHAPE, 2);
        let (mean, scale) = ([1.0, -2.0, 0.5, 3.0, 0.0], [2.0, 0.5, 1.0, 0.25, 4.0]);
        let raw = inputs(6);
        let mut standardized = raw.clone();
        for mut row in standardized.rows_mut() {
            for (i, x) in row.iter_mut().enumerate() {
                *x = (*x - mean[i]) * scale[i];
            }
        }
        let weights = mlp.folded(&mean, &scale);
        for (row, expected) in
            raw.rows().into_iter().zip(mlp.log_probabilities(standardized.view()).rows())
        {
            let p = trail_probe::reference::forward(&weights, row.as_slice().expect("a row"));
            for (p, log_p) in p.probabilities.iter().zip(expected) {
                assert!((p - f64::from(*log_p).exp()).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn it_learns_what_can_be_learned() {
        let inputs = inputs(64);
        let bins: Vec<usize> =
            inputs.rows().into_iter().map(|row| usize::from(row[0] > 0.0)).collect();
        let rows = Labelled { inputs: inputs.view(), bins: &bins, weights: &[1.0; 64], keep: None };
        let mut mlp = Mlp::new(SHAPE, 4);
        let first = mlp.step(rows, 0.01, 0.01);
        let last = (0..300).map(|_| mlp.step(rows, 0.01, 0.01)).last().expect("a step");
        assert!(first > 0.8 && last < 0.1, "{first} {last}");
    }
}

//! The forward pass over one text.
//!
//! Source: Devlin et al., "BERT", NAACL 2019; Vaswani et al., "Attention is all you need", 2017
//! (norms after the residual sums).

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView2, Axis, Slice};

use crate::config::{Activation, Config};
use crate::weights::{Block, Linear, Norm, Weights};

/// Outputs of the last layer for the tokens `ids`, `[tokens, width]`.
pub(crate) fn forward(config: &Config, weights: &Weights, ids: &[u32]) -> Array2<f32> {
    let mut rows = Array2::zeros((ids.len(), config.width));
    for (position, (&id, mut row)) in ids.iter().zip(rows.rows_mut()).enumerate() {
        row += &weights.words.row(id as usize);
        row += &weights.positions.row(position);
        if let Some(token_type) = &weights.token_type {
            row += token_type;
        }
    }
    norm(&mut rows, &weights.norm, config.epsilon);
    for block in &weights.blocks {
        let attended = linear(attention(config, block, &rows).view(), &block.attention);
        rows += &attended;
        norm(&mut rows, &block.attention_norm, config.epsilon);
        let mut hidden = linear(rows.view(), &block.up);
        activate(&mut hidden, config.activation);
        rows += &linear(hidden.view(), &block.down);
        norm(&mut rows, &block.mlp_norm, config.epsilon);
    }
    rows
}

/// Attention of every token to all, `[tokens, width]`.
fn attention(config: &Config, block: &Block, rows: &Array2<f32>) -> Array2<f32> {
    let [query, key, value] = block.qkv.each_ref().map(|of| linear(rows.view(), of));
    let head = config.width / config.heads;
    let scale = 1.0 / (head as f32).sqrt();
    let mut out = Array2::zeros(rows.dim());
    for first in (0..config.width).step_by(head) {
        let columns = Slice::from(first..first + head);
        let of = |rows: &Array2<f32>| rows.slice_axis(Axis(1), columns).to_owned();
        let mut scores = of(&query).dot(&of(&key).t());
        for mut row in scores.rows_mut() {
            let largest = row.fold(f32::NEG_INFINITY, |a, &b| a.max(b));
            row.mapv_inplace(|score| ((score - largest) * scale).exp());
            let sum = row.sum();
            row /= sum;
        }
        out.slice_axis_mut(Axis(1), columns).assign(&scores.dot(&of(&value)));
    }
    out
}

/// `rows . weight^T + bias`.
fn linear(rows: ArrayView2<'_, f32>, of: &Linear) -> Array2<f32> {
    let mut out = Array2::zeros((rows.nrows(), of.weight.nrows()));
    out.rows_mut().into_iter().for_each(|mut row| row.assign(&of.bias));
    general_mat_mul(1.0, &rows, &of.weight.t(), 1.0, &mut out);
    out
}

/// Layer norm of every row, in place.
fn norm(rows: &mut Array2<f32>, of: &Norm, epsilon: f64) {
    for mut row in rows.axis_iter_mut(Axis(0)) {
        let count = row.len() as f64;
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
        let variance = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
        let (mean, scale) = (mean as f32, (1.0 / (variance + epsilon).sqrt()) as f32);
        let parts = of.weight.iter().zip(&of.bias);
        row.iter_mut().zip(parts).for_each(|(x, (w, b))| *x = (*x - mean) * scale * w + b);
    }
}

fn activate(rows: &mut Array2<f32>, activation: Activation) {
    match activation {
        Activation::Gelu => rows.mapv_inplace(|x| 0.5 * x * (1.0 + erf(x * 0.5_f32.sqrt()))),
        Activation::GeluTanh => rows.mapv_inplace(|x| {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }),
        Activation::Relu => rows.mapv_inplace(|x| x.max(0.0)),
    }
}

/// The error function, to 1.5e-7 (Abramowitz and Stegun, 7.1.26).
fn erf(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let terms = [1.061_405_4, -1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6];
    let sum = terms.iter().fold(0.0, |sum, term| (sum + term) * t);
    (1.0 - sum * (-x * x).exp()).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::erf;

    #[test]
    fn the_error_function_is_its_integral() {
        for step in -40..=40 {
            let x = f64::from(step) * 0.1;
            // Simpson's rule over 2000 pieces.
            let width = x / 2000.0;
            let at = |i: i32| (-(f64::from(i) * width).powi(2)).exp();
            let inner: f64 = (1..2000).map(|i| at(i) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
            let want = (at(0) + inner + at(2000)) * width / 3.0 * std::f64::consts::FRAC_2_SQRT_PI;
            assert!((f64::from(erf(x as f32)) - want).abs() < 5e-7, "{x}: {want}");
        }
    }
}

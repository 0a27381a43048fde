//! How far rounded operands may take a pass from the reference, which rounds none: measured on the
//! reference itself.
//!
//! A layer rounds eight operands to bf16: two norms' outputs, q, k, v, the attention's weights,
//! what they read, and the MLP's inner values. Eight significant bits: each value is off by at most
//! a relative u = 2^-8, and by 0.42 u in RMS. A product of n terms w_i x_i (1 + e_i) does not care
//! whether e_i is x's error or w's. So the reference with every weight of its products off by a
//! random part within u (0.58 u in RMS) has four of the eight, at 1.9 times their variance: as much
//! noise as the device's, led through the very layers that amplify it there. How much they do is
//! the model's affair, and no formula in the number of layers knows it.

use super::cuda::Rng;
use std::sync::Arc;
use trail_runtime::model::{Dtype, Model, Tensor};
use trail_runtime::reference::{Reference, Trace};

/// Between the worst row of one draw of the noise and that of another.
const MARGIN: f64 = 2.0;

/// Allowed differences of a pass.
pub struct Tolerance {
    /// After each layer: RMS of a row's difference over the row's RMS.
    pub h: Vec<f64>,
    /// The largest difference of a logit.
    pub logit: f64,
}

impl Tolerance {
    /// Of passes over these `tokens`, for which the reference made `traces`.
    pub fn new(model: &Model, tokens: &[&[u32]], traces: &[Trace]) -> Tolerance {
        let noisy = Reference::new(&noisy(model));
        let mut tolerance = Tolerance { h: vec![0.0; model.config.num_layers], logit: 0.0 };
        for (tokens, trace) in tokens.iter().zip(traces) {
            let off = noisy.trace(tokens);
            for (layer, tolerance) in tolerance.h.iter_mut().enumerate() {
                for (found, wanted) in off.hidden[layer].iter().zip(&trace.hidden[layer]) {
                    *tolerance = larger(*tolerance, MARGIN * relative(found, wanted));
                }
            }
            for (found, wanted) in off.logits.iter().zip(&trace.logits) {
                tolerance.logit = larger(tolerance.logit, MARGIN * largest(found, wanted));
            }
        }
        tolerance
    }
}

/// `model` with every weight of a product off by a random part within 2^-8. The embedding is no
/// product: it stays.
fn noisy(model: &Model) -> Model {
    let mut rng = Rng(43);
    let mut off = |tensor: &mut Tensor| {
        let noise = |value: f32| value * (1.0 + rng.unit() * 2f32.powi(-8));
        let values: Vec<f32> = tensor.to_f32().into_iter().map(noise).collect();
        let bytes = Arc::new(bytemuck::cast_slice::<f32, u8>(&values).to_vec());
        *tensor = Tensor::new(Dtype::F32, tensor.rows, tensor.cols, bytes, 0).unwrap();
    };
    let mut model = model.clone();
    for layer in &mut model.weights.layers {
        layer.matrices_mut().for_each(&mut off);
    }
    off(&mut model.weights.lm_head);
    model
}

/// The larger; a NaN is larger than all.
pub fn larger(a: f64, b: f64) -> f64 {
    if b.is_nan() || b > a { b } else { a }
}

/// RMS of the difference over RMS of `wanted`.
pub fn relative(found: &[f32], wanted: &[f32]) -> f64 {
    let square = |value: f32| f64::from(value).powi(2);
    let off: f64 = found.iter().zip(wanted).map(|(a, b)| square(a - b)).sum();
    (off / wanted.iter().copied().map(square).sum::<f64>()).sqrt()
}

/// The largest difference.
pub fn largest(found: &[f32], wanted: &[f32]) -> f64 {
    found.iter().zip(wanted).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, larger)
}

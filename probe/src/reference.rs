//! Reference of [`Head`](crate::head::Head): the MLP in `f64`, one loop per formula, with a bound
//! on the deviation of an `f32` result.

use crate::weights::Weights;

/// Result of one row.
#[derive(Clone, Debug)]
pub struct Exact {
    /// Probabilities, `[bins]`.
    pub probabilities: Vec<f64>,
    /// Largest deviation of an `f32` head's probability from each, `[bins]`.
    pub tolerances: Vec<f64>,
}

/// The MLP on one activation, `[d]`.
///
/// The tolerance is the a-priori bound, not a measured slack: a sum of n products in any order is
/// off by at most gamma(n) = n u / (1 - n u) times the sum of their magnitudes, u = 2^-24 (Higham,
/// "Accuracy and Stability of Numerical Algorithms", section 3.1). ReLU does not reduce errors, the
/// second layer weighs them and adds its own, and a logit error of at most e changes a softmax by a
/// factor of at most exp(2 e).
pub fn forward(weights: &Weights, activation: &[f32]) -> Exact {
    let hidden: Vec<Bounded> = weights
        .hidden_weight
        .chunks_exact(weights.d)
        .zip(&weights.hidden_bias)
        .map(|(row, &bias)| {
            let inputs = activation.iter().map(|&x| Bounded { value: x.into(), error: 0.0 });
            let sum = dot(row, inputs, bias);
            Bounded { value: sum.value.max(0.0), ..sum }
        })
        .collect();
    let logits: Vec<Bounded> = weights
        .output_weight
        .chunks_exact(weights.hidden)
        .zip(&weights.output_bias)
        .map(|(row, &bias)| dot(row, hidden.iter().copied(), bias))
        .collect();
    softmax(&logits)
}

/// A value and a bound on the deviation of the `f32` result from it.
#[derive(Clone, Copy)]
struct Bounded {
    value: f64,
    error: f64,
}

/// gamma(n) of [`forward`].
fn gamma(n: usize) -> f64 {
    let nu = n as f64 * f64::from(f32::EPSILON) / 2.0;
    assert!(nu < 1.0);
    nu / (1.0 - nu)
}

fn dot(row: &[f32], inputs: impl Iterator<Item = Bounded>, bias: f32) -> Bounded {
    let (mut value, mut magnitude, mut error) = (f64::from(bias), f64::from(bias).abs(), 0.0);
    for (&weight, input) in row.iter().zip(inputs) {
        let weight = f64::from(weight);
        value += weight * input.value;
        magnitude += weight.abs() * (input.value.abs() + input.error);
        error += weight.abs() * input.error;
    }
    // A product is rounded once, then in at most n sums of its chain (fewer where the chain is
    // split into chunks, whose sums count instead), then with the bias.
    Bounded { value, error: error + gamma(row.len() + 2) * magnitude }
}

fn softmax(logits: &[Bounded]) -> Exact {
    let largest = logits.iter().map(|l| l.value).fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = logits.iter().map(|l| (l.value - largest).exp()).collect();
    let sum: f64 = exps.iter().sum();
    let error = logits.iter().map(|l| l.error).fold(0.0, f64::max);
    // The softmax's own roundings: a subtraction, an exp good to 2 ulp, the sum, the division.
    // The subtraction's rounding is relative to the logits' spread.
    let spread = logits.iter().map(|l| largest - l.value).fold(0.0, f64::max);
    let own = gamma(logits.len() + 8) + gamma(1) * spread;
    let probabilities: Vec<f64> = exps.iter().map(|e| e / sum).collect();
    let factor = (2.0 * (error + own)).exp() - 1.0;
    let tolerances =
        probabilities.iter().map(|p| p * factor + f64::from(f32::MIN_POSITIVE)).collect();
    Exact { probabilities, tolerances }
}

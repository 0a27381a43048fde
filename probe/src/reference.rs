//! Reference of [`Head`](crate::head::Head): the MLP in `f64`, one loop per formula, with a bound
//! on the deviation of an `f32` result.

use crate::age::age_class;
use crate::weights::Weights;

/// Inputs of one row.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// `[d]`.
    pub activation: &'a [f32],
    /// Output tokens fed so far.
    pub generated: u32,
    /// The mean over its prompt's activations `[d]`, and the prompt's length in tokens.
    pub prompt: Option<(&'a [f32], u32)>,
}

/// Result of one row.
#[derive(Clone, Debug)]
pub struct Exact {
    /// Probabilities, `[bins]`.
    pub probabilities: Vec<f64>,
    /// Largest deviation of an `f32` head's probability from each, `[bins]`.
    pub tolerances: Vec<f64>,
}

/// The MLP on one row. Panics where it reads a prompt that the row does not have.
///
/// The tolerance is the a-priori bound, not a measured slack: a sum of n products in any order is
/// off by at most gamma(n) = n u / (1 - n u) times the sum of their magnitudes, u = 2^-24 (Higham,
/// "Accuracy and Stability of Numerical Algorithms", section 3.1). ReLU does not reduce errors, the
/// second layer weighs them and adds its own, and a logit error of at most e changes a softmax by a
/// factor of at most exp(2 e).
pub fn forward(weights: &Weights, row: Row<'_>) -> Exact {
    let Weights { d, hidden, .. } = *weights;
    let unit = |unit: usize| {
        let of = |matrix: &[f32], x: &[f32]| -> Vec<(f32, Bounded)> {
            let row = matrix[unit * d..(unit + 1) * d].iter().copied();
            row.zip(x.iter().map(|&x| exact(x.into()))).collect()
        };
        let mut terms = of(&weights.hidden_weight, row.activation);
        if let Some(prompt) = &weights.prompt {
            let (mean, tokens) = row.prompt.expect("the prompt that the probe reads");
            terms.extend(of(&prompt.mean_weight, mean));
            let log = f64::from(tokens.max(1)).ln();
            // The f32 logarithm is good to 1 ulp.
            let log = Bounded { value: log, error: log * f64::from(f32::EPSILON) };
            terms.push((prompt.length_weight[unit], log));
        }
        let of_age = weights.age_bias.chunks_exact(hidden).nth(age_class(row.generated));
        terms.extend(of_age.map(|biases| (biases[unit], exact(1.0))));
        let sum = dot(&terms, weights.hidden_bias[unit]);
        Bounded { value: sum.value.max(0.0), ..sum }
    };
    let units: Vec<Bounded> = (0..hidden).map(unit).collect();
    let logits: Vec<Bounded> = weights
        .output_weight
        .chunks_exact(weights.hidden)
        .zip(&weights.output_bias)
        .map(|(row, &bias)| {
            let terms: Vec<_> = row.iter().copied().zip(units.iter().copied()).collect();
            dot(&terms, bias)
        })
        .collect();
    softmax(&logits)
}

/// A value and a bound on the deviation of the `f32` result from it.
#[derive(Clone, Copy)]
struct Bounded {
    value: f64,
    error: f64,
}

/// A value without deviation.
fn exact(value: f64) -> Bounded {
    Bounded { value, error: 0.0 }
}

/// gamma(n) of [`forward`].
fn gamma(n: usize) -> f64 {
    let nu = n as f64 * f64::from(f32::EPSILON) / 2.0;
    assert!(nu < 1.0);
    nu / (1.0 - nu)
}

/// The sum of `bias` and the products of weights and inputs.
fn dot(terms: &[(f32, Bounded)], bias: f32) -> Bounded {
    let (mut value, mut magnitude, mut error) = (f64::from(bias), f64::from(bias).abs(), 0.0);
    for &(weight, input) in terms {
        let weight = f64::from(weight);
        value += weight * input.value;
        magnitude += weight.abs() * (input.value.abs() + input.error);
        error += weight.abs() * input.error;
    }
    // A product is rounded once, then in at most n sums of its chain (fewer where the chain is
    // split into chunks, whose sums count instead), then with the bias.
    Bounded { value, error: error + gamma(terms.len() + 2) * magnitude }
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

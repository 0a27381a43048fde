//! The small kernels as they are defined.

use half::bf16;
use trail_runtime::backend::BLOCK_TOKENS;

/// One row of the embedding: (h, x, partial sums of squares in f64).
pub(crate) fn embed(row: &[bf16], gamma: &[bf16]) -> (Vec<f32>, Vec<bf16>, Vec<f64>) {
    let h: Vec<f32> = row.iter().map(|value| value.to_f32()).collect();
    let x = h.iter().zip(gamma).map(|(h, gamma)| bf16::from_f32(h * gamma.to_f32())).collect();
    let squares =
        |part: &[f32]| part.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
    let ss = h.chunks(128).map(squares).collect();
    (h, x, ss)
}

/// Applies a list of differences.
pub(crate) fn apply_diffs(words: &mut [u32], diffs: &[[u32; 2]]) {
    for &[index, value] in diffs {
        words[index as usize] = value;
    }
}

/// Adds the row at `position` to the sums of a request's blocks: the CPU backend's arithmetic, so
/// equal to the bit.
pub(crate) fn add_row(sums: &mut Vec<Vec<f32>>, position: usize, row: &[f32]) {
    let block = position / BLOCK_TOKENS;
    sums.resize(sums.len().max(block + 1), Vec::new());
    if position.is_multiple_of(BLOCK_TOKENS) {
        sums[block] = vec![0.0; row.len()];
    }
    for (sum, value) in sums[block].iter_mut().zip(row) {
        *sum += value;
    }
}

/// The mean over a prompt of `prompt` tokens whose blocks have `sums`.
pub(crate) fn tap_mean(sums: &[Vec<f32>], prompt: usize) -> Vec<bf16> {
    let scale = 1.0 / prompt as f32;
    let column = |at: usize| sums.iter().map(|sum| sum[at]).fold(0.0, |total, sum| total + sum);
    (0..sums[0].len()).map(|at| bf16::from_f32(column(at) * scale)).collect()
}

/// The probe's answer for one row, and how far a kernel may be from each probability.
///
/// A unit is a sum of exact products in f32 in no known order: `d` products, or, with the mean over
/// a `prompt` and the logarithm of its length, twice as many and one that is rounded. It is off by
/// at most (2 d + 5) * 2^-23 * sum|x w|; ReLU does not add to that. A logit adds up those errors
/// times |w2|, and (hidden + 6) its own roundings. A probability is off by a factor of e to the
/// power of twice the worst logit's error, and some ulp of exponential, sum and division.
pub(crate) fn probe(
    x: &[bf16],
    age: usize,
    prompt: Option<(&[bf16], f32)>,
    layers: &Layers,
) -> (Vec<f64>, Vec<f64>) {
    let (d, ulp) = (x.len(), 2f64.powi(-23));
    let products = |x: &[bf16], weights: &[bf16]| -> Vec<f64> {
        let pairs = x.iter().zip(weights);
        pairs.map(|(x, w)| f64::from(x.to_f32()) * f64::from(w.to_f32())).collect()
    };
    let mut hidden = Vec::new();
    for unit in 0..layers.length_weight.len() {
        let weights = unit * d..(unit + 1) * d;
        let mut terms = products(x, &layers.hidden_weight[weights.clone()]);
        terms.push(layers.hidden_bias[age * layers.length_weight.len() + unit].into());
        if let Some((mean, log)) = prompt {
            terms.extend(products(mean, &layers.mean_weight[weights]));
            terms.push(f64::from(layers.length_weight[unit]) * f64::from(log));
        }
        let (sum, size) =
            terms.iter().fold((0.0f64, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        hidden.push((sum.max(0.0), (terms.len() as f64 + 3.0) * ulp * size));
    }
    let mut logits = Vec::new();
    let mut worst = 0.0f64;
    for (weights, &bias) in layers.output_weight.chunks(hidden.len()).zip(&layers.output_bias) {
        let (mut sum, mut size, mut error) = (f64::from(bias), f64::from(bias.abs()), 0.0);
        for (&weight, (unit, off)) in weights.iter().zip(&hidden) {
            let weight = f64::from(weight);
            sum += weight * unit;
            size += (weight * unit).abs();
            error += weight.abs() * off;
        }
        worst = worst.max(error + (hidden.len() as f64 + 6.0) * ulp * size);
        logits.push(sum);
    }
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    let probabilities: Vec<f64> = exponentials.iter().map(|e| e / sum).collect();
    let factor = (2.0 * worst).exp() - 1.0;
    let spread = logits.iter().map(|logit| largest - logit).fold(0.0, f64::max);
    let tolerance = |p: &f64| p * (factor + (40.0 + 4.0 * spread) * ulp) + 1e-37;
    let tolerances = probabilities.iter().map(tolerance).collect();
    (probabilities, tolerances)
}

/// The probe's weights, row-major.
pub(crate) struct Layers {
    pub(crate) hidden_weight: Vec<bf16>,
    /// `[AGES, hidden]`
    pub(crate) hidden_bias: Vec<f32>,
    pub(crate) mean_weight: Vec<bf16>,
    pub(crate) length_weight: Vec<f32>,
    pub(crate) output_weight: Vec<f32>,
    pub(crate) output_bias: Vec<f32>,
}

//! Attention as it is defined, in f64, and how far a kernel may be from it.

use half::bf16;

/// One row's answer for one head, and what its error is measured by.
pub(crate) struct Answer {
    /// softmax(q k^T / sqrt(hd)) v.
    pub(crate) out: Vec<f64>,
    /// The same with |v|: what rounding of the weights can move.
    pub(crate) magnitude: Vec<f64>,
    /// Largest sum of |q k| over the tokens.
    pub(crate) products: f64,
    /// Tokens attended to.
    pub(crate) tokens: usize,
}

/// Attention of one query over keys and values `[tokens][head_dim]`, oldest first.
pub(crate) fn attention(query: &[bf16], keys: &[&[bf16]], values: &[&[bf16]]) -> Answer {
    let width = query.len();
    let dot = |a: &[bf16], b: &[bf16]| -> (f64, f64) {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(a.to_f32()) * f64::from(b.to_f32()));
        products.fold((0.0, 0.0), |(sum, size), product| (sum + product, size + product.abs()))
    };
    let scores: Vec<(f64, f64)> = keys.iter().map(|key| dot(query, key)).collect();
    let scale = 1.0 / (width as f64).sqrt();
    let largest = scores.iter().map(|(score, _)| score * scale).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> =
        scores.iter().map(|(score, _)| (score * scale - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut answer = Answer {
        out: vec![0.0; width],
        magnitude: vec![0.0; width],
        products: scores.iter().map(|(_, size)| *size).fold(0.0, f64::max),
        tokens: keys.len(),
    };
    for (weight, value) in weights.iter().zip(values) {
        for (place, value) in value.iter().enumerate() {
            answer.out[place] += weight / sum * f64::from(value.to_f32());
            answer.magnitude[place] += weight / sum * f64::from(value.to_f32()).abs();
        }
    }
    answer
}

impl Answer {
    /// How far a kernel may be from `out[place]`.
    ///
    /// A score is a sum of `hd` exact products in f32, in no known order: off by hd * 2^-23 * sum|q
    /// k| at most. It is scaled and made relative to the maximum (two roundings of numbers no
    /// larger than the scores), and goes through an exponential of 2 ulp: so each weight is off by
    /// a factor 1 + d, and again by 2^-8 (half an ulp) where it becomes bf16 to meet the values.
    /// Output and sum are f32 sums over the tokens, rescaled at most once a block of 16 by another
    /// such exponential. The answer is rounded to bf16.
    pub(crate) fn tolerance(&self, place: usize) -> f64 {
        let width = self.out.len() as f64;
        let score = self.products / width.sqrt();
        let ulp = 2f64.powi(-23);
        let d = (width + 4.0) * ulp * score + 4.0 * ulp;
        let sums = (self.tokens as f64 + self.tokens as f64 / 16.0 * 4.0) * ulp;
        let half_bf16 = 2f64.powi(-8);
        self.magnitude[place] * (half_bf16 + 2.0 * d + 2.0 * sums) * 1.01
            + self.out[place].abs() * half_bf16 * 1.01
            + 1e-30
    }
}

//! Gated delta nets of the reference forward pass.

use super::matrix::{Matrix, dot};
use super::{Layer, Reference, add, sigmoid, silu};
use crate::model::{self, DeltaNetConfig, LayerWeights, ModelConfig};

/// Added to the sum of squares of a query or key before it is divided by its root.
const L2_EPS: f64 = 1e-6;

/// A gated delta net, beside the projections of its layer.
pub(super) struct DeltaNet {
    config: DeltaNetConfig,
    gate: Matrix,
    rates: Matrix,
    /// The vectors and the convolution.
    weights: model::DeltaNet,
}

impl DeltaNet {
    /// The gated delta net of layer `index`, if it has one.
    pub(super) fn of_layer(
        config: &ModelConfig,
        index: usize,
        weights: &LayerWeights,
    ) -> Option<Self> {
        let weights = weights.delta_net.clone()?;
        Some(DeltaNet {
            config: config.layer_delta_net(index)?.clone(),
            gate: Matrix::new(&weights.gate),
            rates: Matrix::new(&weights.rates),
            weights,
        })
    }

    /// The convolution at `position` of all channels of `inputs` (`[T][channels]`), and SiLU.
    fn convolve(&self, inputs: &[Vec<f32>], position: usize) -> Vec<f32> {
        let DeltaNetConfig { taps, .. } = self.config;
        let channels = self.config.channels();
        let output = |channel: usize| {
            let tap = |tap: usize| {
                let input = &inputs[(position + tap + 1).checked_sub(taps)?];
                let weight = self.weights.conv[tap * channels + channel];
                Some(f64::from(weight) * f64::from(input[channel]))
            };
            silu((0..taps).filter_map(tap).sum::<f64>() as f32)
        };
        (0..channels).map(output).collect()
    }

    /// The factors of a token for value head `head`: exp(-exp(A) softplus(a + bias)) of its matrix
    /// before the update, and sigmoid(b) of the update.
    fn factors(&self, rates: &[f32], head: usize) -> (f64, f64) {
        let heads = self.config.value_heads;
        let x = f64::from(rates[heads + head] + self.weights.decay_bias[head]);
        let softplus = x.max(0.0) + (-x.abs()).exp().ln_1p();
        let decay = (f64::from(self.weights.decay[head]) * softplus).exp();
        (decay, f64::from(sigmoid(rates[head])))
    }
}

impl Reference {
    /// x += O (norm(M q) silu(Z norm(x))), of each value head with its matrix M, which each token
    /// changes: M <- decay M, then M <- M + update (v - M k) k'. q, k and v are convolutions of the
    /// projections of norm(x), q and k divided by their lengths, q by the root of its width too.
    /// `x`: `[T][d]`.
    pub(super) fn delta_net(&self, layer: &Layer, net: &DeltaNet, x: &mut [Vec<f32>]) {
        let normed: Vec<Vec<f32>> =
            x.iter().map(|x| self.rms_norm(x, &layer.attention_norm)).collect();
        let inputs = normed.iter().map(|x| [&layer.q, &layer.k, &layer.v].map(|m| m.apply(x)));
        let inputs: Vec<Vec<f32>> = inputs.map(|parts| parts.concat()).collect();
        let DeltaNetConfig { key_dim, value_dim, value_heads, .. } = net.config;
        // `[value_heads][key_dim][value_dim]`
        let mut matrices = vec![vec![vec![0.0; value_dim]; key_dim]; value_heads];
        for (position, x) in x.iter_mut().enumerate() {
            let mixed = net.convolve(&inputs, position);
            let (queries, rest) = mixed.split_at(net.config.key_size());
            let (keys, values) = rest.split_at(net.config.key_size());
            let rates = net.rates.apply(&normed[position]);
            let gates = net.gate.apply(&normed[position]);
            let mut attended = Vec::new();
            for (head, matrix) in matrices.iter_mut().enumerate() {
                let key_head = head / net.config.group() * key_dim..;
                let query = unit(&queries[key_head.clone()][..key_dim]);
                let key = unit(&keys[key_head][..key_dim]);
                let of_value = head * value_dim..(head + 1) * value_dim;
                let scale = 1.0 / (key_dim as f64).sqrt();
                let value = &values[of_value.clone()];
                let out = update(matrix, &query, &key, value, net.factors(&rates, head));
                let out: Vec<f32> = out.iter().map(|out| (scale * out) as f32).collect();
                let normed = self.rms_norm(&out, &net.weights.norm);
                attended.extend(normed.iter().zip(&gates[of_value]).map(|(x, z)| x * silu(*z)));
            }
            add(x, &layer.o.apply(&attended));
        }
    }

    /// The queries, and the gates that Q computes beside them: `[heads][query | gate][h]`.
    pub(super) fn split_heads(&self, rows: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let width = self.config.head_dim;
        let heads = || rows.chunks_exact(2 * width);
        let gates = heads().flat_map(|head| head[width..].to_vec());
        (heads().flat_map(|head| head[..width].to_vec()).collect(), gates.collect())
    }
}

/// `x` divided by its length.
fn unit(x: &[f32]) -> Vec<f64> {
    let scale = 1.0 / (dot(x, x) + L2_EPS).sqrt();
    x.iter().map(|&x| f64::from(x) * scale).collect()
}

/// The gated delta rule for one token: `matrix` (`[key_dim][value_dim]`) before and after, and its
/// product with the query.
fn update(
    matrix: &mut [Vec<f64>],
    query: &[f64],
    key: &[f64],
    value: &[f32],
    (decay, weight): (f64, f64),
) -> Vec<f64> {
    let product = |matrix: &[Vec<f64>], factors: &[f64], column: usize| {
        matrix.iter().zip(factors).map(|(row, factor)| row[column] * factor).sum::<f64>()
    };
    for (column, &value) in value.iter().enumerate() {
        matrix.iter_mut().for_each(|row| row[column] *= decay);
        let change = weight * (f64::from(value) - product(matrix, key, column));
        matrix.iter_mut().zip(key).for_each(|(row, key)| row[column] += key * change);
    }
    (0..value.len()).map(|column| product(matrix, query, column)).collect()
}

//! Gated delta nets: the projections of a batch, and one token of one key head.
//!
//! A request's tokens are computed one after the other, by the same operations in prefill and
//! decode: so the bits of its state do not depend on chunks. Heads and requests are independent.

use crate::model::{Activation, DeltaNet, DeltaNetConfig, LayerWeights, ModelConfig};

use super::buffers::{Buffers, Source};
use super::linear::{Linear, side_by_side};
use super::regions::Regions;
use super::simd::MAX_LANES;
use trail_cpu_kernels::{Aligned, DeltaRule, Kernels};

/// Added to the sum of squares of a query or key before it is divided by its root.
const L2_EPS: f32 = 1e-6;

/// Values between the projections and the output of a hybrid's layers; empty in other families.
pub(super) struct DeltaBuffers {
    /// Of gated delta nets `[rows][q | k | v | gate | rates]`.
    pub(super) inputs: Aligned,
    /// Of attention: the sigmoid of each output's gate `[rows][num_heads][head_dim]`.
    pub(super) gates: Aligned,
}

/// Values of a row of [`DeltaBuffers::inputs`].
pub(super) fn input_len(net: &DeltaNetConfig) -> usize {
    net.channels() + net.value_size() + 2 * net.value_heads
}

/// Values of a worker's scratch for an item, twice.
pub(super) fn item_scratch(net: &DeltaNetConfig) -> usize {
    net.head_channels().next_multiple_of(MAX_LANES) + 2 * net.value_dim.next_multiple_of(MAX_LANES)
}

impl DeltaBuffers {
    /// Allocates buffers for batches of up to `max_rows` rows.
    pub(super) fn new(config: &ModelConfig, max_rows: usize) -> Result<Self, String> {
        let gates = if config.architecture.is_hybrid() { max_rows * config.q_size() } else { 0 };
        let inputs = config.delta_net.as_ref().map_or(0, |net| max_rows * input_len(net));
        Ok(DeltaBuffers { inputs: Aligned::zeroed(inputs)?, gates: Aligned::zeroed(gates)? })
    }

    /// Values of a row in all buffers.
    pub(super) fn row_len(config: &ModelConfig) -> usize {
        config.delta_net.as_ref().map_or(0, |net| input_len(net) + config.q_size())
    }
}

impl Regions<'_> {
    /// Norm, and the projections of a gated delta net.
    pub(super) fn project_delta_net(&mut self, weights: &LayerWeights, net: &DeltaNet) {
        let narrowed = [&weights.q, &weights.k, &weights.v, &net.gate];
        let packing = self.packing(narrowed.into_iter().chain([&net.rates]));
        self.norm(&weights.attention_norm, packing);
        self.narrow_rows(Source::Normed, self.batch.rows(), narrowed);
        let rows = self.batch.rows();
        let Buffers { normed, narrow, delta, .. } = &mut *self.buffers;
        let (kernels, x, first) = (self.kernels, &**normed, 0);
        let linear = |weights| Linear {
            kernels,
            x,
            packing,
            narrow: &*narrow,
            first,
            rows,
            weights,
            delta: None,
        };
        let [q, k, v, gate] = narrowed.map(linear);
        let matrices = [q, k, v, gate, linear(&net.rates)];
        side_by_side(&matrices, self.pool, self.scratch, self.side, &mut delta.inputs);
    }
}

/// One key head of a gated delta net, and the value heads that share it.
pub(super) struct KeyHead<'a> {
    pub(super) kernels: &'static Kernels,
    pub(super) config: &'a DeltaNetConfig,
    pub(super) weights: &'a DeltaNet,
    /// RMSNorm's epsilon.
    pub(super) eps: f32,
    /// Index of the head.
    pub(super) head: usize,
}

impl KeyHead<'_> {
    /// Computes one token. `inputs`: its row of [`DeltaBuffers::inputs`]. `state`: the head's,
    /// before and after. `scratch`: twice [`item_scratch`]. `put(head, values)` gets the output of
    /// each value head.
    pub(super) fn step(
        &self,
        inputs: &[f32],
        state: &mut [f32],
        scratch: [&mut [f32]; 2],
        mut put: impl FnMut(usize, &[f32]),
    ) {
        let DeltaNetConfig { key_dim, value_dim, value_heads, taps, .. } = *self.config;
        let [mixed, rest] = scratch;
        let (past, matrices) = state.split_at_mut((taps - 1) * self.config.head_channels());
        self.convolve(inputs, past, mixed, rest);
        let (query, others) = mixed.split_at_mut(key_dim);
        let (key, values) = others.split_at_mut(key_dim);
        // Divided by their lengths, and the query by the root of its width.
        let root = (key_dim as f32).sqrt();
        for (vector, divisor) in [(&mut *query, root * root), (&mut *key, root)] {
            let scale = self.kernels.rms_scale(vector, L2_EPS / key_dim as f32) / divisor;
            vector.iter_mut().for_each(|value| *value *= scale);
        }
        let (gates, rates) = inputs[self.config.channels()..].split_at(self.config.value_size());
        let padded = value_dim.next_multiple_of(MAX_LANES);
        let (out, gate) = rest.split_at_mut(padded);
        for (at, matrix) in matrices.chunks_exact_mut(key_dim * value_dim).enumerate() {
            let head = self.head * self.config.group() + at;
            let x = rates[value_heads + head] + self.weights.decay_bias[head];
            let decay = (self.weights.decay[head] * softplus(x)).exp();
            self.kernels.delta_rule(DeltaRule {
                matrix,
                key,
                query,
                value: &values[at * value_dim..(at + 1) * value_dim],
                decay,
                weight: sigmoid(rates[head]),
                out: &mut out[..value_dim],
            });
            let scale = self.kernels.rms_scale(&out[..value_dim], self.eps);
            let normed = out.iter_mut().zip(&self.weights.norm);
            normed.for_each(|(out, weight)| *out *= scale * weight);
            gate[..value_dim].copy_from_slice(&gates[head * value_dim..][..value_dim]);
            self.kernels.gate(Activation::Silu, &mut gate[..padded], &out[..padded]);
            put(head, &gate[..value_dim]);
        }
    }

    /// The convolution of the head's channels and SiLU: query, key and values to `mixed`. `past`:
    /// the inputs of the last tokens `[taps - 1][head_channels]`, before and after. `ones` is
    /// scratch.
    fn convolve(&self, inputs: &[f32], past: &mut [f32], mixed: &mut [f32], ones: &mut [f32]) {
        let DeltaNetConfig { key_dim, value_dim, taps, .. } = *self.config;
        let (keys, width) = (self.config.key_size(), self.config.group() * value_dim);
        let channels = self.config.head_channels();
        let head = self.head * key_dim;
        // Of the queries, the keys and the values: first channel of all, of the head's, and number.
        let parts = [
            (head, 0, key_dim),
            (keys + head, key_dim, key_dim),
            (2 * keys + self.head * width, 2 * key_dim, width),
        ];
        for (from, to, len) in parts {
            let new = &inputs[from..from + len];
            let weights = |tap: usize| &self.weights.conv[tap * self.config.channels() + from..];
            let mixed = &mut mixed[to..to + len];
            mixed.fill(0.0);
            for tap in 0..taps {
                let input = match tap + 1 < taps {
                    true => &past[tap * channels + to..][..len],
                    false => new,
                };
                let terms = mixed.iter_mut().zip(input).zip(weights(tap));
                terms.for_each(|((sum, input), weight)| *sum += input * weight);
            }
        }
        past.copy_within(channels.min(past.len()).., 0);
        if let Some(last) = past.len().checked_sub(channels) {
            for (from, to, len) in parts {
                past[last + to..][..len].copy_from_slice(&inputs[from..from + len]);
            }
        }
        let padded = channels.next_multiple_of(MAX_LANES);
        ones[..padded].fill(1.0);
        self.kernels.gate(Activation::Silu, &mut mixed[..padded], &ones[..padded]);
    }
}

pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// ln(1 + exp(x)), without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

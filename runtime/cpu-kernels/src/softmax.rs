//! State of online softmax (FlashAttention-2, section 3.1).

use crate::aligned::Aligned;
use trail_platform::simd::MAX_LANES;

use super::glu::scalar_exp;

/// Online softmax of some queries over some of their tokens: weighted sums of values, not yet
/// divided.
pub struct Softmax {
    /// Distance between queries in `out`, floats.
    stride: usize,
    /// Sums of values times `exp(score - max)` `[queries][stride]`.
    pub(super) out: Aligned,
    /// Largest score `[queries]`; minus infinity where a query has no token.
    pub(super) max: Vec<f32>,
    /// Sum of `exp(score - max)` `[queries]`; at least 1 where a query has a token.
    pub(super) sum: Vec<f32>,
}

impl Softmax {
    /// Floats of a stored query, see [`store`](Self::store).
    pub fn stored_len(head_dim: usize) -> usize {
        head_stride(head_dim) + 2
    }

    pub(super) fn new(queries: usize, stride: usize) -> Result<Self, String> {
        let out = Aligned::zeroed(queries * stride)?;
        Ok(Softmax { stride, out, max: vec![0.0; queries], sum: vec![0.0; queries] })
    }

    /// The state of `queries` queries without tokens.
    pub fn clear(&mut self, queries: usize) {
        self.max[..queries].fill(f32::NEG_INFINITY);
        self.sum[..queries].fill(0.0);
        self.out[..queries * self.stride].fill(0.0);
    }

    /// Adds the tokens of `other`, which come after these. Two states are weighted by their maxima,
    /// as online softmax weights blocks (FlashAttention-2, section 3.1).
    pub fn add(&mut self, other: &Softmax, queries: usize) {
        for q in (0..queries).filter(|&q| other.sum[q] > 0.0) {
            let range = q * self.stride..(q + 1) * self.stride;
            let (out, added) = (&mut self.out[range.clone()], &other.out[range]);
            if self.sum[q] == 0.0 {
                (self.max[q], self.sum[q]) = (other.max[q], other.sum[q]);
                out.copy_from_slice(added);
                continue;
            }
            // One of the two has the maximum, and its factor is 1.
            let factor = scalar_exp(-(self.max[q] - other.max[q]).abs());
            let is_new = other.max[q] > self.max[q];
            let (old, new) = if is_new { (factor, 1.0) } else { (1.0, factor) };
            self.max[q] = self.max[q].max(other.max[q]);
            self.sum[q] = self.sum[q] * old + other.sum[q] * new;
            out.iter_mut().zip(added).for_each(|(out, added)| *out = *out * old + added * new);
        }
    }

    /// Adds a token of `score` without a value to query `q`: an attention sink.
    pub fn add_sink(&mut self, q: usize, score: f32) {
        let factor = scalar_exp(-(self.max[q] - score).abs());
        if score > self.max[q] {
            self.max[q] = score;
            self.sum[q] = self.sum[q] * factor + 1.0;
            let out = &mut self.out[q * self.stride..(q + 1) * self.stride];
            out.iter_mut().for_each(|out| *out *= factor);
        } else {
            self.sum[q] += factor;
        }
    }

    /// Copies `queries` queries to `to`, of [`stored_len`](Self::stored_len) floats each.
    pub fn store(&self, queries: usize, to: &mut [f32]) {
        for (q, to) in to.chunks_exact_mut(self.stride + 2).take(queries).enumerate() {
            to[..self.stride].copy_from_slice(&self.out[q * self.stride..][..self.stride]);
            to[self.stride..].copy_from_slice(&[self.max[q], self.sum[q]]);
        }
    }

    /// Restores `queries` stored queries.
    pub fn load(&mut self, queries: usize, from: &[f32]) {
        for (q, from) in from.chunks_exact(self.stride + 2).take(queries).enumerate() {
            self.out[q * self.stride..][..self.stride].copy_from_slice(&from[..self.stride]);
            (self.max[q], self.sum[q]) = (from[self.stride], from[self.stride + 1]);
        }
    }

    /// The softmax-weighted mean of the values of query `q`, in place `[head_dim]`.
    pub fn finish(&mut self, q: usize, head_dim: usize) -> &[f32] {
        let scale = 1.0 / self.sum[q];
        let out = &mut self.out[q * self.stride..][..head_dim];
        out.iter_mut().for_each(|o| *o *= scale);
        out
    }
}

/// Distance between queries, floats.
pub(super) fn head_stride(head_dim: usize) -> usize {
    head_dim.next_multiple_of(2 * MAX_LANES)
}

//! Output of the q, k and v projections: queries to a buffer, keys and values to the KV pool, with
//! bias, norm and RoPE as the family has them.

use std::ops::Range;

use crate::model::{ModelConfig, QkNorm, QkvBias};

use super::delta_net::sigmoid;
use super::kv::KvShape;
use super::rope::RopeTable;
use trail_cpu_kernels::Kernels;
use trail_cpu_kernels::SharedMut;

/// A head of the q, k or v projection, by its index within that projection.
#[derive(Clone, Copy)]
pub(super) enum Head {
    Query(usize),
    Key(usize),
    Value(usize),
    /// The gate of a query head's output, in hybrids.
    Gate(usize),
}

impl Head {
    /// Number of the work items of a layer of attention.
    pub(super) fn items(config: &ModelConfig) -> usize {
        let gates = if config.architecture.is_hybrid() { config.num_heads } else { 0 };
        config.num_heads + 2 * config.num_kv_heads + gates
    }

    /// Maps a work item to its head: all queries first, then keys, then values, then gates.
    pub(super) fn of_item(item: usize, config: &ModelConfig) -> Self {
        let ModelConfig { num_heads, num_kv_heads, .. } = *config;
        if item < num_heads {
            Head::Query(item)
        } else if item < num_heads + num_kv_heads {
            Head::Key(item - num_heads)
        } else if item < num_heads + 2 * num_kv_heads {
            Head::Value(item - num_heads - num_kv_heads)
        } else {
            Head::Gate(item - num_heads - 2 * num_kv_heads)
        }
    }

    /// Its rows of the projection's matrix.
    pub(super) fn rows(self, config: &ModelConfig) -> Range<usize> {
        let place = match self {
            Head::Query(index) if config.architecture.is_hybrid() => 2 * index,
            Head::Gate(index) => 2 * index + 1,
            Head::Query(index) | Head::Key(index) | Head::Value(index) => index,
        };
        place * config.head_dim..(place + 1) * config.head_dim
    }
}

/// Destinations of all heads of one layer.
pub(super) struct HeadOutputs<'a> {
    /// Place of the layer among those with keys and values.
    pub(super) layer: usize,
    pub(super) config: &'a ModelConfig,
    pub(super) kernels: &'static Kernels,
    pub(super) bias: Option<&'a QkvBias>,
    pub(super) norm: Option<&'a QkNorm>,
    /// RoPE of the layer; `None` if it has none.
    pub(super) rope: Option<&'a RopeTable>,
    /// Position of each row in its request's context `[rows]`.
    pub(super) positions: &'a [u32],
    /// Index of each row's token in the KV pool `[rows]`.
    pub(super) kv_indices: &'a [u32],
    pub(super) shape: KvShape,
    /// Queries `[rows][num_heads][head_dim]`.
    pub(super) queries: SharedMut<'a, f32>,
    /// Keys `[rows][num_kv_heads][head_dim]` before a norm of all heads; empty in families without.
    pub(super) raw_keys: SharedMut<'a, f32>,
    /// Sigmoids of the gates `[rows][num_heads][head_dim]`; empty in families without.
    pub(super) gates: SharedMut<'a, f32>,
    /// The KV pool.
    pub(super) kv: SharedMut<'a, u8>,
}

impl HeadOutputs<'_> {
    /// Stores the projection `values` (`[head_dim]`, overwritten) plus bias; queries and keys with
    /// norm and RoPE. Queries are also scaled, so that the scores need no scaling. `rotated` is
    /// scratch `[head_dim]`.
    ///
    /// # Safety
    ///
    /// No other thread may access the same head of the same row during the call.
    pub(super) unsafe fn put(
        &self,
        head: Head,
        row: usize,
        values: &mut [f32],
        rotated: &mut [f32],
    ) {
        let ModelConfig { num_heads, num_kv_heads, head_dim, .. } = *self.config;
        self.add_bias(head, values);
        let is_wide = self.config.architecture.has_wide_qk_norm();
        if !is_wide {
            self.normalize(head, values);
        }
        // SAFETY: the caller has exclusive access to this head of this row.
        unsafe {
            match head {
                Head::Query(index) => {
                    let first = (row * num_heads + index) * head_dim;
                    let out = self.queries.part(first..first + head_dim);
                    match is_wide {
                        false => self.rotate(values, row, self.config.attention_scale(), out),
                        true => out.copy_from_slice(values),
                    }
                }
                Head::Key(index) if is_wide => {
                    let first = (row * num_kv_heads + index) * head_dim;
                    self.raw_keys.part(first..first + head_dim).copy_from_slice(values);
                }
                Head::Key(index) => {
                    self.rotate(values, row, 1.0, rotated);
                    self.store(row, self.shape.keys(self.layer, index), rotated);
                }
                Head::Value(index) => {
                    self.store(row, self.shape.values(self.layer, index), values);
                }
                Head::Gate(index) => {
                    let first = (row * num_heads + index) * head_dim;
                    let out = self.gates.part(first..first + head_dim);
                    out.iter_mut().zip(values).for_each(|(out, value)| *out = sigmoid(*value));
                }
            }
        }
    }

    /// Norms over all queries and all keys of `row`, which were put before, then RoPE. `rotated` is
    /// scratch `[head_dim]`.
    ///
    /// # Safety
    ///
    /// No other thread may access the row during the call.
    pub(super) unsafe fn finish_row(&self, row: usize, rotated: &mut [f32]) {
        let (Some(norm), eps) = (self.norm, self.config.rms_norm_eps) else { return };
        let (q, kv) = (self.config.q_size(), self.config.kv_size());
        let head_dim = self.config.head_dim;
        // SAFETY: the caller has exclusive access to the row.
        let (queries, keys) = unsafe {
            (
                self.queries.part(row * q..(row + 1) * q),
                self.raw_keys.part(row * kv..(row + 1) * kv),
            )
        };
        for (values, weight) in [(&mut *queries, &norm.q), (&mut *keys, &norm.k)] {
            let scale = self.kernels.rms_scale(values, eps);
            values.iter_mut().zip(weight).for_each(|(value, weight)| *value *= scale * weight);
        }
        for query in queries.chunks_exact_mut(head_dim) {
            self.rotate(query, row, self.config.attention_scale(), rotated);
            query.copy_from_slice(rotated);
        }
        for (index, key) in keys.chunks_exact(head_dim).enumerate() {
            self.rotate(key, row, 1.0, rotated);
            // SAFETY: as above.
            unsafe { self.store(row, self.shape.keys(self.layer, index), rotated) };
        }
    }

    /// Stores a key or value of `row` in the KV pool.
    ///
    /// # Safety
    ///
    /// No other thread may access the same head of the same row during the call.
    unsafe fn store(&self, row: usize, plane: usize, values: &[f32]) {
        let token = self.shape.token(self.kv_indices[row] as usize, plane);
        // SAFETY: every token has its own KV index, so the caller's exclusive access to the head of
        // the row makes this part disjoint from all others.
        self.shape.dtype.narrow(values, unsafe { self.kv.part(token) });
    }

    /// Adds the bias of `head`.
    fn add_bias(&self, head: Head, values: &mut [f32]) {
        let Some(bias) = self.bias else { return };
        let (bias, index) = match head {
            Head::Query(index) => (&bias.q, index),
            Head::Key(index) => (&bias.k, index),
            Head::Value(index) => (&bias.v, index),
            Head::Gate(_) => return,
        };
        let bias = &bias[index * self.config.head_dim..];
        values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    }

    /// RMSNorm of a query or key head.
    fn normalize(&self, head: Head, values: &mut [f32]) {
        let Some(norm) = self.norm else { return };
        let weight = match head {
            Head::Query(_) => &norm.q,
            Head::Key(_) => &norm.k,
            Head::Value(_) | Head::Gate(_) => return,
        };
        let scale = self.kernels.rms_scale(values, self.config.rms_norm_eps);
        values.iter_mut().zip(weight).for_each(|(value, weight)| *value = *value * scale * weight);
    }

    /// Writes `values`, rotated to the position of `row` and multiplied by `scale`, to `out`.
    fn rotate(&self, values: &[f32], row: usize, scale: f32, out: &mut [f32]) {
        match self.rope {
            Some(rope) => rope.rotate(values, self.positions[row] as usize, scale, out),
            None => out.iter_mut().zip(values).for_each(|(out, value)| *out = value * scale),
        }
    }
}

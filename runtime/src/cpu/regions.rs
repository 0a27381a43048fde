//! The parallel regions of a forward pass.
//!
//! Each region is one fork and join. A work item is some rows of a weight matrix with all rows of
//! the batch, or one KV head with some rows of a request. An item computes into its worker's
//! scratch, then copies the result to its destination, which no other item writes.

use crate::backend::{Batch, HiddenSink};
use crate::model::{GatedMlp, LayerWeights, Mlp, ModelConfig, Projection, Tensor};

use super::adapted::Delta;
use super::buffers::{Buffers, Source, WorkerScratch};
use super::heads::{Head, HeadOutputs};
use super::linear::{Linear, assist};
use super::rope::RopeTables;
use super::states::StatePool;
use super::{CpuForward, KvPool, Pool, Tap};
use trail_cpu_kernels::SharedMut;
use trail_cpu_kernels::{INTERLEAVED_ROWS, Kernels, Packing};

/// Number of values above which the rows of a norm, a conversion or the logits are split over the
/// threads: they take one thread longer than a fork and join, a few microseconds.
const PARALLEL_FLOATS: usize = 32 * 1024;

/// Operands of the regions of one pass.
pub(super) struct Regions<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) kernels: &'static Kernels,
    pub(super) rope: &'a RopeTables,
    pub(super) batch: &'a Batch,
    pub(super) pool: &'a mut Pool,
    pub(super) kv: &'a mut KvPool,
    pub(super) states: &'a mut StatePool,
    pub(super) buffers: &'a mut Buffers,
    pub(super) scratch: &'a mut [WorkerScratch],
    /// Receiver of the tap, after it was published: its side tasks run in idle time.
    pub(super) side: Option<&'a dyn HiddenSink>,
}

impl<'a> Regions<'a> {
    /// Copies the token embeddings, scaled, into the residual stream.
    pub(super) fn embed(&mut self, table: &Tensor) {
        let ModelConfig { hidden_size: hidden, embedding_scale: scale, .. } = *self.config;
        for (row, &token) in self.batch.tokens.iter().enumerate() {
            let out = &mut self.buffers.hidden[row * hidden..][..hidden];
            table.dtype.widen(table.row_bytes(token as usize), out);
            if scale != 1.0 {
                out.iter_mut().for_each(|value| *value *= scale);
            }
        }
    }

    /// Publishes the residual stream to the tap's receiver, whose side tasks run in idle time from
    /// now on.
    pub(super) fn publish(&mut self, tap: Tap<'a>) {
        let hidden = &self.buffers.hidden[..self.batch.rows() * self.config.hidden_size];
        tap.receiver.publish_hidden(tap.step, tap.at, tap.plan, self.batch, hidden);
        self.side = Some(tap.receiver);
    }

    /// Norm, q, k and v projections with bias, norms of q and k, RoPE, append to the KV pool. A
    /// work item is one head.
    pub(super) fn project_qkv(&mut self, layer: usize, weights: &LayerWeights) {
        let packing = self.packing([&weights.q, &weights.k, &weights.v]);
        self.norm(&weights.attention_norm, packing);
        self.narrow(Source::Normed, [&weights.q, &weights.k, &weights.v]);
        self.shrink(layer, Source::Normed, packing, &[Projection::Q, Projection::K, Projection::V]);
        let ModelConfig { head_dim, .. } = *self.config;
        let Buffers { normed, queries, raw_keys, kv_indices, narrow, adapted, delta, .. } =
            &mut *self.buffers;
        let (kernels, normed, narrow, adapted) = (self.kernels, &*normed, &*narrow, &*adapted);
        let rows = kv_indices.len();
        let outputs = HeadOutputs {
            layer: self.config.kv_layer(layer),
            config: self.config,
            kernels,
            bias: weights.qkv_bias.as_ref(),
            norm: weights.qk_norm.as_ref(),
            rope: self.rope.of(self.config.layer_rope(layer)),
            positions: &self.batch.positions,
            kv_indices,
            shape: self.kv.shape(),
            queries: SharedMut::new(queries),
            raw_keys: SharedMut::new(raw_keys),
            gates: SharedMut::new(&mut delta.gates),
            kv: SharedMut::new(self.kv.data_mut()),
        };
        let scratch = SharedMut::new(self.scratch);
        let workers = self.pool.num_workers();
        self.pool.for_each(Head::items(self.config), assist(self.side), |worker, item| {
            // SAFETY: each worker accesses only its own element of `scratch`.
            let WorkerScratch { tile, up_tile: rotated, .. } =
                unsafe { &mut scratch.part(worker..worker + 1)[0] };
            let head = Head::of_item(item, self.config);
            let (weights, projection) = match head {
                Head::Query(_) | Head::Gate(_) => (&weights.q, Projection::Q),
                Head::Key(_) => (&weights.k, Projection::K),
                Head::Value(_) => (&weights.v, Projection::V),
            };
            let delta = Delta::new(adapted, self.batch, layer, projection);
            let cols = head.rows(self.config);
            let (x, first) = (normed, 0);
            let linear = Linear { kernels, x, packing, narrow, first, rows, weights, delta };
            for block in linear.row_blocks() {
                linear.product(&block, &cols, workers, tile);
                for (row, values) in block.zip(tile.chunks_exact_mut(head_dim)) {
                    // SAFETY: only this item stores this head.
                    unsafe { outputs.put(head, row, values, &mut rotated[..head_dim]) };
                }
            }
        });
        if self.config.architecture.has_wide_qk_norm() {
            for_each_row(self.pool, self.side, rows, self.config.q_size(), |worker, row| {
                // SAFETY: each worker accesses only its own element of `scratch`, and each row is
                // that of one item.
                unsafe {
                    let rotated = &mut scratch.part(worker..worker + 1)[0].up_tile;
                    outputs.finish_row(row, &mut rotated[..head_dim]);
                }
            });
        }
    }

    /// Output projection of attention, with post norm, added to the residual stream.
    pub(super) fn project_attended(&mut self, layer: usize, weights: &LayerWeights) {
        let post_norm = weights.post_norms.as_ref().map(|norms| &norms.attention[..]);
        let bias = weights.o_bias.as_deref();
        self.add_to_stream((layer, Projection::O), Source::Attended, (&weights.o, bias), post_norm);
    }

    /// Norm, MLP, added to the residual stream.
    pub(super) fn mlp(&mut self, index: usize, weights: &LayerWeights) {
        let dense = match (&weights.mlp, self.config.layer_mixture(index)) {
            (Mlp::Dense(dense), _) => dense,
            (Mlp::Mixture(mixture), config) => {
                let config = config.expect("the layers are checked against the config");
                return self.mixture(index, &weights.mlp_norm, config, mixture);
            }
        };
        let packing = self.packing([&dense.gate, &dense.up]);
        self.norm(&weights.mlp_norm, packing);
        self.narrow(Source::Normed, [&dense.gate, &dense.up]);
        self.shrink(index, Source::Normed, packing, &[Projection::Gate, Projection::Up]);
        self.buffers.routes.all(self.batch.rows());
        self.gate_and_up(std::slice::from_ref(dense), packing, Some(index));
        let post_norm = weights.post_norms.as_ref().map(|norms| &norms.mlp[..]);
        let down = (index, Projection::Down);
        self.add_to_stream(down, Source::Inner, (&dense.down, None), post_norm);
    }

    /// Gate and up projections of the groups of rows among `mlps`, activation. A work item is some
    /// inner features of a group. `packing`: that of the normalised stream. `adapted`: the layer
    /// whose one MLP it is, which adapters may change.
    pub(super) fn gate_and_up(
        &mut self,
        mlps: &[GatedMlp],
        packing: Packing,
        adapted: Option<usize>,
    ) {
        let down_packing = self.packing(mlps.iter().map(|mlp| &mlp.down));
        let activation = self.config.activation;
        let Buffers { normed, inner, narrow, routes, adapted: of_rows, .. } = &mut *self.buffers;
        let delta = |of| Delta::new(of_rows, self.batch, adapted?, of);
        let [gate_delta, up_delta] = [Projection::Gate, Projection::Up].map(delta);
        let (kernels, x, narrow, groups) = (self.kernels, &**normed, &*narrow, &routes.groups[..]);
        let (rows, weights) = (routes.max_group_rows(), &mlps[0].gate);
        let features = weights.rows;
        let stride = Packing::stride(features);
        let (first, delta) = (0, gate_delta);
        let largest = Linear { kernels, x, packing, narrow, first, rows, weights, delta };
        down_packing.clear_padding(inner, routes.inner_rows(), features);
        let inner = SharedMut::new(inner);
        let scratch = SharedMut::new(self.scratch);
        let workers = self.pool.num_workers();
        // Whole groups of interleaved rows, as `up` may be repacked where `gate` is not quantized.
        let step = largest.item_cols(workers, groups.len()).next_multiple_of(INTERLEAVED_ROWS);
        let steps = features.div_ceil(step);
        self.pool.for_each(groups.len() * steps, assist(self.side), |worker, item| {
            // SAFETY: each worker accesses only its own element of `scratch`.
            let WorkerScratch { tile: gate, up_tile: up, .. } =
                unsafe { &mut scratch.part(worker..worker + 1)[0] };
            let (group, item) = (&groups[item / steps], item % steps);
            let (mlp, cols) = (&mlps[group.mlp], item * step..features.min((item + 1) * step));
            let (first, rows) = (group.input, group.rows);
            let gate_linear = Linear { first, rows, weights: &mlp.gate, ..largest };
            let up_linear = Linear { weights: &mlp.up, delta: up_delta, ..gate_linear };
            for block in gate_linear.row_blocks() {
                gate_linear.product(&block, &cols, workers, gate);
                up_linear.product(&block, &cols, workers, up);
                if let Some(bias) = &mlp.bias {
                    let rows =
                        gate.chunks_exact_mut(cols.len()).zip(up.chunks_exact_mut(cols.len()));
                    rows.take(block.len()).for_each(|(gate, up)| {
                        add_bias(gate, Some(&bias.gate[cols.clone()]));
                        add_bias(up, Some(&bias.up[cols.clone()]));
                    });
                }
                // The activation works on whole registers; values beyond the products are unused.
                let len = (block.len() * cols.len()).next_multiple_of(super::simd::MAX_LANES);
                kernels.gate(activation, &mut gate[..len], &up[..len]);
                let rows = block.start - first + group.first..;
                for (row, values) in rows.zip(gate.chunks_exact(cols.len())).take(block.len()) {
                    // SAFETY: only this item writes these features, at distinct indices.
                    unsafe { down_packing.scatter(&inner, row * stride, cols.start, values) };
                }
            }
        });
    }

    /// Final norm, and logits of the requested rows. A work item is some tokens of the vocabulary.
    pub(super) fn logits(&mut self, norm: &[f32], weights: &Tensor) {
        let ModelConfig { hidden_size: hidden, vocab_size: vocab, logits_scaling, .. } =
            *self.config;
        let stride = Packing::stride(hidden);
        let packing = self.packing([weights]);
        let Buffers { hidden: stream, normed, wanted, .. } = &mut *self.buffers;
        for (row, out) in wanted.iter().zip(normed.chunks_exact_mut(stride)) {
            let x = &stream[*row as usize * hidden..][..hidden];
            self.kernels.rms_norm(x, norm, self.config.rms_norm_eps, packing, out);
        }
        let rows = wanted.len();
        self.narrow_rows(Source::Normed, rows, [weights]);
        let Buffers { normed, logits, narrow, .. } = &mut *self.buffers;
        let logits = SharedMut::new(logits);
        let (kernels, x, first, delta) = (self.kernels, &**normed, 0, None);
        Linear { kernels, x, packing, narrow, first, rows, weights, delta }.for_each_tile(
            self.pool,
            self.scratch,
            self.side,
            |row, cols, values| {
                let first = row * vocab + cols.start;
                // SAFETY: only this item writes these tokens' logits.
                let out = unsafe { logits.part(first..first + cols.len()) };
                out.iter_mut().zip(values).for_each(|(out, value)| *out = value / logits_scaling);
            },
        );
    }

    /// Runs the remaining side tasks.
    pub(super) fn drain(&mut self) {
        if let Some(sink) = self.side {
            let workers = self.pool.num_workers();
            self.pool.for_each(workers, || false, |_, _| while sink.assist() {});
        }
    }

    /// Adds `source . weights + bias` to the residual stream, normalised if there is a `post_norm`.
    fn add_to_stream(
        &mut self,
        (layer, projection): (usize, Projection),
        source: Source,
        (weights, bias): (&Tensor, Option<&[f32]>),
        post_norm: Option<&[f32]>,
    ) {
        let ModelConfig { hidden_size: hidden, residual_multiplier: factor, .. } = *self.config;
        let packing = self.packing([weights]);
        self.narrow(source, [weights]);
        self.shrink(layer, source, packing, &[projection]);
        let Buffers { hidden: stream, projected, normed, attended, inner, narrow, adapted, .. } =
            &mut *self.buffers;
        let x = source.rows(normed, attended, inner);
        let rows = self.batch.rows();
        // The norm needs complete rows.
        let out = SharedMut::new(if post_norm.is_some() { projected } else { stream });
        let delta = Delta::new(adapted, self.batch, layer, projection);
        let (kernels, first) = (self.kernels, 0);
        Linear { kernels, x, packing, narrow, first, rows, weights, delta }.for_each_tile(
            self.pool,
            self.scratch,
            self.side,
            |row, cols, values| {
                let first = row * hidden + cols.start;
                // SAFETY: only this item writes these columns of the row.
                let out = unsafe { out.part(first..first + cols.len()) };
                match post_norm {
                    None => {
                        out.iter_mut().zip(values).for_each(|(out, value)| *out += factor * value);
                    }
                    Some(_) => out.copy_from_slice(values),
                }
                add_bias(out, bias.map(|bias| &bias[cols]));
            },
        );
        if let Some(weight) = post_norm {
            self.add_normed(weight);
        }
    }

    /// Adds the RMSNorm of `projected` to the residual stream.
    fn add_normed(&mut self, weight: &[f32]) {
        let ModelConfig { hidden_size: hidden, rms_norm_eps: eps, .. } = *self.config;
        let Buffers { hidden: stream, projected, .. } = &mut *self.buffers;
        let (kernels, projected, stream) = (self.kernels, &*projected, SharedMut::new(stream));
        for_each_row(self.pool, self.side, self.batch.rows(), hidden, |_, row| {
            let values = row * hidden..(row + 1) * hidden;
            let x = &projected[values.clone()];
            let scale = kernels.rms_scale(x, eps);
            // SAFETY: each row is written by one item.
            let out = unsafe { stream.part(values) };
            for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                *out += x * scale * weight;
            }
        });
    }

    /// Converts `source` to the narrow types of `matrices`, which read it.
    fn narrow<const N: usize>(&mut self, source: Source, matrices: [&Tensor; N]) {
        self.narrow_rows(source, self.batch.rows(), matrices);
    }

    /// As [`narrow`](Self::narrow), for the first `rows` rows.
    pub(super) fn narrow_rows<'t>(
        &mut self,
        source: Source,
        rows: usize,
        matrices: impl IntoIterator<Item = &'t Tensor>,
    ) {
        let mut matrices = matrices.into_iter().peekable();
        let Some(len) = matrices.peek().map(|first| first.cols) else { return };
        let stride = Packing::stride(len);
        let Buffers { normed, attended, inner, narrow, .. } = &mut *self.buffers;
        let x = source.rows(normed, attended, inner);
        let Some(writer) = narrow.writer(matrices) else {
            return;
        };
        for_each_row(self.pool, self.side, rows, len, |_, row| {
            // SAFETY: each row is written by one item.
            unsafe { writer.write(row, &x[row * stride..][..len]) };
        });
    }

    /// Storage order of activations that all of `matrices` read.
    pub(super) fn packing<'t>(&self, matrices: impl IntoIterator<Item = &'t Tensor>) -> Packing {
        match self.buffers.narrow.kernels.pairs {
            // Pairs are neighbours.
            Some(_) => Packing::NATURAL,
            None => {
                let dtypes = matrices.into_iter().map(|tensor| tensor.dtype);
                Packing::new(dtypes, self.kernels.lanes)
            }
        }
    }

    /// RMSNorm of the residual stream into `normed`.
    pub(super) fn norm(&mut self, weight: &[f32], packing: Packing) {
        let hidden = self.config.hidden_size;
        let stride = Packing::stride(hidden);
        let Buffers { hidden: stream, normed, .. } = &mut *self.buffers;
        let (kernels, eps) = (self.kernels, self.config.rms_norm_eps);
        let stream = &*stream;
        let normed = SharedMut::new(normed);
        for_each_row(self.pool, self.side, self.batch.rows(), hidden, |_, row| {
            // SAFETY: each row is written by one item.
            let out = unsafe { normed.part(row * stride..(row + 1) * stride) };
            kernels.rms_norm(&stream[row * hidden..][..hidden], weight, eps, packing, out);
        });
    }
}

impl CpuForward {
    /// Calls `each(worker, row, logits)` for each row of logits of the last pass, over the threads.
    pub(super) fn for_each_logits(&mut self, each: impl Fn(usize, usize, &mut [f32]) + Sync) {
        let vocab = self.model.config.vocab_size;
        let logits = SharedMut::new(&mut self.buffers.logits);
        for_each_row(&mut self.pool, None, self.buffers.wanted.len(), vocab, |worker, row| {
            // SAFETY: a row is passed to one call.
            each(worker, row, unsafe { logits.part(row * vocab..(row + 1) * vocab) });
        });
    }
}

/// Adds an optional `bias` to as many values.
pub(super) fn add_bias(values: &mut [f32], bias: Option<&[f32]>) {
    values.iter_mut().zip(bias.into_iter().flatten()).for_each(|(value, bias)| *value += bias);
}

/// Calls `one(worker, row)` for each of `rows` rows of `width` values, over the threads if that is
/// faster.
pub(super) fn for_each_row(
    pool: &mut Pool,
    side: Option<&dyn HiddenSink>,
    rows: usize,
    width: usize,
    one: impl Fn(usize, usize) + Sync,
) {
    if rows < 2 || rows * width < PARALLEL_FLOATS {
        (0..rows).for_each(|row| one(0, row));
    } else {
        pool.for_each(rows, assist(side), one);
    }
}

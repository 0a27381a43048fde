//! Attention of all rows of a batch over the KV pool.

use std::ops::Range;

use crate::backend::Batch;
use crate::model::{DeltaNet, LayerWeights, ModelConfig, Tensor};

use super::buffers::{AttentionRows, Buffers, Split, WorkerScratch};
use super::delta_net::{KeyHead, input_len};
use super::kv::KvShape;
use super::linear::assist;
use super::options::ITEMS_PER_THREAD;
use super::regions::Regions;
use trail_cpu_kernels::SharedMut;
use trail_cpu_kernels::{Attention, AttentionScratch, Kernels, Packing, Softmax, partitions};

impl Regions<'_> {
    /// Attention over the KV pool. A work item is one KV head and some rows of a request; or, if
    /// these are too few for the threads, one KV head, one decode row and one partition.
    pub(super) fn attend(&mut self, layer: usize, weights: &LayerWeights) {
        let packing = self.packing([&weights.o]);
        let ModelConfig { num_heads, num_kv_heads, head_dim, .. } = *self.config;
        let Buffers { queries, attended, tasks, splits, partials, delta, .. } = &mut *self.buffers;
        packing.clear_padding(attended, self.batch.rows(), self.config.q_size());
        let heads = Heads {
            config: self.config,
            kernels: self.kernels,
            batch: self.batch,
            queries,
            kv: self.kv.data(),
            shape: self.kv.shape(),
            layer,
            packing,
            attended: SharedMut::new(attended),
            gates: self.config.architecture.is_hybrid().then_some(&*delta.gates),
            sinks: weights.sinks.as_deref(),
        };
        let (tasks, num_workers) = (&*tasks, self.pool.num_workers());
        heads.split(tasks, num_workers, splits);
        let (splits, partials) = (&*splits, SharedMut::new(partials));
        let group = num_heads / num_kv_heads;
        let len = group * Softmax::stored_len(head_dim);
        let partial = |index: usize| index * len..(index + 1) * len;
        let scratch = SharedMut::new(self.scratch);
        self.pool.for_each(splits.len() * num_kv_heads, assist(self.side), |worker, item| {
            // SAFETY: each worker accesses only its own element of `scratch`, each item its own
            // partial sums.
            let (scratch, partial) = unsafe {
                (&mut scratch.part(worker..worker + 1)[0].attention, partials.part(partial(item)))
            };
            let (split, kv_head) = (splits[item / num_kv_heads], item % num_kv_heads);
            heads.run(scratch, tasks[split.task], kv_head, split.partition..split.partition + 1);
            scratch.total.store(group, partial);
        });
        self.pool.for_each(tasks.len() * num_kv_heads, assist(self.side), |worker, item| {
            // SAFETY: each worker accesses only its own element of `scratch`.
            let scratch = unsafe { &mut scratch.part(worker..worker + 1)[0].attention };
            let (index, kv_head) = (item / num_kv_heads, item % num_kv_heads);
            let task = tasks[index];
            if splits.is_empty() {
                heads.run(scratch, task, kv_head, heads.partitions(task));
            } else {
                scratch.total.clear(group);
                for (at, _) in splits.iter().enumerate().filter(|(_, split)| split.task == index) {
                    // SAFETY: partial sums are only read in this region.
                    let partial = unsafe { partials.part(partial(at * num_kv_heads + kv_head)) };
                    scratch.partition.load(group, partial);
                    scratch.total.add(&scratch.partition, group);
                }
            }
            // SAFETY: only this item writes these heads of these rows.
            unsafe { heads.put(scratch, task, kv_head) };
        });
    }

    /// The gated delta net `weights` of `layer`, in place of attention: the tokens of each request
    /// in order, from its recurrent state on. A work item is one key head of a request. `o`: the
    /// output projection.
    pub(super) fn recur(&mut self, layer: usize, weights: &DeltaNet, o: &Tensor) {
        let packing = self.packing([o]);
        let config = self.config.layer_delta_net(layer).expect("checked against the config");
        let place = config.place(layer).expect("checked against the config");
        let (heads, head_len, batch) = (config.key_heads, config.head_state_len(), self.batch);
        let Buffers { attended, delta, .. } = &mut *self.buffers;
        packing.clear_padding(attended, batch.rows(), config.value_size());
        let (inputs, input_len) = (&*delta.inputs, input_len(config));
        let (stride, value_dim) = (Packing::stride(config.value_size()), config.value_dim);
        let state_len = self.states.state_len();
        let states = SharedMut::new(&mut self.states.values);
        let (attended, scratch) = (SharedMut::new(attended), SharedMut::new(self.scratch));
        let (kernels, eps) = (self.kernels, self.config.rms_norm_eps);
        self.pool.for_each(batch.segments.len() * heads, assist(self.side), |worker, item| {
            let (segment, head) = (&batch.segments[item / heads], item % heads);
            let part = |state: u32| {
                let first = state as usize * state_len + (place * heads + head) * head_len;
                first..first + head_len
            };
            // SAFETY: each worker accesses only its own element of `scratch`. The batch is checked:
            // no two segments or copies have one state, and only this item has this head of it.
            let (WorkerScratch { tile, up_tile, .. }, state) = unsafe {
                (&mut scratch.part(worker..worker + 1)[0], states.part(part(segment.state.after)))
            };
            let key_head = KeyHead { kernels, config, weights, eps, head };
            let mut copies = batch.copies(segment).iter().peekable();
            for at in 0..segment.len {
                let row = (segment.first_row + at) as usize;
                let inputs = &inputs[row * input_len..][..input_len];
                key_head.step(inputs, state, [tile, up_tile], |head, values| {
                    // SAFETY: only this item writes these heads of these rows.
                    unsafe {
                        packing.scatter(&attended, row * stride, head * value_dim, values);
                    }
                });
                while let Some(copy) = copies.next_if(|copy| copy.end == segment.start + at + 1) {
                    // SAFETY: as above.
                    unsafe { states.part(part(copy.state)) }.copy_from_slice(state);
                }
            }
        });
    }
}

/// Operands of attention in one layer.
struct Heads<'a> {
    config: &'a ModelConfig,
    kernels: &'static Kernels,
    batch: &'a Batch,
    /// `[rows][num_heads][head_dim]`
    queries: &'a [f32],
    kv: &'a [u8],
    shape: KvShape,
    layer: usize,
    packing: Packing,
    /// Packed `[rows][num_heads * head_dim]`.
    attended: SharedMut<'a, f32>,
    /// Factors of the outputs, if the family has them `[rows][num_heads][head_dim]`.
    gates: Option<&'a [f32]>,
    /// Scores of the attention sinks, if the family has them `[num_heads]`.
    sinks: Option<&'a [f32]>,
}

impl Heads<'_> {
    /// Query heads of a KV head.
    fn group(&self) -> usize {
        self.config.num_heads / self.config.num_kv_heads
    }

    fn window(&self) -> usize {
        self.config.windows[self.layer].unwrap_or(usize::MAX)
    }

    /// Pieces of the context that `task` attends to.
    fn partitions(&self, task: AttentionRows) -> Range<usize> {
        partitions(task.position, task.position + task.rows - 1, self.window())
    }

    /// Splits `tasks` by the partitions of their contexts into `splits`, which stays empty where
    /// whole tasks are enough for `num_workers` threads, or rows are prefilled.
    fn split(&self, tasks: &[AttentionRows], num_workers: usize, splits: &mut Vec<Split>) {
        splits.clear();
        let is_few = tasks.len() * self.config.num_kv_heads < ITEMS_PER_THREAD * num_workers;
        if num_workers > 1 && is_few && tasks.iter().all(|task| task.rows == 1) {
            for (task, &rows) in tasks.iter().enumerate() {
                splits.extend(self.partitions(rows).map(|partition| Split { task, partition }));
            }
            if splits.len() == tasks.len() {
                splits.clear();
            }
        }
    }

    /// Attends with the query heads of `kv_head` to `partitions`: the scratch's total.
    fn run(
        &self,
        scratch: &mut AttentionScratch,
        task: AttentionRows,
        kv_head: usize,
        partitions: Range<usize>,
    ) {
        let ModelConfig { num_heads, head_dim, .. } = *self.config;
        let (group, head_stride) = (self.group(), scratch.head_stride);
        for q in 0..task.rows * group {
            let head = (task.first_row + q / group) * num_heads + kv_head * group + q % group;
            scratch.queries[q * head_stride..][..head_dim]
                .copy_from_slice(&self.queries[head * head_dim..][..head_dim]);
        }
        self.kernels.attention(Attention {
            scratch,
            partitions,
            rows: task.rows,
            group,
            head_dim,
            position: task.position,
            window: self.window(),
            kv: self.kv,
            kv_dtype: self.shape.dtype,
            blocks: self.batch.blocks(&self.batch.segments[task.segment]),
            block_bytes: self.shape.block_bytes,
            keys: self.shape.keys(self.config.kv_layer(self.layer), kv_head),
            values: self.shape.values(self.config.kv_layer(self.layer), kv_head),
        });
    }

    /// Writes the scratch's total to `attended`.
    ///
    /// # Safety
    ///
    /// No other thread may access the query heads of `kv_head` in the task's rows during the call.
    unsafe fn put(&self, scratch: &mut AttentionScratch, task: AttentionRows, kv_head: usize) {
        let (group, head_dim) = (self.group(), self.config.head_dim);
        let stride = Packing::stride(self.config.q_size());
        for row in 0..task.rows {
            let first = (task.first_row + row) * stride;
            for head in 0..group {
                let query = row * group + head;
                if let Some(sinks) = self.sinks {
                    scratch.total.add_sink(query, sinks[kv_head * group + head]);
                }
                let at = (kv_head * group + head) * head_dim;
                let mut out = scratch.total.finish(query, head_dim);
                if let Some(gates) = self.gates {
                    let gates = &gates[(task.first_row + row) * self.config.q_size() + at..];
                    // The queries were read.
                    let gated = &mut scratch.queries[..head_dim];
                    let products = out.iter().zip(gates).map(|(out, gate)| out * gate);
                    gated.iter_mut().zip(products).for_each(|(gated, product)| *gated = product);
                    out = gated;
                }
                // SAFETY: the caller guarantees exclusive access, and each head has its indices.
                unsafe { self.packing.scatter(&self.attended, first, at, out) };
            }
        }
    }
}

#[cfg(test)]
mod tests;

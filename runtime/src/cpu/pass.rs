//! The forward pass: a sequence of parallel regions.

use std::ops::Range;

use crate::backend::Batch;
use crate::model::Weights;

use super::regions::Regions;
use super::{CpuForward, Tap};

impl CpuForward {
    /// Feeds `batch` through the model, appends its keys and values to the KV pool, and brings the
    /// recurrent states to its last tokens.
    ///
    /// Returns the logits of the sampled rows of all segments, in row order:
    /// `[wanted][vocab]`. The residual stream is published to the receiver of each of `taps` after
    /// its layer.
    ///
    /// # Panics
    ///
    /// If `batch` exceeds the configured sizes, has a token id or block id out of range, or
    /// segments that are not contiguous.
    pub fn forward(&mut self, batch: &Batch, taps: &[Tap<'_>]) -> &[f32] {
        self.check(batch);
        self.buffers.plan(&self.model.config, batch);
        if batch.rows() == 0 {
            return &[];
        }
        self.kv.place(&batch.block_tables, &self.pool);
        self.states.begin(batch);
        let (weights, mut regions) = self.regions(batch);
        regions.embed(&weights.embed);
        for (index, layer) in weights.layers.iter().enumerate() {
            match &layer.delta_net {
                None => {
                    regions.project_qkv(index, layer);
                    regions.attend(index, layer);
                }
                Some(net) => {
                    regions.project_delta_net(layer, net);
                    regions.recur(index, net, &layer.o);
                }
            }
            regions.project_attended(index, layer);
            regions.mlp(index, layer);
            for tap in taps.iter().filter(|tap| tap.layer == index) {
                regions.publish(*tap);
            }
        }
        regions.logits(&weights.norm, &weights.lm_head);
        regions.drain();
        &self.buffers.logits[..self.buffers.wanted.len() * self.model.config.vocab_size]
    }

    /// Computes the logits of `rows` of `batch`, the last one that was fed, in place of those of
    /// the pass: `[rows][vocab]`, of at most [`CpuOptions::max_sampled`](super::CpuOptions) rows.
    pub(super) fn logits_of(&mut self, batch: &Batch, rows: Range<u32>) {
        self.buffers.wanted.clear();
        self.buffers.wanted.extend(rows);
        let (weights, mut regions) = self.regions(batch);
        regions.logits(&weights.norm, &weights.lm_head);
    }

    /// The weights, and the operands of a pass of `batch`.
    fn regions<'a>(&'a mut self, batch: &'a Batch) -> (&'a Weights, Regions<'a>) {
        let regions = Regions {
            config: &self.model.config,
            kernels: self.kernels,
            rope: &self.rope,
            batch,
            pool: &mut self.pool,
            kv: &mut self.kv,
            states: &mut self.states,
            buffers: &mut self.buffers,
            scratch: &mut self.scratch,
            side: None,
        };
        (&self.weights, regions)
    }
}

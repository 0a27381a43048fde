//! The forward pass: a sequence of parallel regions.

use crate::backend::Batch;

use super::regions::Regions;
use super::{CpuForward, Tap};

impl CpuForward {
    /// Feeds `batch` through the model and appends its keys and values to the KV pool.
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
        let mut regions = Regions {
            config: &self.model.config,
            kernels: self.kernels,
            rope: &self.rope,
            batch,
            pool: &mut self.pool,
            kv: &mut self.kv,
            buffers: &mut self.buffers,
            scratch: &mut self.scratch,
            side: None,
        };
        let weights = &self.weights;
        regions.embed(&weights.embed);
        for (index, layer) in weights.layers.iter().enumerate() {
            regions.project_qkv(index, layer);
            regions.attend(index, layer);
            regions.project_attended(layer);
            regions.gate_and_up(layer);
            regions.down(layer);
            for tap in taps.iter().filter(|tap| tap.layer == index) {
                regions.publish(*tap);
            }
        }
        regions.logits(&weights.norm, &weights.lm_head);
        regions.drain();
        &self.buffers.logits[..self.buffers.wanted.len() * self.model.config.vocab_size]
    }
}

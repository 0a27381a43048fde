//! The layers of a step: five launches each, or all in one where the plans have it.

use super::Executor;
use super::fill::Shape;
use crate::backend::BLOCK_TOKENS;
use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::launch::{
    self, DecodeRows, KvView, MegakernelBuffers, Norm, Operands, PrefillRows, QkvOutput,
    ResidualOutput,
};
use crate::cuda::memory::DeviceBuffer;
use crate::cuda::plan::gemm::GemmPlan;
use crate::cuda::plan::megakernel::MegakernelPlan;
use crate::cuda::plan::{attention, step};
use crate::cuda::weights::DeviceWeights;
use crate::model::ModelConfig;
use cudarc::driver::sys::CUdeviceptr;
use std::ops::Range;

/// Input operand of a product.
enum GemmInput {
    Normed,
    AttnOut,
    MlpInner,
}

/// Device memory of the megakernel, beside the buffers of a step.
pub(super) struct Megakernel {
    /// `[layers]` of [`launch::megakernel_layer`].
    layers: DeviceBuffer,
    /// The grid barrier's word.
    pub(super) barrier: DeviceBuffer,
}

impl Megakernel {
    pub(super) fn new(
        device: &Device,
        config: &ModelConfig,
        weights: &DeviceWeights,
    ) -> Result<Megakernel, CudaError> {
        const WHAT: &str = "addresses of layers";
        let layer = |(index, of)| {
            let norms = [weights.norms[2 * index + 1], weights.norms[2 * index + 2]];
            launch::megakernel_layer(of, norms, index * layer_stride(config), config.windows[index])
        };
        let layers: Vec<_> = weights.layers.iter().enumerate().map(layer).collect();
        Ok(Megakernel {
            layers: device.upload(&layers, WHAT)?,
            barrier: device.alloc_zeros(4, WHAT)?,
        })
    }
}

/// Elements of a layer in a KV block.
fn layer_stride(config: &ModelConfig) -> usize {
    2 * config.kv_size() * BLOCK_TOKENS
}

impl Executor {
    /// Layers `range`; `tap_row` is the address of the stage rows of the last layer's rows, 0:
    /// none.
    pub(super) fn layers(
        &self,
        shape: &Shape,
        range: Range<usize>,
        tap_row: CUdeviceptr,
    ) -> Result<(), CudaError> {
        if let Some((plan, with)) = self.megakernel(shape).filter(|_| !range.is_empty()) {
            return self.megakernel_layers(plan, with, range, tap_row);
        }
        for layer in range.clone() {
            self.qkv(shape, layer)?;
            self.attend(shape, layer)?;
            // With tensor parallelism, an all-reduce goes after this product and after the one
            // below.
            self.residual(shape, layer, GemmInput::AttnOut, 0)?;
            self.swiglu(shape, layer)?;
            let tap_row = if layer + 1 == range.end { tap_row } else { 0 };
            self.residual(shape, layer, GemmInput::MlpInner, tap_row)?;
        }
        Ok(())
    }

    /// The megakernel's plan for a step of `shape`: only for a few decode rows and nothing else.
    fn megakernel(&self, shape: &Shape) -> Option<(&MegakernelPlan, &Megakernel)> {
        let size = shape.decode.filter(|_| shape.tiles == 0)?;
        self.plans.megakernel[size].as_ref().zip(self.megakernel.as_ref())
    }

    fn megakernel_layers(
        &self,
        plan: &MegakernelPlan,
        with: &Megakernel,
        range: Range<usize>,
        tap_row: CUdeviceptr,
    ) -> Result<(), CudaError> {
        // Weights, norms, places in the pool and windows come from the layers' own list.
        let kv = self.kv(range.start);
        let of = MegakernelBuffers {
            layers: with.layers.at(),
            barrier: with.barrier.at(),
            norm: self.norm(),
            qkv: (self.operands(0, &GemmInput::Normed), self.qkv_output(&kv)),
            attention: (kv, self.decode_rows()),
            o: (self.operands(0, &GemmInput::AttnOut), self.residual_output(0, 0)),
            gate_up: (self.operands(0, &GemmInput::Normed), self.buffers.inner.at()),
            down: (self.operands(0, &GemmInput::MlpInner), self.residual_output(0, tap_row)),
        };
        self.compute.launch(&launch::megakernel(plan, &range, &of))
    }

    fn qkv(&self, shape: &Shape, layer: usize) -> Result<(), CudaError> {
        let plan = &self.plans.layer[shape.rows].products.qkv;
        let from = self.operands(self.weights.layers[layer].qkv, &GemmInput::Normed);
        let to = self.qkv_output(&self.kv(layer));
        let (queue, norm) = (&self.compute, self.norm());
        match self.map(plan, &GemmInput::Normed) {
            Some(map) => queue.launch(&launch::wgmma_qkv(plan, map, &from, &norm, &to)),
            None => queue.launch(&launch::qkv(plan, &from, &norm, &to)),
        }
    }

    fn attend(&self, shape: &Shape, layer: usize) -> Result<(), CudaError> {
        let (kv, heads) = (self.kv(layer), self.plans.heads);
        let rows = self.decode_rows();
        if let Some(size) = shape.decode {
            let plan = &self.plans.decode[size];
            self.compute.launch(&launch::attention_decode(plan, &kv, &rows))?;
        }
        if shape.tiles > 0 {
            let (segments, tiles) =
                (self.word(self.layout().segments), self.word(self.layout().tiles));
            let plan =
                attention::prefill(heads, shape.tiles, shape.prompt_rows, shape.prompt_pairs);
            let rows = PrefillRows { q: rows.q, segments, tiles, out: rows.out };
            self.compute.launch(&launch::attention_prefill(&plan, heads, &kv, &rows))?;
        }
        Ok(())
    }

    /// Adds O's product, or the MLP's, to the residual stream; `tap_row` says which rows are
    /// staged, 0: none.
    fn residual(
        &self,
        shape: &Shape,
        layer: usize,
        from: GemmInput,
        tap_row: CUdeviceptr,
    ) -> Result<(), CudaError> {
        let plans = &self.plans.layer[shape.rows].products;
        let weights = &self.weights.layers[layer];
        let (plan, w, norm) = match from {
            GemmInput::AttnOut => (&plans.o, weights.o, 2 * layer + 1),
            _ => (&plans.down, weights.down, 2 * layer + 2),
        };
        let operands = self.operands(w, &from);
        let to = self.residual_output(self.weights.norms[norm], tap_row);
        match self.map(plan, &from) {
            Some(map) => self.compute.launch(&launch::wgmma_residual(plan, map, &operands, &to)),
            None => self.compute.launch(&launch::residual(plan, &operands, &to)),
        }
    }

    fn swiglu(&self, shape: &Shape, layer: usize) -> Result<(), CudaError> {
        let plan = &self.plans.layer[shape.rows].products.gate_up;
        let from = self.operands(self.weights.layers[layer].gate_up, &GemmInput::Normed);
        let (norm, out) = (self.norm(), self.buffers.inner.at());
        match self.map(plan, &GemmInput::Normed) {
            Some(map) => self.compute.launch(&launch::wgmma_swiglu(plan, map, &from, &norm, out)),
            None => self.compute.launch(&launch::swiglu(plan, &from, &norm, out)),
        }
    }

    fn qkv_output(&self, kv: &KvView) -> QkvOutput {
        let heads = self.plans.heads;
        QkvOutput {
            q: self.buffers.q.at(),
            kv_pool: kv.pool,
            position: self.word(self.layout().position),
            batch_idx: self.word(self.layout().batch_idx),
            block_table: kv.block_table,
            rope_freqs: self.buffers.rope_freqs.at(),
            block_stride: kv.block_stride,
            layer_offset: kv.layer_offset,
            max_blocks: kv.max_blocks,
            heads: heads.kv_heads * heads.group,
            kv_heads: heads.kv_heads,
            head_dim: heads.head_dim,
        }
    }

    fn decode_rows(&self) -> DecodeRows {
        let buffers = &self.buffers;
        DecodeRows {
            q: buffers.q.at(),
            position: self.word(self.layout().position),
            batch_idx: self.word(self.layout().batch_idx),
            out: buffers.attended.at(),
            partial_out: buffers.partial_out.at(),
            partial_sums: buffers.partial_sums.at(),
            tile_counters: buffers.attention_counters.at(),
        }
    }

    fn residual_output(&self, gamma: CUdeviceptr, tap_row: CUdeviceptr) -> ResidualOutput {
        ResidualOutput {
            h: self.buffers.h.at(),
            gamma,
            x_next: self.buffers.x.at(),
            ss: self.buffers.ss.at(),
            tap_row,
            tap: self.tap.as_ref().map_or(0, |tap| tap.stage.at()),
        }
    }

    /// The layer's part of the pool.
    fn kv(&self, layer: usize) -> KvView {
        let layer_stride = layer_stride(&self.config);
        KvView {
            pool: self.kv.at(),
            block_table: self.word(self.layout().table),
            block_stride: self.config.num_layers * layer_stride,
            layer_offset: layer * layer_stride,
            max_blocks: self.layout().max_blocks,
            window: self.config.windows[layer],
        }
    }

    pub(super) fn norm(&self) -> Norm {
        let width = self.config.hidden_size;
        let eps = self.config.rms_norm_eps;
        Norm { ss: self.buffers.ss.at(), parts: step::parts(width), width, eps }
    }

    fn operands(&self, w: CUdeviceptr, from: &GemmInput) -> Operands {
        let buffers = &self.buffers;
        let x = match from {
            GemmInput::Normed => &buffers.x,
            GemmInput::AttnOut => &buffers.attended,
            GemmInput::MlpInner => &buffers.inner,
        };
        let (partials, tile_counters) = (buffers.partials.at(), buffers.tile_counters.at());
        Operands { x: x.at(), w, row_list: 0, partials, tile_counters }
    }

    /// The tensor map of a wgmma product's operand; `None` for other products.
    fn map(&self, plan: &GemmPlan, from: &GemmInput) -> Option<&launch::ActivationMap> {
        let maps = self.buffers.maps.as_ref().filter(|_| super::plans::is_wgmma(plan))?;
        Some(match from {
            GemmInput::Normed => &maps.x,
            GemmInput::AttnOut => &maps.attended,
            GemmInput::MlpInner => &maps.inner,
        })
    }

    pub(super) fn word(&self, index: usize) -> CUdeviceptr {
        self.metadata.at(index)
    }
}

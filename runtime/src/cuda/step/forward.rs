//! The forward pass: a layer is five launches, or all layers are one where the plans have it.

use super::PARITIES;
use super::buffers::Buffers;
use super::fill::Shape;
use super::layout::{Addresses, StepLimits};
use super::megakernel::Megakernel;
use super::plans::{Plans, is_wgmma, is_wgmma_attention};
use crate::backend::BLOCK_TOKENS;
use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::kv::KvPool;
use crate::cuda::launch::{
    self, DecodeRows, EmbedBuffers, HeadTerms, KvView, MegakernelBuffers, Norm, Operands, PoolMap,
    PrefillRows, QkvOutput, ResidualOutput,
};
use crate::cuda::plan::attention::split::PrefillSplit;
use crate::cuda::plan::gemm::GemmPlan;
use crate::cuda::plan::megakernel::MegakernelPlan;
use crate::cuda::plan::step;
use crate::cuda::queue::Queue;
use crate::cuda::weights::DeviceWeights;
use crate::model::ModelConfig;
use cudarc::driver::sys::CUdeviceptr;
use std::ops::Range;
use std::sync::Arc;

/// Input operand of a product.
#[derive(Clone, Copy)]
enum GemmInput {
    Normed,
    AttnOut,
    MlpInner,
}

/// The model on the device: weights, KV cache, and the buffers that its launches work in.
pub(super) struct Forward {
    config: ModelConfig,
    weights: DeviceWeights,
    plans: Arc<Plans>,
    megakernel: Option<Megakernel>,
    pub(super) buffers: Buffers,
    metadata: Addresses,
    /// Stage of tapped rows; 0: no layer is tapped.
    tap_stage: CUdeviceptr,
    pub(super) kv: KvPool,
    /// How Hopper's copy engine reads the pool; `None` where prefill attention does not ask.
    pool_map: Option<PoolMap>,
}

/// Everything that a [`Forward`] is built from.
pub(super) struct ForwardParts<'a> {
    pub(super) config: ModelConfig,
    pub(super) weights: DeviceWeights,
    pub(super) plans: Arc<Plans>,
    pub(super) limits: &'a StepLimits,
    pub(super) metadata: Addresses,
    pub(super) tap_stage: CUdeviceptr,
    /// Blocks of the KV pool; `None`: as many as fit.
    pub(super) kv_blocks: Option<usize>,
}

/// Elements of a layer in a KV block.
pub(super) fn layer_stride(config: &ModelConfig) -> usize {
    2 * config.kv_size() * BLOCK_TOKENS
}

impl Forward {
    /// Allocates buffers and KV pool. To be built last, because the pool may take all free memory.
    pub(super) fn new(device: &Device, parts: ForwardParts<'_>) -> Result<Forward, CudaError> {
        let ForwardParts { config, weights, plans, limits, metadata, tap_stage, kv_blocks } = parts;
        let megakernel = match plans.megakernel.iter().any(Option::is_some) {
            true => Some(Megakernel::new(device, &config, &weights)?),
            false => None,
        };
        let buffers = Buffers::new(device, &config, limits, &plans)?;
        let most = limits.requests * limits.blocks();
        let graphs = PARITIES * plans.decode_sizes.iter().len();
        let kv = KvPool::sized(device, &config, kv_blocks, most, graphs)?;
        let elements = kv.blocks() as usize * kv.block_bytes() / 2;
        let pool_map = match is_wgmma_attention(&plans.prefill(&PrefillSplit::WHOLE, 1, 2, 2)) {
            true => Some(PoolMap::new(kv.at(), elements, config.head_dim)?),
            false => None,
        };
        Ok(Forward {
            config,
            weights,
            plans,
            megakernel,
            buffers,
            metadata,
            tap_stage,
            kv,
            pool_map,
        })
    }

    /// Address of the megakernel's grid barrier, a word of device memory.
    pub(super) fn barrier(&self) -> Option<CUdeviceptr> {
        self.megakernel.as_ref().map(|megakernel| megakernel.barrier.at())
    }

    /// The rows' embeddings, into the residual stream.
    pub(super) fn embed(&self, queue: &Queue, shape: &Shape) -> Result<(), CudaError> {
        let buffers = &self.buffers;
        let rows = self.plans.rows.at(shape.rows);
        let to = EmbedBuffers {
            table: self.weights.embed,
            token: self.metadata.token,
            last: buffers.last.at(),
            batch_idx: self.metadata.batch_idx,
            gamma: self.weights.norms[0],
            h: buffers.h.at(),
            x: buffers.x.at(),
            ss: buffers.ss.at(),
        };
        let plan = &self.plans.layer[shape.rows].embed;
        queue.launch(&launch::embed(plan, rows, self.config.hidden_size, &to))
    }

    /// Layers `range`; with `tapped` the last one's rows go to the stage too, each where the
    /// metadata says.
    pub(super) fn layers(
        &self,
        queue: &Queue,
        shape: &Shape,
        range: Range<usize>,
        tapped: bool,
    ) -> Result<(), CudaError> {
        let tap_row = if tapped { self.metadata.tap_row } else { 0 };
        if let Some((plan, with)) = self.megakernel(shape).filter(|_| !range.is_empty()) {
            let of = self.megakernel_buffers(with, range.start, tap_row);
            return queue.launch(&launch::megakernel(plan, &range, &of));
        }
        for layer in range.clone() {
            self.qkv(queue, shape, layer)?;
            self.attend(queue, shape, layer)?;
            // With tensor parallelism, an all-reduce goes after this product and after the one
            // below.
            self.residual(queue, shape, layer, GemmInput::AttnOut, 0)?;
            self.swiglu(queue, shape, layer)?;
            let tap_row = if layer + 1 == range.end { tap_row } else { 0 };
            self.residual(queue, shape, layer, GemmInput::MlpInner, tap_row)?;
        }
        Ok(())
    }

    /// The logits of the rows that sample, of plan size `choices`.
    pub(super) fn logits(&self, queue: &Queue, choices: usize) -> Result<(), CudaError> {
        let plan = &self.plans.choice[choices].logits;
        let mut from = self.operands(self.weights.lm_head, GemmInput::Normed);
        from.row_list = self.metadata.logits_row;
        queue.launch(&launch::logits(plan, &from, &self.norm(), self.buffers.logits.at()))
    }

    /// The megakernel's plan for a step of `shape`: only for a few decode rows and nothing else.
    fn megakernel(&self, shape: &Shape) -> Option<(&MegakernelPlan, &Megakernel)> {
        let size = shape.decode.filter(|_| shape.tiles == 0)?;
        self.plans.megakernel[size].as_ref().zip(self.megakernel.as_ref())
    }

    /// Weights, norms, places in the pool and windows come from the layers' own list.
    fn megakernel_buffers(
        &self,
        with: &Megakernel,
        first: usize,
        tap_row: CUdeviceptr,
    ) -> MegakernelBuffers {
        let kv = self.kv_view(first);
        MegakernelBuffers {
            layers: with.layers.at(),
            barrier: with.barrier.at(),
            norm: self.norm(),
            qkv: (self.operands(0, GemmInput::Normed), self.qkv_output(&kv, HeadTerms::default())),
            attention: (kv, self.decode_rows()),
            o: (self.operands(0, GemmInput::AttnOut), self.residual_output(0, 0)),
            gate_up: (self.operands(0, GemmInput::Normed), self.buffers.inner.at()),
            down: (self.operands(0, GemmInput::MlpInner), self.residual_output(0, tap_row)),
        }
    }

    fn qkv(&self, queue: &Queue, shape: &Shape, layer: usize) -> Result<(), CudaError> {
        let plan = &self.plans.layer[shape.rows].products.qkv;
        let from = self.operands(self.weights.layers[layer].qkv, GemmInput::Normed);
        let terms = self.weights.layers[layer].terms;
        let (norm, to) = (self.norm(), self.qkv_output(&self.kv_view(layer), terms));
        match self.map(plan, GemmInput::Normed) {
            Some(map) => queue.launch(&launch::wgmma_qkv(plan, map, &from, &norm, &to)),
            None => queue.launch(&launch::qkv(plan, &from, &norm, &to)),
        }
    }

    fn attend(&self, queue: &Queue, shape: &Shape, layer: usize) -> Result<(), CudaError> {
        let (kv, heads) = (self.kv_view(layer), self.plans.heads);
        let rows = self.decode_rows();
        if let Some(size) = shape.decode {
            let plan = &self.plans.decode[size];
            queue.launch(&launch::attention_decode(plan, &kv, &rows))?;
        }
        if shape.tiles > 0 {
            let split = shape.split.within(kv.window);
            let (tile_count, pairs) = (shape.tiles, shape.prompt_pairs);
            let plan = self.plans.prefill(&split, tile_count, shape.prompt_rows, pairs);
            let rows = PrefillRows {
                q: rows.q,
                segments: self.metadata.segments,
                tiles: self.metadata.tiles,
                tile_count,
                out: rows.out,
                split,
                partial_out: rows.partial_out,
                partial_sums: rows.partial_sums,
            };
            match self.pool_map.as_ref().filter(|_| is_wgmma_attention(&plan)) {
                Some(map) => {
                    queue.launch(&launch::attention_wgmma(&plan, heads, map, &kv, &rows))?;
                }
                None => queue.launch(&launch::attention_prefill(&plan, heads, &kv, &rows))?,
            }
            if let Some(merge) = launch::attention_merge(heads, &kv, &rows) {
                queue.launch(&merge)?;
            }
        }
        Ok(())
    }

    /// Adds O's product, or the MLP's, to the residual stream; `tap_row` is the address of the
    /// stage rows of its rows, 0: none.
    fn residual(
        &self,
        queue: &Queue,
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
        let operands = self.operands(w, from);
        let to = self.residual_output(self.weights.norms[norm], tap_row);
        match self.map(plan, from) {
            Some(map) => queue.launch(&launch::wgmma_residual(plan, map, &operands, &to)),
            None => queue.launch(&launch::residual(plan, &operands, &to)),
        }
    }

    fn swiglu(&self, queue: &Queue, shape: &Shape, layer: usize) -> Result<(), CudaError> {
        let plan = &self.plans.layer[shape.rows].products.gate_up;
        let from = self.operands(self.weights.layers[layer].gate_up, GemmInput::Normed);
        let (norm, out) = (self.norm(), self.buffers.inner.at());
        match self.map(plan, GemmInput::Normed) {
            Some(map) => queue.launch(&launch::wgmma_swiglu(plan, map, &from, &norm, out)),
            None => queue.launch(&launch::swiglu(plan, &from, &norm, out)),
        }
    }

    fn qkv_output(&self, kv: &KvView, terms: HeadTerms) -> QkvOutput {
        let heads = self.plans.heads;
        QkvOutput {
            q: self.buffers.q.at(),
            kv_pool: kv.pool,
            position: self.metadata.position,
            batch_idx: self.metadata.batch_idx,
            block_table: kv.block_table,
            rope_freqs: self.buffers.rope_freqs.at(),
            terms,
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
            position: self.metadata.position,
            batch_idx: self.metadata.batch_idx,
            out: buffers.attended.at(),
            partial_out: buffers.partial_out.at(),
            partial_sums: buffers.partial_sums.at(),
            tile_counters: buffers.attention_counters.at(),
        }
    }

    fn residual_output(&self, gamma: CUdeviceptr, tap_row: CUdeviceptr) -> ResidualOutput {
        let (h, x_next) = (self.buffers.h.at(), self.buffers.x.at());
        let ss = self.buffers.ss.at();
        ResidualOutput { h, gamma, x_next, ss, tap_row, tap: self.tap_stage }
    }

    /// The layer's part of the pool.
    fn kv_view(&self, layer: usize) -> KvView {
        let layer_stride = layer_stride(&self.config);
        KvView {
            pool: self.kv.at(),
            block_table: self.metadata.table,
            block_stride: self.config.num_layers * layer_stride,
            layer_offset: layer * layer_stride,
            max_blocks: self.metadata.max_blocks,
            window: self.config.windows[layer],
        }
    }

    fn norm(&self) -> Norm {
        let width = self.config.hidden_size;
        let eps = self.config.rms_norm_eps;
        Norm { ss: self.buffers.ss.at(), parts: step::parts(width), width, eps }
    }

    fn operands(&self, w: CUdeviceptr, from: GemmInput) -> Operands {
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
    fn map(&self, plan: &GemmPlan, from: GemmInput) -> Option<&launch::ActivationMap> {
        let maps = self.buffers.maps.as_ref().filter(|_| is_wgmma(plan))?;
        Some(match from {
            GemmInput::Normed => &maps.x,
            GemmInput::AttnOut => &maps.attended,
            GemmInput::MlpInner => &maps.inner,
        })
    }
}

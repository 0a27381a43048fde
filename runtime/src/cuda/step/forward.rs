//! The forward pass: a layer is five launches, or all layers are one where the plans have it.

use super::buffers::Buffers;
use super::layout::{Addresses, StepLimits};
use super::megakernel::Megakernel;
use super::plans::{Plans, is_wgmma, is_wgmma_attention};
use super::shape::StepShape;
use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::kv::{KvPool, layer_stride};
use crate::cuda::launch::{self, Launch};
use crate::cuda::plan::attention::split::PrefillSplit;
use crate::cuda::plan::gemm::GemmPlan;
use crate::cuda::plan::megakernel::MegakernelPlan;
use crate::cuda::plan::step;
use crate::cuda::queue::Queue;
use crate::cuda::weights::DeviceWeights;
use crate::model::ModelConfig;
use std::ops::Range;
use std::sync::Arc;
use trail_ptx::DevicePtr;
use trail_ptx::params::{
    DecodeAttentionParams, EmbedParams, GemmOperands, HeadTerms, LogitsParams, MegakernelParams,
    PagedKv, PrefillAttentionParams, QkvParams, ResidualParams, RowScale, SwigluParams, TensorMap,
    WgmmaAttentionParams, WgmmaQkvParams, WgmmaResidualParams, WgmmaSwigluParams, bf16,
};

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
    weights: Arc<DeviceWeights>,
    plans: Arc<Plans>,
    megakernel: Option<Megakernel>,
    pub(super) buffers: Buffers,
    metadata: Addresses,
    /// Stage of tapped rows; null: no layer is tapped.
    tap_stage: DevicePtr<bf16>,
    pub(super) kv: KvPool,
    kv_size: KvSize,
    /// How Hopper's copy engine reads the pool; `None` where prefill attention does not ask.
    pool_map: Option<TensorMap>,
}

/// Everything that a [`Forward`] is built from.
pub(super) struct ForwardParts<'a> {
    pub(super) config: ModelConfig,
    pub(super) weights: Arc<DeviceWeights>,
    pub(super) plans: Arc<Plans>,
    pub(super) limits: &'a StepLimits,
    pub(super) metadata: Addresses,
    pub(super) tap_stage: DevicePtr<bf16>,
    /// Blocks of the KV pool; `None`: as many as fit.
    pub(super) kv_blocks: Option<usize>,
}

/// Blocks that the KV pool is to have: `blocks`, or as many as fit and no more than `max`.
#[derive(Clone, Copy)]
struct KvSize {
    blocks: Option<usize>,
    max: usize,
}

impl Forward {
    /// Allocates the buffers, and a pool of one block until [`Forward::size_pool`].
    pub(super) fn new(device: &Device, parts: ForwardParts<'_>) -> Result<Forward, CudaError> {
        let ForwardParts { config, weights, plans, limits, metadata, tap_stage, kv_blocks } = parts;
        let megakernel = match plans.megakernel.iter().any(Option::is_some) {
            true => Some(Megakernel::new(device, &config, &weights)?),
            false => None,
        };
        let buffers = Buffers::new(device, &config, limits, &plans)?;
        let kv_size = KvSize { blocks: kv_blocks, max: limits.requests * limits.blocks() };
        let kv = KvPool::sized(device, &config, tap_stage != DevicePtr::NULL, Some(1), 1, 0)?;
        let pool_map = pool_map(&plans, &kv, &config)?;
        Ok(Forward {
            config,
            weights,
            plans,
            megakernel,
            buffers,
            metadata,
            tap_stage,
            kv,
            kv_size,
            pool_map,
        })
    }

    /// Gives the KV pool its size, beside `graph_bytes` of captured graphs. To be called before
    /// the first step, and behind all other allocations, as the pool may take all free memory.
    pub(super) fn size_pool(
        &mut self,
        device: &Device,
        graph_bytes: usize,
    ) -> Result<(), CudaError> {
        let (KvSize { blocks, max }, is_tapped) = (self.kv_size, self.tap_stage != DevicePtr::NULL);
        self.kv = KvPool::sized(device, &self.config, is_tapped, blocks, max, graph_bytes)?;
        self.pool_map = pool_map(&self.plans, &self.kv, &self.config)?;
        Ok(())
    }

    /// True if the pool takes what is left of the device's memory.
    pub(super) fn takes_all_memory(&self) -> bool {
        self.kv_size.blocks.is_none()
    }

    /// Address of the megakernel's grid barrier, a word of device memory.
    pub(super) fn barrier(&self) -> Option<DevicePtr<u32>> {
        self.megakernel.as_ref().map(|megakernel| megakernel.barrier.device_ptr())
    }

    /// The rows' embeddings, into the residual stream.
    pub(super) fn embed(&self, queue: &Queue, shape: &StepShape) -> Result<(), CudaError> {
        let (buffers, d) = (&self.buffers, self.config.hidden_size);
        let params = EmbedParams {
            table: self.weights.embed,
            token: self.metadata.token,
            last: buffers.last.device_ptr(),
            batch_idx: self.metadata.batch_idx,
            gamma: self.weights.norms[0],
            h: buffers.h.device_ptr(),
            x: buffers.x.device_ptr(),
            ss: buffers.ss.device_ptr(),
            rows: self.plans.rows.at(shape.rows) as i32,
            d: d as i32,
            parts: step::parts(d) as i32,
            ..EmbedParams::default()
        };
        queue.launch(&Launch { plan: self.plans.layer[shape.rows].embed, params })
    }

    /// Layers `range`; with `tapped` the last one's rows go to the stage too, each where the
    /// metadata says.
    pub(super) fn layers(
        &self,
        queue: &Queue,
        shape: &StepShape,
        range: Range<usize>,
        tapped: bool,
    ) -> Result<(), CudaError> {
        let tap_row = if tapped { self.metadata.tap_row } else { DevicePtr::NULL };
        if let Some((plan, with)) = self.megakernel(shape).filter(|_| !range.is_empty()) {
            let params = self.megakernel_params(with, tap_row);
            return queue.launch(&launch::megakernel(plan, &range, params));
        }
        for layer in range.clone() {
            self.qkv(queue, shape, layer)?;
            self.attend(queue, shape, layer)?;
            // With tensor parallelism, an all-reduce goes after this product and after the one
            // below.
            self.residual(queue, shape, layer, GemmInput::AttnOut, DevicePtr::NULL)?;
            self.swiglu(queue, shape, layer)?;
            let tap_row = if layer + 1 == range.end { tap_row } else { DevicePtr::NULL };
            self.residual(queue, shape, layer, GemmInput::MlpInner, tap_row)?;
        }
        Ok(())
    }

    /// The logits of the rows that sample, of plan size `sampled_rows`.
    pub(super) fn logits(&self, queue: &Queue, sampled_rows: usize) -> Result<(), CudaError> {
        let operands = self.operands(self.weights.lm_head, GemmInput::Normed);
        let params = LogitsParams {
            gemm: GemmOperands { row_list: self.metadata.logits_row, ..operands },
            scale: self.row_scale(),
            logits: self.buffers.logits.device_ptr(),
        };
        queue.launch(&launch::logits(&self.plans.sampled[sampled_rows].logits, params))
    }

    /// The megakernel's plan for a step of `shape`: only for a few decode rows and nothing else.
    fn megakernel(&self, shape: &StepShape) -> Option<(&MegakernelPlan, &Megakernel)> {
        let size = shape.decode.filter(|_| shape.tiles == 0)?;
        self.plans.megakernel[size].as_ref().zip(self.megakernel.as_ref())
    }

    /// Weights, norms, places in the pool and windows come from the layers' own list.
    fn megakernel_params(&self, with: &Megakernel, tap_row: DevicePtr<i32>) -> MegakernelParams {
        let null = DevicePtr::NULL;
        let residual = |from, tap_row| self.residual_params(null, from, null, tap_row);
        MegakernelParams {
            layers: with.layers.device_ptr(),
            barrier: with.barrier.device_ptr(),
            qkv: self.qkv_params(null, HeadTerms::default(), 0),
            attention: self.decode_params(0),
            o: residual(GemmInput::AttnOut, null.cast()),
            gate_up: self.swiglu_params(null),
            down: residual(GemmInput::MlpInner, tap_row),
            ..MegakernelParams::default()
        }
    }

    fn qkv(&self, queue: &Queue, shape: &StepShape, layer: usize) -> Result<(), CudaError> {
        let plan = &self.plans.layer[shape.rows].products.qkv;
        let weights = &self.weights.layers[layer];
        let base = self.qkv_params(weights.qkv, weights.terms, layer);
        match self.map(plan, GemmInput::Normed) {
            Some(x) => queue.launch(&launch::wgmma_qkv(plan, WgmmaQkvParams { x, base })),
            None => queue.launch(&launch::qkv(plan, base)),
        }
    }

    fn attend(&self, queue: &Queue, shape: &StepShape, layer: usize) -> Result<(), CudaError> {
        if let Some(size) = shape.decode {
            let plan = &self.plans.decode[size];
            queue.launch(&launch::attention_decode(plan, self.decode_params(layer)))?;
        }
        if shape.tiles == 0 {
            return Ok(());
        }
        let (buffers, heads) = (&self.buffers, self.plans.heads);
        let split = shape.split.within(self.config.windows[layer]);
        let plan = self.plans.prefill(&split, shape.tiles, shape.prompt_rows, shape.prompt_pairs);
        let base = PrefillAttentionParams {
            kv: self.paged_kv(layer),
            q: buffers.q.device_ptr(),
            segments: self.metadata.segments,
            tiles: self.metadata.tiles,
            out: buffers.attended.device_ptr(),
            partial_out: buffers.partial_out.device_ptr(),
            partial_sums: buffers.partial_sums.device_ptr(),
            ..PrefillAttentionParams::default()
        };
        match self.pool_map.filter(|_| is_wgmma_attention(&plan)) {
            Some(pool) => {
                let tile_count = shape.tiles as i32;
                let params = WgmmaAttentionParams { pool, base, tile_count, reserved: [0; 3] };
                queue.launch(&launch::attention_wgmma(&plan, heads, &split, params))?;
            }
            None => queue.launch(&launch::attention_prefill(&plan, heads, &split, base))?,
        }
        match launch::attention_merge(heads, &split, base) {
            Some(merge) => queue.launch(&merge),
            None => Ok(()),
        }
    }

    /// Adds O's product, or the MLP's, to the residual stream; `tap_row` is the address of the
    /// stage rows of its rows, null: none.
    fn residual(
        &self,
        queue: &Queue,
        shape: &StepShape,
        layer: usize,
        from: GemmInput,
        tap_row: DevicePtr<i32>,
    ) -> Result<(), CudaError> {
        let plans = &self.plans.layer[shape.rows].products;
        let weights = &self.weights.layers[layer];
        let (plan, w, norm) = match from {
            GemmInput::AttnOut => (&plans.o, weights.o, 2 * layer + 1),
            _ => (&plans.down, weights.down, 2 * layer + 2),
        };
        let base = self.residual_params(w, from, self.weights.norms[norm], tap_row);
        match self.map(plan, from) {
            Some(x) => queue.launch(&launch::wgmma_residual(plan, WgmmaResidualParams { x, base })),
            None => queue.launch(&launch::residual(plan, base)),
        }
    }

    fn swiglu(&self, queue: &Queue, shape: &StepShape, layer: usize) -> Result<(), CudaError> {
        let plan = &self.plans.layer[shape.rows].products.gate_up;
        let base = self.swiglu_params(self.weights.layers[layer].gate_up);
        match self.map(plan, GemmInput::Normed) {
            Some(x) => queue.launch(&launch::wgmma_swiglu(plan, WgmmaSwigluParams { x, base })),
            None => queue.launch(&launch::swiglu(plan, base)),
        }
    }

    fn qkv_params(&self, w: DevicePtr<bf16>, terms: HeadTerms, layer: usize) -> QkvParams {
        let (kv, heads) = (self.paged_kv(layer), self.plans.heads);
        QkvParams {
            gemm: self.operands(w, GemmInput::Normed),
            scale: self.row_scale(),
            q: self.buffers.q.device_ptr(),
            kv_pool: kv.pool,
            position: self.metadata.position,
            batch_idx: self.metadata.batch_idx,
            block_table: kv.block_table,
            rope_freqs: self.buffers.rope_freqs.device_ptr(),
            terms,
            block_stride: kv.block_stride,
            layer_offset: kv.layer_offset,
            max_blocks: kv.max_blocks,
            heads: (heads.kv_heads * heads.group) as i32,
            kv_heads: heads.kv_heads as i32,
            head_dim: heads.head_dim as i32,
        }
    }

    fn decode_params(&self, layer: usize) -> DecodeAttentionParams {
        let buffers = &self.buffers;
        DecodeAttentionParams {
            kv: self.paged_kv(layer),
            q: buffers.q.device_ptr(),
            position: self.metadata.position,
            batch_idx: self.metadata.batch_idx,
            out: buffers.attended.device_ptr(),
            partial_out: buffers.partial_out.device_ptr(),
            partial_sums: buffers.partial_sums.device_ptr(),
            tile_counters: buffers.attention_counters.device_ptr(),
            ..DecodeAttentionParams::default()
        }
    }

    fn residual_params(
        &self,
        w: DevicePtr<bf16>,
        from: GemmInput,
        gamma: DevicePtr<bf16>,
        tap_row: DevicePtr<i32>,
    ) -> ResidualParams {
        ResidualParams {
            gemm: self.operands(w, from),
            h: self.buffers.h.device_ptr(),
            gamma,
            x_next: self.buffers.x.device_ptr(),
            ss: self.buffers.ss.device_ptr(),
            tap_row,
            tap: self.tap_stage,
            ..ResidualParams::default()
        }
    }

    fn swiglu_params(&self, w: DevicePtr<bf16>) -> SwigluParams {
        SwigluParams {
            gemm: self.operands(w, GemmInput::Normed),
            scale: self.row_scale(),
            out: self.buffers.inner.device_ptr(),
            ..SwigluParams::default()
        }
    }

    /// The layer's part of the pool.
    fn paged_kv(&self, layer: usize) -> PagedKv {
        let layer_stride = layer_stride(&self.config);
        PagedKv {
            pool: self.kv.device_ptr(),
            block_table: self.metadata.table,
            block_stride: self.kv.block_stride(),
            layer_offset: (layer * layer_stride) as i64,
            max_blocks: self.metadata.max_blocks,
            window: launch::window(self.config.windows[layer]),
            ..PagedKv::default()
        }
    }

    fn row_scale(&self) -> RowScale {
        let (ss, width) = (self.buffers.ss.device_ptr(), self.config.hidden_size);
        let (parts, eps) = (step::parts(width) as i32, self.config.rms_norm_eps);
        RowScale { ss, parts, width: width as i32, eps, reserved: 0 }
    }

    fn operands(&self, w: DevicePtr<bf16>, from: GemmInput) -> GemmOperands {
        let buffers = &self.buffers;
        let x = match from {
            GemmInput::Normed => &buffers.x,
            GemmInput::AttnOut => &buffers.attended,
            GemmInput::MlpInner => &buffers.inner,
        };
        GemmOperands {
            x: x.device_ptr(),
            w,
            partials: buffers.partials.device_ptr(),
            tile_counters: buffers.tile_counters.device_ptr(),
            ..GemmOperands::default()
        }
    }

    /// The tensor map of a wgmma product's operand; `None` for other products.
    fn map(&self, plan: &GemmPlan, from: GemmInput) -> Option<TensorMap> {
        let maps = self.buffers.maps.as_ref().filter(|_| is_wgmma(plan))?;
        Some(match from {
            GemmInput::Normed => maps.x,
            GemmInput::AttnOut => maps.attended,
            GemmInput::MlpInner => maps.inner,
        })
    }
}

/// How Hopper's copy engine reads `kv`; `None` where prefill attention does not ask.
fn pool_map(
    plans: &Plans,
    kv: &KvPool,
    config: &ModelConfig,
) -> Result<Option<TensorMap>, CudaError> {
    let elements = kv.blocks() as usize * kv.block_bytes() / 2;
    let map = || launch::pool_map(kv.device_ptr(), elements, config.head_dim);
    is_wgmma_attention(&plans.prefill(&PrefillSplit::WHOLE, 1, 2, 2)).then(map).transpose()
}

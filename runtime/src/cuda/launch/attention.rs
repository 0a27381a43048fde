//! Launches of attention.

use super::Launch;
use crate::cuda::plan::LaunchPlan;
use crate::cuda::plan::attention::split::PrefillSplit;
use crate::cuda::plan::attention::{DecodePlan, Heads};
use cudarc::driver::sys::CUdeviceptr;
use std::f32::consts::LOG2_E;
use trail_ptx::params::{DecodeAttentionParams, PagedKv, PrefillAttentionParams};

/// One layer of the KV pool, and the block table.
#[derive(Clone, Copy, Debug)]
pub struct KvView {
    /// The pool `[block][layer][K|V][kv head][16][head_dim]` bf16.
    pub pool: CUdeviceptr,
    /// Block ids `[batch slots, max_blocks]` i32.
    pub block_table: CUdeviceptr,
    /// Elements from one block to the next.
    pub block_stride: usize,
    /// Elements from a block's start to this layer's keys.
    pub layer_offset: usize,
    /// Entries per row of the block table.
    pub max_blocks: usize,
    /// Tokens that a row attends to, itself included; `None`: all before it.
    pub window: Option<usize>,
}

/// Operands of attention of decode rows.
#[derive(Clone, Copy, Debug)]
pub struct DecodeRows {
    /// Queries `[rows, heads, head_dim]` bf16.
    pub q: CUdeviceptr,
    /// Absolute positions `[rows]` i32.
    pub position: CUdeviceptr,
    /// Rows of the block table `[rows]` i32, -1 for padding.
    pub batch_idx: CUdeviceptr,
    /// Attended values `[rows, heads, head_dim]` bf16.
    pub out: CUdeviceptr,
    /// Room for `plan.partial_out` f32.
    pub partial_out: CUdeviceptr,
    /// Room for `plan.partial_sums` f32.
    pub partial_sums: CUdeviceptr,
    /// `plan.tile_counters` u32, zero before the first launch; every launch leaves them zero.
    pub tile_counters: CUdeviceptr,
}

/// Operands of attention of segments of prompt rows.
#[derive(Clone, Copy, Debug)]
pub struct PrefillRows {
    /// Queries `[T, heads, head_dim]` bf16.
    pub q: CUdeviceptr,
    /// Segments `[segments, 4]` i32: [`crate::cuda::plan::attention::PrefillSegment::encode`].
    pub segments: CUdeviceptr,
    /// Tiles `[tiles, 2]` i32: [`crate::cuda::plan::attention::prefill_tiles`].
    pub tiles: CUdeviceptr,
    /// Their number.
    pub tile_count: usize,
    /// Attended values `[T, heads, head_dim]` bf16.
    pub out: CUdeviceptr,
    /// How contexts of tiles are cut: as the plan was made for.
    pub split: PrefillSplit,
    /// Room for the parts of cut tiles, f32: [`PrefillSplit::workspace`].
    pub partial_out: CUdeviceptr,
    /// The same for their maxima and sums.
    pub partial_sums: CUdeviceptr,
}

/// Factor of the scores, log2(e) / sqrt(head_dim): the exponentials are powers of two.
fn scale(head_dim: usize) -> f32 {
    LOG2_E / (head_dim as f32).sqrt()
}

/// As the kernels read it: 0 for all tokens.
pub(super) fn window(tokens: Option<usize>) -> i32 {
    tokens.map_or(0, |tokens| i32::try_from(tokens).unwrap_or(i32::MAX))
}

fn paged(kv: &KvView, heads: Heads) -> PagedKv {
    PagedKv {
        pool: kv.pool as *const _,
        block_table: kv.block_table as *const _,
        block_stride: kv.block_stride as i64,
        layer_offset: kv.layer_offset as i64,
        max_blocks: kv.max_blocks as i32,
        kv_heads: heads.kv_heads as i32,
        group: heads.group as i32,
        window: window(kv.window),
    }
}

pub(super) fn decode_params(
    plan: &DecodePlan,
    kv: &KvView,
    rows: &DecodeRows,
) -> DecodeAttentionParams {
    DecodeAttentionParams {
        kv: paged(kv, plan.heads),
        q: rows.q as *const _,
        position: rows.position as *const _,
        batch_idx: rows.batch_idx as *const _,
        out: rows.out as *mut _,
        partial_out: rows.partial_out as *mut _,
        partial_sums: rows.partial_sums as *mut _,
        tile_counters: rows.tile_counters as *mut _,
        scale: scale(plan.heads.head_dim),
        splits: plan.launch.splits as i32,
        split_blocks: plan.split_blocks as i32,
        reserved: 0,
    }
}

/// Attention of decode rows.
pub fn attention_decode(
    plan: &DecodePlan,
    kv: &KvView,
    rows: &DecodeRows,
) -> Launch<DecodeAttentionParams> {
    Launch { plan: plan.launch, params: decode_params(plan, kv, rows) }
}

pub(super) fn prefill_params(
    heads: Heads,
    kv: &KvView,
    rows: &PrefillRows,
) -> PrefillAttentionParams {
    PrefillAttentionParams {
        kv: paged(kv, heads),
        q: rows.q as *const _,
        segments: rows.segments as *const _,
        tiles: rows.tiles as *const _,
        out: rows.out as *mut _,
        scale: scale(heads.head_dim),
        splits: rows.split.splits as i32,
        partial_out: rows.partial_out as *mut _,
        partial_sums: rows.partial_sums as *mut _,
        cut_tiles: rows.split.cut_tiles as i32,
        split_units: rows.split.units as i32,
    }
}

/// Attention of segments of prompt rows.
pub fn attention_prefill(
    plan: &LaunchPlan,
    heads: Heads,
    kv: &KvView,
    rows: &PrefillRows,
) -> Launch<PrefillAttentionParams> {
    Launch { plan: *plan, params: prefill_params(heads, kv, rows) }
}

/// The sum of the parts of cut tiles, behind either of the two; `None` where no tile is cut.
pub fn attention_merge(
    heads: Heads,
    kv: &KvView,
    rows: &PrefillRows,
) -> Option<Launch<PrefillAttentionParams>> {
    let plan = rows.split.merge(heads)?;
    Some(Launch { plan, params: prefill_params(heads, kv, rows) })
}

//! Launches of the matrix products, one function an epilogue.

use super::Launch;
use crate::cuda::plan::gemm::GemmPlan;
use cudarc::driver::sys::CUdeviceptr;
use trail_ptx::params::{
    self, GemmOperands, LogitsParams, QkvParams, ResidualParams, RowScale, SwigluParams,
};

/// Operands of every product, as device addresses.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// Activations `[rows, width]` bf16.
    pub x: CUdeviceptr,
    /// Weights in fragment order, padded as the plan says.
    pub w: CUdeviceptr,
    /// Row of `x` of each row of the product `[rows]` i32; 0: the same row.
    pub row_list: CUdeviceptr,
    /// Room for `plan.partial_floats` f32.
    pub partials: CUdeviceptr,
    /// `plan.tile_counters` u32, zero before the first launch; every launch leaves them zero.
    pub tile_counters: CUdeviceptr,
}

/// RMSNorm of the input rows, from partial sums of squares.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// Partial sums of squares `[rows of x, parts]` f32.
    pub ss: CUdeviceptr,
    /// Partial sums per row.
    pub parts: usize,
    /// Elements of the normalised row.
    pub width: usize,
    /// RMSNorm's epsilon.
    pub eps: f32,
}

/// Bias and norms of a layer's heads, as device addresses; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadTerms {
    /// Bias of queries, keys and values `[(heads + 2 kv_heads) * head_dim]` bf16.
    pub bias: CUdeviceptr,
    /// Weight of the RMSNorm of each query head `[head_dim]` bf16.
    pub q_norm: CUdeviceptr,
    /// Weight of the RMSNorm of each key head `[head_dim]` bf16.
    pub k_norm: CUdeviceptr,
}

/// Destination of queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub struct QkvOutput {
    /// Queries `[rows, heads, head_dim]` bf16.
    pub q: CUdeviceptr,
    /// KV pool, bf16.
    pub kv_pool: CUdeviceptr,
    /// Absolute positions `[rows]` i32.
    pub position: CUdeviceptr,
    /// Rows of the block table `[rows]` i32, -1 for padding.
    pub batch_idx: CUdeviceptr,
    /// Block ids `[batch slots, max_blocks]` i32.
    pub block_table: CUdeviceptr,
    /// `[head_dim / 2]` u64, see [`rope_freqs`].
    pub rope_freqs: CUdeviceptr,
    /// Bias and norms of the heads.
    pub terms: HeadTerms,
    /// Elements from one block to the next.
    pub block_stride: usize,
    /// Elements from a block's start to this layer's keys.
    pub layer_offset: usize,
    /// Entries per row of the block table.
    pub max_blocks: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head, a multiple of 16.
    pub head_dim: usize,
}

/// Destination of a residual product.
#[derive(Clone, Copy, Debug)]
pub struct ResidualOutput {
    /// Residual stream `[rows, features]` f32, read and written.
    pub h: CUdeviceptr,
    /// The next norm's weight `[features]` bf16.
    pub gamma: CUdeviceptr,
    /// The next operand `[rows, features]` bf16.
    pub x_next: CUdeviceptr,
    /// Partial sums of squares `[rows, padded features / 128]` f32.
    pub ss: CUdeviceptr,
    /// Stage row of each row `[rows]` i32, -1 for none; 0: nothing is tapped.
    pub tap_row: CUdeviceptr,
    /// Stage `[stage rows, features]` bf16.
    pub tap: CUdeviceptr,
}

/// Inverse frequencies (radians per token) as the kernels want them: turns per token, as fractions
/// of 2^64.
pub fn rope_freqs(inverse_frequencies: &[f64]) -> Vec<u64> {
    let fraction = |frequency: &f64| {
        // In two halves, because an f64 holds 53 bits: what is left is below 2^-85 turns.
        let scaled = frequency / std::f64::consts::TAU * 2f64.powi(32);
        let high = scaled.floor();
        ((high as u64) << 32) + ((scaled - high) * 2f64.powi(32)) as u64
    };
    inverse_frequencies.iter().map(fraction).collect()
}

pub(super) fn operands(plan: &GemmPlan, from: &Operands) -> GemmOperands {
    GemmOperands {
        x: from.x as *const _,
        w: from.w as *const _,
        row_list: from.row_list as *const _,
        partials: from.partials as *mut _,
        tile_counters: from.tile_counters as *mut _,
        rows: plan.product.rows as i32,
        n: plan.features as i32,
        k: plan.product.width as i32,
        k_padded: plan.width as i32,
        tile_swizzle: plan.tile_swizzle as i32,
        reserved: 0,
    }
}

fn row_scale(norm: &Norm) -> RowScale {
    RowScale {
        ss: norm.ss as *const _,
        parts: norm.parts as i32,
        width: norm.width as i32,
        eps: norm.eps,
        reserved: 0,
    }
}

pub(super) fn head_terms(from: &HeadTerms) -> params::HeadTerms {
    params::HeadTerms {
        bias: from.bias as *const _,
        q_norm: from.q_norm as *const _,
        k_norm: from.k_norm as *const _,
    }
}

pub(super) fn qkv_params(
    plan: &GemmPlan,
    from: &Operands,
    norm: &Norm,
    to: &QkvOutput,
) -> QkvParams {
    QkvParams {
        gemm: operands(plan, from),
        scale: row_scale(norm),
        q: to.q as *mut _,
        kv_pool: to.kv_pool as *mut _,
        position: to.position as *const _,
        batch_idx: to.batch_idx as *const _,
        block_table: to.block_table as *const _,
        rope_freqs: to.rope_freqs as *const _,
        terms: head_terms(&to.terms),
        block_stride: to.block_stride as i64,
        layer_offset: to.layer_offset as i64,
        max_blocks: to.max_blocks as i32,
        heads: to.heads as i32,
        kv_heads: to.kv_heads as i32,
        head_dim: to.head_dim as i32,
    }
}

pub(super) fn residual_params(
    plan: &GemmPlan,
    from: &Operands,
    to: &ResidualOutput,
) -> ResidualParams {
    ResidualParams {
        gemm: operands(plan, from),
        h: to.h as *mut _,
        gamma: to.gamma as *const _,
        x_next: to.x_next as *mut _,
        ss: to.ss as *mut _,
        tap_row: to.tap_row as *const _,
        tap: to.tap as *mut _,
        d: plan.product.features as i32,
        reserved: 0,
    }
}

pub(super) fn swiglu_params(
    plan: &GemmPlan,
    from: &Operands,
    norm: &Norm,
    out: CUdeviceptr,
) -> SwigluParams {
    SwigluParams {
        gemm: operands(plan, from),
        scale: row_scale(norm),
        out: out as *mut _,
        ff: (plan.product.features / 2) as i32,
        reserved: 0,
    }
}

/// Query, key and value projection: weights in order `RotationPairs`.
pub fn qkv(plan: &GemmPlan, from: &Operands, norm: &Norm, to: &QkvOutput) -> Launch<QkvParams> {
    Launch { plan: plan.launch, params: qkv_params(plan, from, norm, to) }
}

/// O or down projection, added to the residual stream: weights in order `Plain`.
pub fn residual(plan: &GemmPlan, from: &Operands, to: &ResidualOutput) -> Launch<ResidualParams> {
    Launch { plan: plan.launch, params: residual_params(plan, from, to) }
}

/// Gate and up projection, `out` `[rows, features / 2]` bf16: weights in order `Alternating`.
pub fn swiglu(
    plan: &GemmPlan,
    from: &Operands,
    norm: &Norm,
    out: CUdeviceptr,
) -> Launch<SwigluParams> {
    Launch { plan: plan.launch, params: swiglu_params(plan, from, norm, out) }
}

/// Output projection of listed rows, `logits` `[rows, padded features]` f32: weights in order
/// `Plain`.
pub fn logits(
    plan: &GemmPlan,
    from: &Operands,
    norm: &Norm,
    logits: CUdeviceptr,
) -> Launch<LogitsParams> {
    let params = LogitsParams {
        gemm: operands(plan, from),
        scale: row_scale(norm),
        logits: logits as *mut _,
    };
    Launch { plan: plan.launch, params }
}

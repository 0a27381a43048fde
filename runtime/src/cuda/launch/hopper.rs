//! Launches of the kernels for Hopper alone that take tensor maps: products of many rows (wgmma),
//! and prefill attention. TMA reads activations and KV pool through maps made beforehand.

use super::attention::prefill_params;
use super::gemm::{
    Norm, Operands, QkvOutput, ResidualOutput, qkv_params, residual_params, swiglu_params,
};
use super::{KvView, Launch, PrefillRows};
use crate::cuda::error::CudaError;
use crate::cuda::plan::LaunchPlan;
use crate::cuda::plan::attention::Heads;
use crate::cuda::plan::gemm::GemmPlan;
use crate::cuda::plan::hopper::{attention, wgmma};
use cudarc::driver::sys::{self, CUdeviceptr};
use std::ffi::c_void;
use trail_ptx::params::{
    GemmOperands, TensorMap, WgmmaAttentionParams, WgmmaQkvParams, WgmmaResidualParams,
    WgmmaSwigluParams,
};

/// The tensor map by which TMA reads the activations of one buffer: made once for a buffer and a
/// number of rows, used by every launch.
#[derive(Clone, Copy)]
pub struct ActivationMap(TensorMap);

impl ActivationMap {
    /// The map of `x` `[rows, width]` bf16; `width` is a multiple of 8, `x` aligned to 16 bytes.
    pub fn new(x: CUdeviceptr, rows: usize, width: usize) -> Result<ActivationMap, CudaError> {
        matrix_map(x, [rows, width], [wgmma::BOX, wgmma::DEPTH], "activations").map(ActivationMap)
    }
}

/// The tensor map by which TMA reads blocks of the KV pool: made once for a pool, used by every
/// launch.
#[derive(Clone, Copy)]
pub struct PoolMap(TensorMap);

impl PoolMap {
    /// The map of a pool of `elements` bf16 at `pool`, of heads of width `head_dim`.
    pub fn new(pool: CUdeviceptr, elements: usize, head_dim: usize) -> Result<PoolMap, CudaError> {
        let extents = [elements / head_dim, head_dim];
        let the_box = [attention::BOX_ROWS, attention::COLUMNS];
        matrix_map(pool, extents, the_box, "the KV cache").map(PoolMap)
    }
}

/// The map of a matrix `[rows, width]` bf16 at `x`, read in boxes of `[rows, columns]` that are
/// swizzled by 128 bytes; `what` is its name in errors.
fn matrix_map(
    x: CUdeviceptr,
    [rows, width]: [usize; 2],
    the_box: [usize; 2],
    what: &str,
) -> Result<TensorMap, CudaError> {
    // SAFETY: plain data, for which zeros are valid.
    let mut map: sys::CUtensorMap = unsafe { std::mem::zeroed() };
    let extents = [width as u64, rows as u64];
    let row_bytes = [width as u64 * 2];
    let the_box = [the_box[1] as u32, the_box[0] as u32];
    let steps = [1u32, 1];
    // SAFETY: all arrays have the lengths that a rank of 2 asks for, and the map is a place for
    // one.
    let code = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            2,
            x as *mut c_void,
            extents.as_ptr(),
            row_bytes.as_ptr(),
            the_box.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    let doing = || format!("describing {what}, {rows} x {width}, to the copy engine");
    code.result().map_err(|code| CudaError::Driver { doing: doing(), code })?;
    Ok(TensorMap { words: map.opaque })
}

/// The kernel shares the tiles of the last wave where it has a workspace for their parts.
fn choose_sharing(plan: &GemmPlan, gemm: &mut GemmOperands) {
    if plan.partial_floats == 0 {
        gemm.partials = std::ptr::null_mut();
    }
}

/// As [`super::qkv`], on Hopper; `map` is of `from.x` as it is at the launch.
pub fn wgmma_qkv(
    plan: &GemmPlan,
    map: &ActivationMap,
    from: &Operands,
    norm: &Norm,
    to: &QkvOutput,
) -> Launch<WgmmaQkvParams> {
    let mut base = qkv_params(plan, from, norm, to);
    choose_sharing(plan, &mut base.gemm);
    let params = WgmmaQkvParams { x: map.0, base };
    Launch { plan: plan.launch, params }
}

/// As [`super::residual`], on Hopper; `map` as for [`wgmma_qkv`].
pub fn wgmma_residual(
    plan: &GemmPlan,
    map: &ActivationMap,
    from: &Operands,
    to: &ResidualOutput,
) -> Launch<WgmmaResidualParams> {
    let mut base = residual_params(plan, from, to);
    choose_sharing(plan, &mut base.gemm);
    let params = WgmmaResidualParams { x: map.0, base };
    Launch { plan: plan.launch, params }
}

/// As [`super::swiglu`], on Hopper; `map` as for [`wgmma_qkv`].
pub fn wgmma_swiglu(
    plan: &GemmPlan,
    map: &ActivationMap,
    from: &Operands,
    norm: &Norm,
    out: CUdeviceptr,
) -> Launch<WgmmaSwigluParams> {
    let mut base = swiglu_params(plan, from, norm, out);
    choose_sharing(plan, &mut base.gemm);
    let params = WgmmaSwigluParams { x: map.0, base };
    Launch { plan: plan.launch, params }
}

/// As [`super::attention_prefill`], on Hopper; `map` is of the pool of `kv`.
pub fn attention_wgmma(
    plan: &LaunchPlan,
    heads: Heads,
    map: &PoolMap,
    kv: &KvView,
    rows: &PrefillRows,
) -> Launch<WgmmaAttentionParams> {
    let params = WgmmaAttentionParams {
        pool: map.0,
        base: prefill_params(heads, kv, rows),
        tile_count: rows.tile_count as i32,
        reserved: [0; 3],
    };
    Launch { plan: *plan, params }
}

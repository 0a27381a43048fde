//! Launches of Hopper's products of many rows (wgmma), and the tensor maps by which TMA reads
//! activations and KV pool, made beforehand.

use super::{Launch, qkv, residual, swiglu};
use crate::cuda::error::CudaError;
use crate::cuda::plan::gemm::GemmPlan;
use crate::cuda::plan::hopper::{attention, wgmma};
use cudarc::driver::sys;
use std::ffi::c_void;
use trail_ptx::DevicePtr;
use trail_ptx::params::{TensorMap, WgmmaQkvParams, WgmmaResidualParams, WgmmaSwigluParams, bf16};

/// The map of activations `x` `[rows, width]` bf16: made once for a buffer and a number of rows,
/// used by every launch. `width` is a multiple of 8, `x` aligned to 16 bytes.
pub fn activation_map(
    x: DevicePtr<bf16>,
    rows: usize,
    width: usize,
) -> Result<TensorMap, CudaError> {
    matrix_map(x, [rows, width], [wgmma::BOX, wgmma::DEPTH], "activations")
}

/// The map of a KV pool of `elements` bf16 at `pool`, of heads of width `head_dim`: made once for a
/// pool, used by every launch.
pub fn pool_map(
    pool: DevicePtr<bf16>,
    elements: usize,
    head_dim: usize,
) -> Result<TensorMap, CudaError> {
    let extents = [elements / head_dim, head_dim];
    matrix_map(pool, extents, [attention::BOX_ROWS, attention::COLUMNS], "the KV cache")
}

/// The map of a matrix `[rows, width]` bf16 at `x`, read in boxes of `[rows, columns]` that are
/// swizzled by 128 bytes; `what` is its name in errors.
fn matrix_map(
    x: DevicePtr<bf16>,
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
            x.address() as *mut c_void,
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
    let operation = || format!("describing {what}, {rows} x {width}, to the copy engine");
    code.result().map_err(|code| CudaError::Driver { operation: operation(), code })?;
    Ok(TensorMap { words: map.opaque })
}

/// As [`super::qkv`], on Hopper; `params.x` is of `params.base.gemm.x` as it is at the launch.
pub fn wgmma_qkv(plan: &GemmPlan, params: WgmmaQkvParams) -> Launch<WgmmaQkvParams> {
    let Launch { plan, params: base } = qkv(plan, params.base);
    Launch { plan, params: WgmmaQkvParams { base, ..params } }
}

/// As [`super::residual`], on Hopper; `params.x` as for [`wgmma_qkv`].
pub fn wgmma_residual(plan: &GemmPlan, params: WgmmaResidualParams) -> Launch<WgmmaResidualParams> {
    let Launch { plan, params: base } = residual(plan, params.base);
    Launch { plan, params: WgmmaResidualParams { base, ..params } }
}

/// As [`super::swiglu`], on Hopper; `params.x` as for [`wgmma_qkv`].
pub fn wgmma_swiglu(plan: &GemmPlan, params: WgmmaSwigluParams) -> Launch<WgmmaSwigluParams> {
    let Launch { plan, params: base } = swiglu(plan, params.base);
    Launch { plan, params: WgmmaSwigluParams { base, ..params } }
}

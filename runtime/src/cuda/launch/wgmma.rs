//! Launches of Hopper's products of many rows (wgmma). TMA reads their activations through a tensor
//! map that is made beforehand.

use super::Launch;
use super::gemm::{
    Norm, Operands, QkvOutput, ResidualOutput, qkv_params, residual_params, swiglu_params,
};
use crate::cuda::error::CudaError;
use crate::cuda::plan::gemm::{GemmPlan, wgmma};
use cudarc::driver::sys::{self, CUdeviceptr};
use std::ffi::c_void;
use trail_ptx::params::{
    GemmOperands, TensorMap, WgmmaQkvParams, WgmmaResidualParams, WgmmaSwigluParams,
};

/// The tensor map by which TMA reads the activations of one buffer: made once for a buffer and a
/// number of rows, used by every launch.
#[derive(Clone, Copy)]
pub struct ActivationMap(TensorMap);

impl ActivationMap {
    /// The map of `x` `[rows, width]` bf16; `width` is a multiple of 8, `x` aligned to 16 bytes.
    pub fn new(x: CUdeviceptr, rows: usize, width: usize) -> Result<ActivationMap, CudaError> {
        // SAFETY: plain data, for which zeros are valid.
        let mut map: sys::CUtensorMap = unsafe { std::mem::zeroed() };
        let extents = [width as u64, rows as u64];
        let row_bytes = [width as u64 * 2];
        let the_box = [wgmma::DEPTH as u32, wgmma::BOX as u32];
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
        let doing = || format!("describing activations of {rows} x {width} to the copy engine");
        code.result().map_err(|code| CudaError::Driver { doing: doing(), code })?;
        Ok(ActivationMap(TensorMap { words: map.opaque }))
    }
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

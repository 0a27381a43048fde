//! Launching the ceilings.

use crate::cuda::plan::{self, LaunchPlan};
use crate::cuda::{CudaError, Device};
use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;
use std::ptr;
use trail_ptx::params::CeilingParams;

/// Reads `quads` pieces of 16 bytes at `data`; `sums` `[plan.grid]` u32 gets each block's sum of words, modulo 2^32.
///
/// # Safety
/// As for [`Device::launch`].
pub unsafe fn ceiling_read(
    device: &Device,
    stream: &CudaStream,
    data: CUdeviceptr,
    quads: usize,
    sums: CUdeviceptr,
) -> Result<LaunchPlan, CudaError> {
    let plan = plan::ceiling::read(device.chip(), quads);
    let params = CeilingParams {
        data: data as *const _,
        sums: sums as *mut _,
        quads: quads as i64,
        rounds: 0,
        reserved: 0,
    };
    // SAFETY: the caller's.
    unsafe { device.launch(stream, &plan, &params)? };
    Ok(plan)
}

/// Multiplies registers, `rounds` times in each chain; `sums` `[plan.grid * plan.block]` f32 are all 32 * `rounds`.
///
/// # Safety
/// As for [`Device::launch`].
pub unsafe fn ceiling_mma(
    device: &Device,
    stream: &CudaStream,
    rounds: usize,
    sums: CUdeviceptr,
) -> Result<LaunchPlan, CudaError> {
    let plan = plan::ceiling::mma(device.chip(), rounds);
    let params = CeilingParams {
        data: ptr::null(),
        sums: sums as *mut _,
        quads: 0,
        rounds: rounds as i32,
        reserved: 0,
    };
    // SAFETY: the caller's.
    unsafe { device.launch(stream, &plan, &params)? };
    Ok(plan)
}

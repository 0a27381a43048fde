//! Launches of the ceilings: what memory and tensor cores of a chip can do at most.

use super::Launch;
use crate::cuda::plan::{self, Chip};
use cudarc::driver::sys::CUdeviceptr;
use std::ptr;
use trail_ptx::params::CeilingParams;

/// Reads `quads` pieces of 16 bytes at `data`; `sums` `[plan.grid]` u32 gets each block's sum of
/// words, modulo 2^32.
pub fn ceiling_read(
    chip: &Chip,
    data: CUdeviceptr,
    quads: usize,
    sums: CUdeviceptr,
) -> Launch<CeilingParams> {
    let params = CeilingParams {
        data: data as *const _,
        sums: sums as *mut _,
        quads: quads as i64,
        rounds: 0,
        reserved: 0,
    };
    Launch { plan: plan::ceiling::read(chip, quads), params }
}

/// Multiplies registers, `rounds` times in each chain; `sums` `[plan.grid * plan.block]` f32 are
/// all 32 * `rounds`.
pub fn ceiling_mma(chip: &Chip, rounds: usize, sums: CUdeviceptr) -> Launch<CeilingParams> {
    let params = CeilingParams {
        data: ptr::null(),
        sums: sums as *mut _,
        quads: 0,
        rounds: rounds as i32,
        reserved: 0,
    };
    Launch { plan: plan::ceiling::mma(chip, rounds), params }
}

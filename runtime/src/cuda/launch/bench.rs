//! Launches of kernels that benchmarks and tests launch and no step does: ceilings (what memory and
//! tensor cores of a chip can do at most), and the ladder's attention.

use super::attention::decode_params;
use super::{DecodeRows, KvView, Launch};
use crate::cuda::plan::attention::DecodePlan;
use crate::cuda::plan::bench::ceiling;
use crate::cuda::plan::{Chip, LaunchPlan};
use cudarc::driver::sys::CUdeviceptr;
use std::ptr;
use trail_ptx::params::{CeilingParams, DecodeAttentionParams};

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
    Launch { plan: ceiling::read(chip, quads), params }
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
    Launch { plan: ceiling::mma(chip, rounds), params }
}

/// As [`super::attention_decode`], by a rung of the ladder; of `rows` the workspaces are not used.
pub fn attention_rung(
    rung: &LaunchPlan,
    plan: &DecodePlan,
    kv: &KvView,
    rows: &DecodeRows,
) -> Launch<DecodeAttentionParams> {
    Launch { plan: *rung, params: decode_params(plan, kv, rows) }
}

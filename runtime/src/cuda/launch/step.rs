//! Launches of the small kernels around a step.

use super::Launch;
use crate::cuda::plan::LaunchPlan;
use cudarc::driver::sys::CUdeviceptr;
use trail_ptx::params::{ApplyDiffsParams, EmbedParams, ProbeParams, TapMeanParams};

/// Buffers of the embedding, as device addresses.
#[derive(Clone, Copy, Debug)]
pub struct EmbedBuffers {
    /// Embeddings `[vocab, d]` bf16.
    pub table: CUdeviceptr,
    /// Tokens `[rows]` i32; -1: the one in `last`.
    pub token: CUdeviceptr,
    /// Last token of each request `[batch slots]` i32; 0: no token is -1.
    pub last: CUdeviceptr,
    /// Rows of the block table `[rows]` i32, -1 for padding.
    pub batch_idx: CUdeviceptr,
    /// The first norm's weight `[d]` bf16.
    pub gamma: CUdeviceptr,
    /// Residual stream `[rows, d]` f32.
    pub h: CUdeviceptr,
    /// The first operand `[rows, d]` bf16.
    pub x: CUdeviceptr,
    /// Partial sums of squares `[rows, d / 128 rounded up]` f32.
    pub ss: CUdeviceptr,
}

/// Applies the host's changes to `words` `[words]` u32: `count` `[2]` u32, `diffs` `[count,
/// 2]` u32, both in memory of the host. No index is named twice.
pub fn apply_diffs(
    plan: &LaunchPlan,
    [words, count, diffs]: [CUdeviceptr; 3],
) -> Launch<ApplyDiffsParams> {
    let params = ApplyDiffsParams {
        words: words as *mut _,
        count: count as *const _,
        diffs: diffs as *const _,
    };
    Launch { plan: *plan, params }
}

/// Token embeddings of `rows` rows, `width` wide.
pub fn embed(
    plan: &LaunchPlan,
    rows: usize,
    width: usize,
    buffers: &EmbedBuffers,
) -> Launch<EmbedParams> {
    let params = EmbedParams {
        table: buffers.table as *const _,
        token: buffers.token as *const _,
        last: buffers.last as *const _,
        batch_idx: buffers.batch_idx as *const _,
        gamma: buffers.gamma as *const _,
        h: buffers.h as *mut _,
        x: buffers.x as *mut _,
        ss: buffers.ss as *mut _,
        rows: rows as i32,
        d: width as i32,
        parts: crate::cuda::plan::step::parts(width) as i32,
        reserved: 0,
    };
    Launch { plan: *plan, params }
}

/// A segment of prompt rows whose tapped activations are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapSegment {
    /// First row in the step.
    pub first_row: usize,
    /// Rows that belong to the prompt, at least 1.
    pub rows: usize,
    /// The request's slot; `None`: padding, which touches nothing.
    pub slot: Option<usize>,
    /// Position of the first row; 0 resets the sum.
    pub first_position: usize,
    /// Tokens of the whole prompt.
    pub prompt: usize,
    /// Staging row of the mean, where this segment completes the prompt.
    pub stage_row: Option<usize>,
}

impl TapSegment {
    /// As the kernel reads it.
    pub fn encode(&self) -> [i32; 6] {
        let index = |value: Option<usize>| value.map_or(-1, |value| value as i32);
        let [first_row, rows] = [self.first_row as i32, self.rows as i32];
        let [first_position, prompt] = [self.first_position as i32, self.prompt as i32];
        [first_row, rows, index(self.slot), first_position, prompt, index(self.stage_row)]
    }
}

/// Adds segments `[segments, 6]` i32 of `h` `[T, d]` f32 to `sums` `[slots, d]` f32; finished means
/// go to `stage` `[stage rows, d]` bf16. No two segments may have the same slot.
pub fn tap_mean(
    plan: &LaunchPlan,
    width: usize,
    [h, segments, sums, stage]: [CUdeviceptr; 4],
) -> Launch<TapMeanParams> {
    let params = TapMeanParams {
        h: h as *const _,
        segments: segments as *const _,
        sums: sums as *mut _,
        stage: stage as *mut _,
        d: width as i32,
        reserved: 0,
    };
    Launch { plan: *plan, params }
}

/// Buffers of the probe, as device addresses.
#[derive(Clone, Copy, Debug)]
pub struct ProbeBuffers {
    /// Activations `[rows, d]` bf16.
    pub x: CUdeviceptr,
    /// `[hidden, d]` bf16.
    pub hidden_weight: CUdeviceptr,
    /// `[hidden]` f32.
    pub hidden_bias: CUdeviceptr,
    /// `[bins, hidden]` f32.
    pub output_weight: CUdeviceptr,
    /// `[bins]` f32.
    pub output_bias: CUdeviceptr,
    /// Room for `[rows, hidden]` f32.
    pub hidden_out: CUdeviceptr,
    /// `[rows, bins]` f32.
    pub probabilities: CUdeviceptr,
}

/// The probe's two layers.
pub fn probe(
    plans: &[LaunchPlan; 2],
    [rows, d, hidden, bins]: [usize; 4],
    buffers: &ProbeBuffers,
) -> [Launch<ProbeParams>; 2] {
    let params = ProbeParams {
        x: buffers.x as *const _,
        hidden_weight: buffers.hidden_weight as *const _,
        hidden_bias: buffers.hidden_bias as *const _,
        output_weight: buffers.output_weight as *const _,
        output_bias: buffers.output_bias as *const _,
        hidden_out: buffers.hidden_out as *mut _,
        probabilities: buffers.probabilities as *mut _,
        rows: rows as i32,
        d: d as i32,
        hidden: hidden as i32,
        bins: bins as i32,
    };
    plans.map(|plan| Launch { plan, params })
}

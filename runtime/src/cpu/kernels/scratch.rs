//! State of online softmax between the KV blocks of a task.

use crate::backend::BLOCK_TOKENS;
use crate::cpu::aligned::Aligned;
use crate::cpu::simd::MAX_LANES;

/// Scratch memory of one worker for attention, reused by every task.
pub(crate) struct AttentionScratch {
    /// Distance between queries (or outputs), floats.
    pub(crate) head_stride: usize,
    /// Queries after RoPE and scaling `[queries][head_stride]`, zero beyond the head.
    pub(crate) queries: Aligned,
    /// Weighted sums of values `[queries][head_stride]`.
    pub(crate) out: Aligned,
    /// Scores of the current block, then their exponentials `[queries][BLOCK_TOKENS]`.
    pub(super) scores: Aligned,
    /// Running maximum of the scores `[queries]`.
    pub(super) max: Vec<f32>,
    /// Running sum of the exponentials `[queries]`.
    pub(super) sum: Vec<f32>,
    /// Factor of `out` after a change of the maximum `[queries]`.
    pub(super) decay: Vec<f32>,
}

impl AttentionScratch {
    /// Allocates scratch for `queries` queries of `head_dim`.
    pub(crate) fn new(queries: usize, head_dim: usize) -> Result<Self, String> {
        let head_stride = head_dim.next_multiple_of(2 * MAX_LANES);
        Ok(AttentionScratch {
            head_stride,
            queries: Aligned::zeroed(queries * head_stride)?,
            out: Aligned::zeroed(queries * head_stride)?,
            scores: Aligned::zeroed(queries * BLOCK_TOKENS)?,
            max: vec![0.0; queries],
            sum: vec![0.0; queries],
            decay: vec![0.0; queries],
        })
    }
}

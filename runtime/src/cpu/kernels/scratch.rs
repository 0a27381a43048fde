//! What attention keeps between the blocks of a task.

use crate::backend::BLOCK_TOKENS;
use crate::cpu::aligned::Aligned;
use crate::cpu::simd::MAX_LANES;

/// One worker's memory for attention, reused by every task.
pub(crate) struct AttentionScratch {
    /// Floats from one query (or output) to the next.
    pub(crate) head_stride: usize,
    /// Rotated, scaled queries `[queries][head_stride]`, zero beyond the head.
    pub(crate) queries: Aligned,
    /// Weighted sums of values `[queries][head_stride]`.
    pub(crate) out: Aligned,
    /// Scores, then their exponentials `[queries][BLOCK_TOKENS]`, of the current block.
    pub(super) scores: Aligned,
    /// Largest score so far `[queries]`.
    pub(super) max: Vec<f32>,
    /// Sum of exponentials so far `[queries]`.
    pub(super) sum: Vec<f32>,
    /// What `out` is multiplied with when the maximum has moved `[queries]`.
    pub(super) decay: Vec<f32>,
}

impl AttentionScratch {
    /// Memory for `queries` queries of `head_dim`.
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

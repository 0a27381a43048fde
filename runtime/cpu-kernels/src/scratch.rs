//! Scratch memory of attention.

use crate::aligned::Aligned;

use super::softmax::{Softmax, head_stride};

/// Tokens of a KV block.
pub const BLOCK_TOKENS: usize = 16;

/// Blocks of a span, 64 tokens: scores are computed by blocks, then softmax and values advance by a
/// span, which takes a quarter of the reductions and of the updates of the output.
pub(super) const SPAN_BLOCKS: usize = 4;
/// Tokens of a span.
pub(super) const SPAN_TOKENS: usize = SPAN_BLOCKS * BLOCK_TOKENS;

/// Scratch memory of one worker for attention, reused by every task.
pub struct AttentionScratch {
    /// Distance between queries, floats.
    pub head_stride: usize,
    /// Queries after RoPE and scaling `[queries][head_stride]`, zero beyond the head.
    pub queries: Aligned,
    /// All tokens so far.
    pub total: Softmax,
    /// The tokens of the current partition of the context.
    pub partition: Softmax,
    /// Scores of the current span, then their exponentials `[queries][SPAN_TOKENS]`.
    pub(super) scores: Aligned,
    /// Factor of the partition's sums after a change of its maximum `[queries]`.
    pub(super) decay: Vec<f32>,
}

impl AttentionScratch {
    /// Allocates scratch for `queries` queries of `head_dim`.
    pub fn new(queries: usize, head_dim: usize) -> Result<Self, String> {
        let head_stride = head_stride(head_dim);
        Ok(AttentionScratch {
            head_stride,
            queries: Aligned::zeroed(queries * head_stride)?,
            total: Softmax::new(queries, head_stride)?,
            partition: Softmax::new(queries, head_stride)?,
            scores: Aligned::zeroed(queries * SPAN_TOKENS)?,
            decay: vec![0.0; queries],
        })
    }
}

//! The rows of one step: new tokens of several requests, prefill and decode mixed freely.
//!
//! A [`Batch`] is a plain value. The engine fills one, preallocated, every step; a backend reads
//! it.

use std::ops::Range;
use std::sync::Arc;

use super::{SegmentState, StateCopy};
use crate::model::Adapter;

/// Tokens per KV block: the scheduler's block accounting and every kernel agree on it.
pub const BLOCK_TOKENS: usize = trail_scheduler::BLOCK_TOKENS as usize;
const _: () = assert!(BLOCK_TOKENS == trail_cpu_kernels::BLOCK_TOKENS);

/// In [`Batch::tokens`]: the token that the request sampled in the previous step, which is still in
/// flight. Occurs only where [`super::Backend::ahead`] is 1; the device substitutes the token.
pub const PENDING: u32 = u32::MAX;

/// Most draft tokens of a batch. Those of one segment share the KV block of its first row.
pub const MAX_DRAFT_TOKENS: usize = 2 * BLOCK_TOKENS;

/// Most draft tokens of a batch where each has a copy of a recurrent state.
pub const MAX_STATE_DRAFTS: usize = BLOCK_TOKENS;

/// Consecutive new tokens of one request: a prefill chunk, or a decode token with the tokens that
/// are proposed to come after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index of the request, fixed for its life in the engine.
    pub request: u32,
    /// Absolute position (0-based) of the first token.
    pub start: u32,
    /// Tokens in the segment, at least 1.
    pub len: u32,
    /// True if nothing that a backend keeps of the request's earlier segments holds: the request is
    /// new at its index, or lost its blocks meanwhile. Tokens before `start` are then in blocks
    /// that were computed for others.
    pub begins: bool,
    /// Index of the first token in [`Batch::tokens`].
    pub first_row: u32,
    /// Index of the request's first block id in [`Batch::block_tables`].
    pub first_block: u32,
    /// Block ids of the request in [`Batch::block_tables`]: covers positions `0..start + len`.
    pub num_blocks: u32,
    /// True if the logits of the last token are computed and sampled.
    pub logits: bool,
    /// Draft tokens, the last ones: the logits of each, and of the row before them, are computed
    /// and sampled. Only where [`super::Backend::takes_drafts`].
    pub drafts: u32,
    /// First position whose token is scored: the log-probability of the prompt's next token is
    /// computed. Only where [`super::Backend::scores`].
    pub first_scored: u32,
    /// Positions whose token is scored, from that one on.
    pub scored: u32,
    /// Index of the request's adapter in [`Batch::adapters`]; `None`: the model as it is. Only
    /// where [`super::Backend::takes_adapters`].
    pub adapter: Option<u32>,
    /// Its recurrent states.
    pub state: SegmentState,
}

impl Segment {
    /// The rows whose logits are computed and sampled.
    pub fn sampled_rows(&self) -> Range<u32> {
        let end = self.first_row + self.len;
        if self.logits { end - 1 - self.drafts..end } else { end..end }
    }

    /// The rows whose next token is scored.
    pub fn scored_rows(&self) -> Range<u32> {
        let first = self.first_row + (self.first_scored - self.start);
        first..first + self.scored
    }
}

/// The input of one forward pass.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Token ids of all segments, concatenated: `[rows]`.
    pub tokens: Vec<u32>,
    /// Absolute position of each row: `[rows]`.
    pub positions: Vec<u32>,
    /// The segments, in row order.
    pub segments: Vec<Segment>,
    /// Block ids of all segments, concatenated.
    pub block_tables: Vec<u32>,
    /// The adapters of the segments, each once.
    pub adapters: Vec<Arc<Adapter>>,
    /// Copies of recurrent states of all segments, concatenated.
    pub state_copies: Vec<StateCopy>,
}

impl Batch {
    /// An empty batch that can hold `rows` tokens in `segments` segments over `blocks` table
    /// entries without allocating again.
    pub fn with_capacity(rows: usize, segments: usize, blocks: usize) -> Self {
        Batch {
            tokens: Vec::with_capacity(rows),
            positions: Vec::with_capacity(rows),
            segments: Vec::with_capacity(segments),
            block_tables: Vec::with_capacity(blocks),
            adapters: Vec::with_capacity(segments),
            // At the ends of some blocks of a segment, and at draft tokens.
            state_copies: Vec::with_capacity(3 * segments + MAX_DRAFT_TOKENS),
        }
    }

    /// Removes the contents and keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.segments.clear();
        self.block_tables.clear();
        self.adapters.clear();
        self.state_copies.clear();
    }

    /// Appends `tokens` of the request with index `request`, starting at position `start`.
    /// `blocks` must cover positions `0..start + tokens.len()`. Its recurrent state has the
    /// request's index, unless [`Batch::keep_state`] names others.
    pub fn push(&mut self, request: u32, start: u32, tokens: &[u32], blocks: &[u32], logits: bool) {
        debug_assert!(!tokens.is_empty());
        debug_assert!(blocks.len() * BLOCK_TOKENS >= start as usize + tokens.len());
        self.segments.push(Segment {
            request,
            start,
            len: tokens.len() as u32,
            begins: start == 0,
            first_row: self.tokens.len() as u32,
            first_block: self.block_tables.len() as u32,
            num_blocks: blocks.len() as u32,
            logits,
            drafts: 0,
            first_scored: start,
            scored: 0,
            adapter: None,
            state: SegmentState {
                before: (start > 0).then_some(request),
                after: request,
                first_copy: self.state_copies.len() as u32,
                copies: 0,
            },
        });
        self.tokens.extend_from_slice(tokens);
        self.positions.extend(start..start + tokens.len() as u32);
        self.block_tables.extend_from_slice(blocks);
    }

    /// The segment that was appended last begins its request, with blocks that others computed.
    pub fn begin_request(&mut self) {
        self.segments.last_mut().expect("a segment was appended").begins = true;
    }

    /// Computes the segment that was appended last with `adapter`.
    pub fn adapt(&mut self, adapter: &Arc<Adapter>) {
        let known = self.adapters.iter().position(|known| Arc::ptr_eq(known, adapter));
        let index = known.unwrap_or_else(|| {
            self.adapters.push(adapter.clone());
            self.adapters.len() - 1
        });
        self.segments.last_mut().expect("a segment was appended").adapter = Some(index as u32);
    }

    /// Names the recurrent states of the segment that was appended last: before its tokens, and
    /// after them.
    pub fn keep_state(&mut self, before: Option<u32>, after: u32) {
        let state = &mut self.segments.last_mut().expect("a segment was appended").state;
        (state.before, state.after) = (before, after);
    }

    /// Copies the recurrent state of the segment that was appended last. Copies are appended in
    /// order of their tokens.
    pub fn copy_state(&mut self, copy: StateCopy) {
        self.state_copies.push(copy);
        self.segments.last_mut().expect("a segment was appended").state.copies += 1;
    }

    /// The copies of the recurrent state of `segment`.
    pub fn copies(&self, segment: &Segment) -> &[StateCopy] {
        let first = segment.state.first_copy as usize;
        &self.state_copies[first..first + segment.state.copies as usize]
    }

    /// Scores the tokens after `positions` of the segment that was appended last, which has them.
    pub fn score(&mut self, positions: Range<u32>) {
        let segment = self.segments.last_mut().expect("a segment was appended");
        debug_assert!(segment.start <= positions.start);
        debug_assert!(positions.end <= segment.start + segment.len);
        (segment.first_scored, segment.scored) = (positions.start, positions.len() as u32);
    }

    /// Appends a decode token at position `start` with the tokens proposed after it: `tokens` of
    /// both.
    pub fn push_drafts(&mut self, request: u32, start: u32, tokens: &[u32], blocks: &[u32]) {
        self.push(request, start, tokens, blocks, true);
        let segment = self.segments.last_mut().expect("pushed");
        segment.drafts = segment.len - 1;
    }

    /// Appends a decode token whose id is known only to the device so far ([`PENDING`]).
    pub fn push_pending(&mut self, request: u32, position: u32, blocks: &[u32]) {
        self.push(request, position, &[PENDING], blocks, true);
    }

    /// The block table of `segment`.
    pub fn blocks(&self, segment: &Segment) -> &[u32] {
        let first = segment.first_block as usize;
        &self.block_tables[first..first + segment.num_blocks as usize]
    }

    /// Rows (tokens) in the batch.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }
}

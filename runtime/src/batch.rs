//! What one step feeds to a backend: token runs of several requests, mixed freely.
//!
//! A [`Batch`] is a plain value. The engine fills one, preallocated, every step; a backend reads it.

/// Tokens per KV block.
pub const BLOCK_TOKENS: usize = 16;

/// In [`Batch::tokens`]: the token that the row's slot sampled in the step before, which is still under way. Only a backend that
/// works ahead of the host meets it.
pub const PENDING: u32 = u32::MAX;

/// One contiguous run of new tokens of one request: a prefill chunk, or a single decode token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The request's stable slot in the engine.
    pub slot: u32,
    /// Absolute position (0-based) of the first token of the run.
    pub start: u32,
    /// Tokens in the run, at least 1.
    pub len: u32,
    /// Index of the run's first token in [`Batch::tokens`].
    pub first_row: u32,
    /// Index of the request's first block id in [`Batch::block_tables`].
    pub first_block: u32,
    /// Block ids of the request in [`Batch::block_tables`]: covers positions `0..start + len`.
    pub num_blocks: u32,
    /// Whether the logits of the run's last token are wanted.
    pub logits: bool,
}

/// The input of one forward pass.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Token ids, all runs one after the other: `[rows]`.
    pub tokens: Vec<u32>,
    /// Absolute position of each row: `[rows]`.
    pub positions: Vec<u32>,
    /// The runs, in row order.
    pub segments: Vec<Segment>,
    /// Block ids of all runs, one after the other.
    pub block_tables: Vec<u32>,
}

impl Batch {
    /// An empty batch that can hold `rows` tokens in `segments` runs over `blocks` table entries
    /// without allocating again.
    pub fn with_capacity(rows: usize, segments: usize, blocks: usize) -> Self {
        Batch {
            tokens: Vec::with_capacity(rows),
            positions: Vec::with_capacity(rows),
            segments: Vec::with_capacity(segments),
            block_tables: Vec::with_capacity(blocks),
        }
    }

    /// Forgets the contents, keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.segments.clear();
        self.block_tables.clear();
    }

    /// Appends a run of `tokens` of the request in `slot`, beginning at position `start`.
    /// `blocks` must cover positions `0..start + tokens.len()`.
    pub fn push(&mut self, slot: u32, start: u32, tokens: &[u32], blocks: &[u32], logits: bool) {
        debug_assert!(!tokens.is_empty());
        debug_assert!(blocks.len() * BLOCK_TOKENS >= start as usize + tokens.len());
        self.segments.push(Segment {
            slot,
            start,
            len: tokens.len() as u32,
            first_row: self.tokens.len() as u32,
            first_block: self.block_tables.len() as u32,
            num_blocks: blocks.len() as u32,
            logits,
        });
        self.tokens.extend_from_slice(tokens);
        self.positions.extend(start..start + tokens.len() as u32);
        self.block_tables.extend_from_slice(blocks);
    }

    /// Appends a run of one token, which only the device knows yet, and whose logits are wanted.
    pub fn push_pending(&mut self, slot: u32, position: u32, blocks: &[u32]) {
        self.push(slot, position, &[PENDING], blocks, true);
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

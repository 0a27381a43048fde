//! KV blocks: the free list, and the block table of each request in token order.

use crate::limits::blocks_for;
use crate::request::RequestIdx;

/// Index of a KV block in the cache.
pub type BlockId = u32;

/// A free list, and one table of block ids per index in one arena.
pub(crate) struct Blocks {
    free: Vec<BlockId>,
    /// `[request][stride]`. Zeroed memory costs no page until an index is used.
    tables: Vec<BlockId>,
    held: Vec<u32>,
    /// Capacity of one table: blocks of the longest context.
    stride: usize,
    total: u32,
}

impl Blocks {
    pub(crate) fn new(num_blocks: u32, max_requests: u32, max_context: u32) -> Blocks {
        let stride = blocks_for(max_context).min(num_blocks) as usize;
        Blocks {
            free: (0..num_blocks).rev().collect(),
            tables: vec![0; stride * max_requests as usize],
            held: vec![0; max_requests as usize],
            stride,
            total: num_blocks,
        }
    }

    pub(crate) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    pub(crate) fn used(&self) -> u32 {
        self.total - self.free()
    }

    pub(crate) fn held(&self, idx: RequestIdx) -> u32 {
        self.held[idx.index()]
    }

    /// The request's blocks, in token order.
    pub(crate) fn table(&self, idx: RequestIdx) -> &[BlockId] {
        let first = idx.index() * self.stride;
        &self.tables[first..first + self.held(idx) as usize]
    }

    /// Appends `count` free blocks to the request's table.
    pub(crate) fn grow(&mut self, idx: RequestIdx, count: u32) {
        let held = self.held(idx) as usize;
        assert!(held + count as usize <= self.stride, "a request outgrew its max_tokens");
        let first = idx.index() * self.stride + held;
        let kept = self.free.len() - count as usize;
        for (entry, block) in self.tables[first..].iter_mut().zip(self.free.drain(kept..).rev()) {
            *entry = block;
        }
        self.held[idx.index()] += count;
    }

    /// Frees all blocks of the request.
    pub(crate) fn release(&mut self, idx: RequestIdx) {
        self.truncate(idx, 0);
    }

    /// Frees all but the request's first `kept` blocks. It holds at least that many.
    pub(crate) fn truncate(&mut self, idx: RequestIdx, kept: u32) {
        let first = idx.index() * self.stride;
        let (kept, held) = (kept as usize, self.held(idx) as usize);
        // Backwards, so that the next to grow gets them in the order they were held.
        self.free.extend(self.tables[first + kept..first + held].iter().rev());
        self.held[idx.index()] = kept as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_and_go_in_order() {
        let mut blocks = Blocks::new(4, 2, 1024);
        blocks.grow(RequestIdx(1), 2);
        blocks.grow(RequestIdx(0), 1);
        blocks.grow(RequestIdx(1), 1);
        assert_eq!(blocks.table(RequestIdx(1)), [0, 1, 3]);
        assert_eq!(blocks.table(RequestIdx(0)), [2]);
        assert_eq!((blocks.free(), blocks.used()), (0, 4));
        blocks.release(RequestIdx(1));
        blocks.grow(RequestIdx(0), 3);
        assert_eq!(blocks.table(RequestIdx(0)), [2, 0, 1, 3]);
        assert_eq!(blocks.held(RequestIdx(1)), 0);
        blocks.truncate(RequestIdx(0), 2);
        assert_eq!((blocks.table(RequestIdx(0)), blocks.free()), (&[2, 0][..], 2));
    }
}

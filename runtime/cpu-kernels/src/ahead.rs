//! Prefetch of the weights of products of bytes.

use trail_platform::simd::Bytes;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Weights to prefetch, in the order of their addresses, which is the fastest that memory has: some
/// lines with every block that is unpacked.
pub(super) struct Ahead {
    next: *const u8,
    /// Cache lines per block of a register of columns.
    lines: usize,
}

impl Ahead {
    /// Prefetches `bytes` bytes from `next` on, which need not be valid, with `blocks` blocks.
    pub(super) fn new(next: *const u8, bytes: usize, blocks: usize) -> Self {
        Ahead { next, lines: bytes.div_ceil(LINE * blocks) }
    }

    /// Prefetches the lines of one block.
    #[inline(always)]
    pub(super) fn prefetch<V: Bytes>(&mut self) {
        self.prefetch_lines::<V>(self.lines);
    }

    /// Prefetches `lines` lines.
    #[inline(always)]
    pub(super) fn prefetch_lines<V: Bytes>(&mut self, lines: usize) {
        for _ in 0..lines {
            V::prefetch_far(self.next);
            self.next = self.next.wrapping_add(LINE);
        }
    }
}

//! Map from requests to the host blocks with their KV. No memory is touched here, and none is
//! allocated after construction.

/// No block; the end of a chain.
const NONE: u32 = u32::MAX;

/// The host blocks: free ones as bits, taken ones as a chain for each request.
pub(super) struct HostBlocks {
    /// A bit for each block, 1 where it is free.
    free: Vec<u64>,
    num_free: u32,
    /// The block after this one in its request's chain: `[blocks]`.
    next: Vec<u32>,
    /// The first block of a request's chain: `[requests]`.
    first: Vec<u32>,
}

impl HostBlocks {
    /// `blocks` free ones, for the KV of requests below `requests`.
    pub(super) fn new(blocks: u32, requests: usize) -> HostBlocks {
        let mut free = vec![u64::MAX; (blocks as usize).div_ceil(64)];
        if let (Some(last), used @ 1..) = (free.last_mut(), blocks % 64) {
            *last = (1 << used) - 1;
        }
        let (next, first) = (vec![NONE; blocks as usize], vec![NONE; requests]);
        HostBlocks { free, num_free: blocks, next, first }
    }

    /// All blocks, free or not.
    pub(super) fn len(&self) -> u32 {
        self.next.len() as u32
    }

    /// Free blocks.
    pub(super) fn num_free(&self) -> u32 {
        self.num_free
    }

    /// The blocks of `request`, in order.
    pub(super) fn of(&self, request: u32) -> impl Iterator<Item = u32> {
        let step = |block: u32| Some(block).filter(|&block| block != NONE);
        std::iter::successors(step(self.first[request as usize]), move |&block| {
            step(self.next[block as usize])
        })
    }

    /// Gives `request` `count` blocks: side by side where there is such a run, else the first that
    /// are free. False, and nothing taken, where there are too few, or the request has some.
    pub(super) fn take(&mut self, request: u32, count: u32) -> bool {
        if count > self.num_free || self.first[request as usize] != NONE {
            return false;
        }
        let mut from = self.run(count).unwrap_or(0);
        let mut before = NONE;
        for _ in 0..count {
            let block = self.first_free(from);
            self.free[block as usize / 64] &= !(1 << (block % 64));
            match before {
                NONE => self.first[request as usize] = block,
                before => self.next[before as usize] = block,
            }
            (before, from) = (block, block + 1);
        }
        self.num_free -= count;
        true
    }

    /// Takes `request`'s blocks back.
    pub(super) fn give_back(&mut self, request: u32) {
        let mut block = std::mem::replace(&mut self.first[request as usize], NONE);
        while block != NONE {
            self.free[block as usize / 64] |= 1 << (block % 64);
            self.num_free += 1;
            block = std::mem::replace(&mut self.next[block as usize], NONE);
        }
    }

    fn is_free(&self, block: u32) -> bool {
        self.free[block as usize / 64] >> (block % 64) & 1 == 1
    }

    /// The first free block from `from` on; the caller knows that there is one.
    fn first_free(&self, from: u32) -> u32 {
        let mut word = from as usize / 64;
        let mut bits = self.free[word] & u64::MAX << (from % 64);
        while bits == 0 {
            word += 1;
            bits = self.free[word];
        }
        word as u32 * 64 + bits.trailing_zeros()
    }

    /// Where the first run of `count` free blocks begins.
    fn run(&self, count: u32) -> Option<u32> {
        let mut length = 0;
        for block in 0..self.len() {
            length = if self.is_free(block) { length + 1 } else { 0 };
            if length == count {
                return Some(block + 1 - count);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(blocks: &HostBlocks, request: u32) -> Vec<u32> {
        blocks.of(request).collect()
    }

    #[test]
    fn a_run_is_taken_before_pieces() {
        let mut blocks = HostBlocks::new(70, 4);
        assert!(blocks.take(0, 3) && blocks.take(1, 60) && blocks.take(2, 2));
        blocks.give_back(0);
        // 0..3 and 65..70 are free: five side by side, then what is left.
        assert!(blocks.take(3, 5));
        assert_eq!(of(&blocks, 3), [65, 66, 67, 68, 69]);
        blocks.give_back(2);
        assert!(blocks.take(0, 4));
        assert_eq!(of(&blocks, 0), [0, 1, 2, 63]);
        assert_eq!(blocks.num_free(), 1);
    }

    #[test]
    fn what_does_not_fit_is_not_taken() {
        let mut blocks = HostBlocks::new(64, 2);
        assert!(!blocks.take(0, 65) && blocks.take(0, 64) && !blocks.take(1, 1));
        assert!(of(&blocks, 1).is_empty() && of(&blocks, 0).len() == 64);
        blocks.give_back(0);
        assert!(blocks.num_free() == 64 && blocks.take(1, 64));
    }

    #[test]
    fn a_request_that_has_blocks_gets_no_more() {
        let mut blocks = HostBlocks::new(8, 1);
        assert!(blocks.take(0, 2) && !blocks.take(0, 2));
        assert_eq!(blocks.num_free(), 6);
    }
}

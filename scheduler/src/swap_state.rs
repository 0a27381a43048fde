//! Counts of KV copies on the host and of the transfers in flight.

use crate::request::RequestIdx;

/// Occupancy of the host pool per request, and the transfers in flight. Counts only: the blocks
/// on the device belong to `Blocks`, the copies to the caller.
pub(crate) struct SwapState {
    /// Blocks of each request that the host holds, receives or sends back.
    copies: Vec<u32>,
    host_used: u32,
    host_blocks: u32,
    /// Blocks of requests that are swapping out: free when their transfers end.
    swapping_out_blocks: u32,
    swapping_out: u32,
    swapped: u32,
    /// Requests whose blocks are being filled; at most `max_running`, as a place is kept for each.
    swapping_in: Vec<RequestIdx>,
}

impl SwapState {
    pub(crate) fn new(host_blocks: u32, max_requests: u32, max_running: u32) -> SwapState {
        SwapState {
            copies: vec![0; max_requests as usize],
            host_used: 0,
            host_blocks,
            swapping_out_blocks: 0,
            swapping_out: 0,
            swapped: 0,
            swapping_in: Vec::with_capacity(max_running as usize),
        }
    }

    /// Blocks of the request that are on the host or in transfer.
    pub(crate) fn copies(&self, idx: RequestIdx) -> u32 {
        self.copies[idx.index()]
    }

    pub(crate) fn host_used(&self) -> u32 {
        self.host_used
    }

    pub(crate) fn host_free(&self) -> u32 {
        self.host_blocks - self.host_used
    }

    pub(crate) fn swapping_out_blocks(&self) -> u32 {
        self.swapping_out_blocks
    }

    pub(crate) fn swapping_out(&self) -> u32 {
        self.swapping_out
    }

    pub(crate) fn swapped(&self) -> u32 {
        self.swapped
    }

    pub(crate) fn swapping_in(&self) -> &[RequestIdx] {
        &self.swapping_in
    }

    /// The swap-out of `blocks` blocks begins.
    pub(crate) fn begin_out(&mut self, idx: RequestIdx, blocks: u32) {
        debug_assert!(0 < blocks && blocks <= self.host_free());
        self.copies[idx.index()] = blocks;
        self.host_used += blocks;
        self.swapping_out_blocks += blocks;
        self.swapping_out += 1;
    }

    /// The swap-out has ended.
    pub(crate) fn end_out(&mut self, idx: RequestIdx) {
        self.swapping_out_blocks -= self.copies(idx);
        self.swapping_out -= 1;
        self.swapped += 1;
    }

    /// The swap-in begins.
    pub(crate) fn begin_in(&mut self, idx: RequestIdx) {
        self.swapped -= 1;
        self.swapping_in.push(idx);
    }

    /// The swap-in has ended: the host blocks are free.
    pub(crate) fn end_in(&mut self, idx: RequestIdx) {
        self.swapping_in.retain(|&other| other != idx);
        self.drop_copies(idx);
    }

    /// Frees the host blocks of a swapped request that has finished.
    pub(crate) fn forget(&mut self, idx: RequestIdx) {
        self.swapped -= 1;
        self.drop_copies(idx);
    }

    fn drop_copies(&mut self, idx: RequestIdx) {
        self.host_used -= std::mem::take(&mut self.copies[idx.index()]);
    }
}

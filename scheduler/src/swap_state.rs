//! Transfers in flight, and the KV that the host holds.

use crate::blocks::Blocks;
use crate::request::RequestIdx;

/// The host pool and the transfers in flight. A request that is swapped, swapping out or swapping
/// in holds the host blocks of its KV, or of its first blocks if it finds them there by hash.
pub(crate) struct SwapState {
    pub(crate) host: Blocks,
    /// `[request]`: the first block of its transfer; those before are at the other side already.
    first: Vec<u32>,
    /// Blocks of requests that are swapping out: free when their transfers end.
    swapping_out_blocks: u32,
    swapping_out: u32,
    swapped: u32,
    /// Requests whose blocks are being filled; at most `max_running`, as a place is kept for each.
    swapping_in: Vec<RequestIdx>,
}

impl SwapState {
    pub(crate) fn new(host: Blocks, max_requests: u32, max_running: u32) -> SwapState {
        SwapState {
            host,
            first: vec![0; max_requests as usize],
            swapping_out_blocks: 0,
            swapping_out: 0,
            swapped: 0,
            swapping_in: Vec::with_capacity(max_running as usize),
        }
    }

    /// The first block of the request's transfer.
    pub(crate) fn first(&self, idx: RequestIdx) -> u32 {
        self.first[idx.index()]
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

    /// The swap-out of the blocks from `first` on begins.
    pub(crate) fn begin_out(&mut self, idx: RequestIdx, first: u32) {
        self.first[idx.index()] = first;
        self.swapping_out_blocks += self.host.held(idx);
        self.swapping_out += 1;
    }

    /// The swap-out has ended.
    pub(crate) fn end_out(&mut self, idx: RequestIdx) {
        self.swapping_out_blocks -= self.host.held(idx);
        self.swapping_out -= 1;
        self.swapped += 1;
    }

    /// The swap-in of the blocks from `first` on begins.
    pub(crate) fn begin_in(&mut self, idx: RequestIdx, first: u32) {
        self.first[idx.index()] = first;
        self.swapping_in.push(idx);
    }

    /// The swap-in has ended: the host blocks are free.
    pub(crate) fn end_in(&mut self, idx: RequestIdx) {
        self.swapping_in.retain(|&other| other != idx);
        self.host.release(idx);
    }

    /// The request is no longer swapped: it is swapped in, or has finished.
    pub(crate) fn leave(&mut self) {
        self.swapped -= 1;
    }
}

//! What is on its way between the device and the host, and what the host holds: counts alone.

use crate::request::Slot;

/// The host's pool, by slot, and the transfers under way.
pub(crate) struct Transit {
    /// Blocks of the slot's that the host holds, is being sent, or sends back.
    copies: Vec<u32>,
    host_used: u32,
    host_blocks: u32,
    /// Blocks of requests that are leaving: free when their transfers end.
    leaving_blocks: u32,
    leaving: u32,
    swapped: u32,
    /// Whose blocks are being filled; few, as each has a seat kept for it.
    returning: Vec<Slot>,
}

impl Transit {
    pub(crate) fn new(host_blocks: u32, max_requests: u32, max_running: u32) -> Transit {
        Transit {
            copies: vec![0; max_requests as usize],
            host_used: 0,
            host_blocks,
            leaving_blocks: 0,
            leaving: 0,
            swapped: 0,
            returning: Vec::with_capacity(max_running as usize),
        }
    }

    /// Blocks of the slot's that are copied, or were.
    pub(crate) fn copies(&self, slot: Slot) -> u32 {
        self.copies[slot.index()]
    }

    pub(crate) fn host_used(&self) -> u32 {
        self.host_used
    }

    pub(crate) fn host_free(&self) -> u32 {
        self.host_blocks - self.host_used
    }

    pub(crate) fn leaving_blocks(&self) -> u32 {
        self.leaving_blocks
    }

    pub(crate) fn leaving(&self) -> u32 {
        self.leaving
    }

    pub(crate) fn swapped(&self) -> u32 {
        self.swapped
    }

    pub(crate) fn returning(&self) -> &[Slot] {
        &self.returning
    }

    /// `blocks` of the slot's begin to leave.
    pub(crate) fn leave(&mut self, slot: Slot, blocks: u32) {
        debug_assert!(0 < blocks && blocks <= self.host_free());
        self.copies[slot.index()] = blocks;
        self.host_used += blocks;
        self.leaving_blocks += blocks;
        self.leaving += 1;
    }

    /// They have left.
    pub(crate) fn left(&mut self, slot: Slot) {
        self.leaving_blocks -= self.copies(slot);
        self.leaving -= 1;
        self.swapped += 1;
    }

    /// They begin to come back.
    pub(crate) fn come_back(&mut self, slot: Slot) {
        self.swapped -= 1;
        self.returning.push(slot);
    }

    /// They are back: the host's room is free.
    pub(crate) fn back(&mut self, slot: Slot) {
        self.returning.retain(|&other| other != slot);
        self.drop_copies(slot);
    }

    /// The host forgets a swapped request.
    pub(crate) fn forget(&mut self, slot: Slot) {
        self.swapped -= 1;
        self.drop_copies(slot);
    }

    fn drop_copies(&mut self, slot: Slot) {
        self.host_used -= std::mem::take(&mut self.copies[slot.index()]);
    }
}

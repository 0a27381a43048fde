//! Swapping: a victim's KV goes to the host instead of being thrown away, and comes back.
//!
//! ```text
//! Running, Paused --plan--> Leaving --transferred--> Swapped --plan--> Returning --transferred--> Paused
//!                  (swap_out)       (blocks free)             (swap_in)          (host's room free)
//! ```
//!
//! A plan names who begins to leave and to return; the caller starts the copies at once, and says
//! [`Scheduler::transferred`] when one has ended. No step waits for a copy: in between, the blocks
//! belong to the request, which is in no batch. Whoever needs the blocks of one that leaves is passed
//! over until they are free, and lets nobody behind it have the free ones meanwhile (see `fill`).
//! So that this is rare, the worst of the paused leave ahead of need, while there is still room.

use crate::config::Preemption;
use crate::limits::{BLOCK_TOKENS, blocks_for};
use crate::request::{Phase, Slot};
use crate::scheduler::Scheduler;

/// What is left of a request after [`Scheduler::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// Nothing: its slot and its blocks are free.
    Now,
    /// A copy of its KV in the host's pool, for the caller to forget. Slot and blocks are free.
    Forget,
    /// A transfer under way: the slot and the blocks are free only when
    /// [`Scheduler::transferred`] was told of its end.
    AfterTransfer,
}

/// What the end of a transfer brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transferred {
    /// The host has the KV, the device's blocks are free.
    Swapped,
    /// The KV is back, the host's copy is gone; the request may run again.
    Returned,
    /// The request was finished meanwhile: its slot and its blocks are free now.
    Finished {
        /// Whether the host has a copy for the caller to forget.
        forget: bool,
    },
}

impl Scheduler {
    /// The transfer of the request in `slot` has ended.
    ///
    /// # Panics
    ///
    /// If none was under way: then the caller's books are wrong, and blocks are about to be lost.
    pub fn transferred(&mut self, slot: Slot) -> Transferred {
        let request = &mut self.requests[slot];
        let (ended, leaving) = (request.ended, request.phase == Phase::Leaving);
        assert!(request.moving(), "no transfer of slot {} is under way", slot.0);
        request.phase = if leaving { Phase::Swapped } else { Phase::Paused };
        if leaving {
            self.blocks.release(slot);
            self.transit.left(slot);
        } else {
            self.transit.back(slot);
        }
        if ended {
            self.discard(slot);
            return Transferred::Finished { forget: leaving };
        }
        let key = self.policy.key(&self.requests[slot]);
        if leaving {
            self.waiting.insert(slot, key);
            return Transferred::Swapped;
        }
        self.paused.insert(slot, key);
        Transferred::Returned
    }

    /// Frees whatever a request outside all orders holds, and its slot.
    pub(crate) fn discard(&mut self, slot: Slot) {
        if self.requests[slot].phase == Phase::Swapped {
            self.transit.forget(slot);
        }
        self.blocks.release(slot);
        self.requests.release(slot);
    }

    /// Whether a victim's KV should go to the host: it has room, and the way there and back is the
    /// cheaper one.
    fn worth_swapping(&self, slot: Slot) -> bool {
        let tokens = self.requests[slot].computed;
        let blocks = blocks_for(tokens);
        if tokens == 0 || blocks > self.transit.host_free() {
            return false;
        }
        match self.config.preemption {
            Preemption::Recompute => false,
            Preemption::Swap => true,
            Preemption::Auto => {
                let copied_s = 2.0 * f64::from(blocks) * self.config.block_s;
                copied_s < f64::from(tokens) * self.config.token_s
            }
        }
    }

    /// Lets a victim, which is in no order any more, leave for the host, if that is worth while.
    /// The blocks of which nothing is computed yet are free at once.
    pub(crate) fn leave(&mut self, slot: Slot) -> bool {
        if !self.worth_swapping(slot) {
            return false;
        }
        let request = &mut self.requests[slot];
        request.phase = Phase::Leaving;
        request.swaps += 1;
        let blocks = blocks_for(request.computed);
        self.blocks.truncate(slot, blocks);
        self.transit.leave(slot, blocks);
        self.plan.swap_out.push(slot);
        true
    }

    /// Gives a swapped request, which is in no order any more, the `needed` blocks of all its
    /// tokens, and lets it come back.
    pub(crate) fn come_back(&mut self, slot: Slot) {
        let request = &mut self.requests[slot];
        request.phase = Phase::Returning;
        request.passed_over = 0;
        self.transit.come_back(slot);
        self.plan.swap_in.push(slot);
    }

    /// Blocks below which the paused begin to leave, with `rows` rows in the batch: the watermark
    /// and what the rows will take in the next steps.
    pub(crate) fn low_water(&self, rows: usize) -> u32 {
        let ahead = rows as u64 * u64::from(self.config.reclaim_steps);
        self.config.watermark_blocks() + ahead.div_ceil(u64::from(BLOCK_TOKENS)) as u32
    }

    /// Lets paused requests leave ahead of need, the worst first, but none ranked before a row of
    /// this plan: it may be next. `reserved` blocks are spoken for.
    pub(crate) fn reclaim(&mut self, reserved: u32) {
        let Some(worst_row) = self.running.last().copied() else { return };
        if self.transit.host_free() == 0 || self.config.preemption == Preemption::Recompute {
            return;
        }
        let wanted = reserved + self.low_water(self.running.len());
        let mut looked_at = 0;
        let mut next = self.paused.last().filter(|&last| last > worst_row);
        while let Some(victim) = next {
            if self.blocks_to_come() >= wanted || looked_at == self.config.max_lookahead {
                break;
            }
            next = self.paused.prev(victim.slot).filter(|&last| last > worst_row);
            looked_at += 1;
            if self.leave(victim.slot) {
                self.paused.remove(victim.slot);
            }
        }
    }

    /// Blocks that are free, or will be when the transfers under way have ended.
    pub(crate) fn blocks_to_come(&self) -> u32 {
        self.blocks.free() + self.transit.leaving_blocks()
    }

    /// Requests whose KV is with the host.
    pub fn swapped(&self) -> usize {
        self.transit.swapped() as usize
    }

    /// Requests whose KV is on its way to the host or back. A plan without rows while there are
    /// some means: wait for one of them.
    pub fn moving(&self) -> usize {
        self.transit.leaving() as usize + self.transit.returning().len()
    }

    /// Blocks of the host's pool that requests hold.
    pub fn host_blocks_used(&self) -> u32 {
        self.transit.host_used()
    }
}

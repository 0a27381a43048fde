//! Swapping: a victim's KV is copied to the host instead of being discarded, and copied back later.
//!
//! ```text
//! Running, Paused --plan.swap_out--> SwappingOut --transferred--> Swapped (its blocks are free)
//! Swapped         --plan.swap_in---> SwappingIn  --transferred--> Paused  (host blocks are free)
//! ```
//!
//! A plan lists the requests whose transfers begin; the caller starts the copies at once, and calls
//! [`Scheduler::transferred`] when one has ended. No step waits for a copy: during a transfer the
//! blocks belong to the request, which is in no batch. A request that needs the blocks of one that
//! is swapping out is skipped until they are free, and the free ones are reserved for it (see
//! `fill`). To make this rare, the worst of the paused are swapped out ahead of need (`reclaim`).

use crate::config::Preemption;
use crate::decision::Action;
use crate::key::Key;
use crate::limits::{BLOCK_TOKENS, blocks_for};
use crate::request::{Phase, RequestIdx};
use crate::scheduler::Scheduler;

/// The resources that a request still holds after [`Scheduler::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// Nothing: its index and its blocks are free.
    Now,
    /// A copy of its KV in the host pool, for the caller to discard. Index and blocks are free.
    Forget,
    /// A transfer in flight: the index and the blocks are free after the call of
    /// [`Scheduler::transferred`] that reports its end.
    AfterTransfer,
}

/// The result of a transfer that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transferred {
    /// The host has the KV, the device's blocks are free.
    Swapped,
    /// The KV is back on the device, the host copy is freed; the request may run again.
    Returned,
    /// The request was finished during the transfer: its index and its blocks are free now.
    Finished {
        /// True if the host has a copy for the caller to discard.
        forget: bool,
    },
}

impl Scheduler {
    /// Records that the transfer of the request at `idx` has ended.
    ///
    /// # Panics
    ///
    /// If none was in flight: the caller's accounting is wrong, and blocks would be lost.
    pub fn transferred(&mut self, idx: RequestIdx) -> Transferred {
        let request = &self.requests[idx];
        let (ended, swapping_out) = (request.ended, request.phase == Phase::SwappingOut);
        assert!(request.moving(), "request {} has no transfer in flight", idx.0);
        self.requests.set_phase(idx, if swapping_out { Phase::Swapped } else { Phase::Paused });
        if swapping_out {
            self.blocks.release(idx);
            self.swap_state.end_out(idx);
        } else {
            self.swap_state.end_in(idx);
        }
        if ended {
            self.free(idx);
            return Transferred::Finished { forget: swapping_out };
        }
        let key = self.key(idx);
        if swapping_out {
            self.waiting.insert(idx, key);
            return Transferred::Swapped;
        }
        self.paused.insert(idx, key);
        Transferred::Returned
    }

    /// Frees everything that a request outside all orders holds, and its index.
    pub(crate) fn free(&mut self, idx: RequestIdx) {
        if self.requests[idx].phase == Phase::Swapped {
            self.swap_state.forget(idx);
        }
        self.blocks.release(idx);
        self.requests.release(idx);
    }

    /// Returns true if a victim's KV should go to the host: there is room, and copying it both ways
    /// takes less time than recomputing it.
    fn worth_swapping(&self, idx: RequestIdx) -> bool {
        let tokens = self.requests[idx].computed;
        let blocks = blocks_for(tokens);
        if tokens == 0 || blocks > self.swap_state.host_free() {
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

    /// Begins to swap a victim out, if that is worthwhile. The victim is in no order any more; its
    /// blocks without computed tokens are free at once.
    pub(crate) fn swap_out(&mut self, idx: RequestIdx) -> bool {
        if !self.worth_swapping(idx) {
            return false;
        }
        self.requests.set_phase(idx, Phase::SwappingOut);
        let request = &mut self.requests[idx];
        request.swaps += 1;
        let blocks = blocks_for(request.computed);
        self.blocks.truncate(idx, blocks);
        self.swap_state.begin_out(idx, blocks);
        self.plan.swap_out.push(idx);
        true
    }

    /// Begins to swap a request in. It is in no order any more, and holds the blocks of all its
    /// tokens.
    pub(crate) fn swap_in(&mut self, idx: RequestIdx) {
        self.requests.set_phase(idx, Phase::SwappingIn);
        self.requests[idx].skipped_steps = 0;
        self.swap_state.begin_in(idx);
        self.plan.swap_in.push(idx);
    }

    /// Discards a victim's KV: the victim is recomputed later.
    pub(crate) fn discard_kv(&mut self, victim: RequestIdx) {
        self.publish(victim);
        self.blocks.release(victim);
        self.requests.set_phase(victim, Phase::Waiting);
        let request = &mut self.requests[victim];
        request.computed = 0;
        request.evictions += 1;
        self.plan.evicted.push(victim);
    }

    /// The low-water mark, in blocks, with `rows` rows in the batch: below it, paused requests are
    /// swapped out. It is the watermark plus what the rows will take in the next steps.
    pub(crate) fn low_water(&self, rows: usize) -> u32 {
        let ahead = rows as u64 * u64::from(self.config.reclaim_steps);
        self.config.watermark_blocks() + ahead.div_ceil(u64::from(BLOCK_TOKENS)) as u32
    }

    /// Swaps paused requests out ahead of need, worst first, but none ranked before a row of this
    /// plan, since it may run next. `promised` blocks are those of skipped requests.
    pub(crate) fn reclaim(&mut self, promised: u32) {
        let Some(worst_row) = self.running.last().copied() else { return };
        if self.swap_state.host_free() == 0 || self.config.preemption == Preemption::Recompute {
            return;
        }
        let wanted = promised + self.low_water(self.running.len());
        let mut visited = 0;
        let mut next = self.paused.last().filter(|&last| last > worst_row);
        while let Some(victim) = next {
            if self.free_after_transfers() >= wanted || visited == self.config.max_lookahead {
                break;
            }
            next = self.paused.prev(victim.idx).filter(|&last| last > worst_row);
            visited += 1;
            if self.swap_out(victim.idx) {
                self.paused.remove(victim.idx);
                self.decide(Action::SwappedOut, victim.idx, None);
            }
        }
    }

    /// Blocks that are free, or will be when the swap-outs in flight have ended. Those that others
    /// share count too, and will not: a request that waits for them is skipped once more.
    pub(crate) fn free_after_transfers(&self) -> u32 {
        self.blocks.free() + self.swap_state.swapping_out_blocks()
    }

    /// Blocks being filled for requests ranked behind `key`, or for finished ones.
    pub(crate) fn swapping_in_behind(&self, key: Key) -> u32 {
        let swapping_in = self.swap_state.swapping_in().iter().copied();
        let behind = swapping_in.filter(|&idx| {
            let request = &self.requests[idx];
            request.ended || self.key(idx) > key
        });
        behind.map(|idx| self.blocks.held(idx)).sum()
    }

    /// Number of requests whose KV is on the host.
    pub fn swapped(&self) -> usize {
        self.swap_state.swapped() as usize
    }

    /// Number of requests whose KV is being copied to the host or back. While there are some, a
    /// plan without rows means that the caller waits for one of the transfers.
    pub fn moving(&self) -> usize {
        self.swap_state.swapping_out() as usize + self.swap_state.swapping_in().len()
    }

    /// Blocks of the host pool that requests hold.
    pub fn host_blocks_used(&self) -> u32 {
        self.swap_state.host_used()
    }
}

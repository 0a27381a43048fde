//! Swapping: a victim's KV is copied to the host instead of being discarded, and copied back later.
//!
//! ```text
//! Running, Paused --plan.swap_out--> SwappingOut --transferred--> Swapped (its blocks are free)
//! Swapped         --plan.swap_in---> SwappingIn  --transferred--> Paused  (host blocks are free)
//! Waiting         --plan.swap_in---> SwappingIn  --transferred--> Paused
//! ```
//!
//! Host blocks have hashes too, and are known by them until their place is needed. So a block that
//! the other side has already is not copied, and a waiting request whose prefix the host has longer
//! than the device is swapped in, if that takes less time than computing it.
//!
//! A plan lists the requests whose transfers begin; the caller starts the copies at once, and calls
//! [`Scheduler::transferred`] when one has ended. No step waits for a copy: during a transfer the
//! blocks belong to the request, which is in no batch. A request that needs the blocks of one that
//! is swapping out is skipped until they are free, and the free ones are reserved for it (see
//! `fill`). To make this rare, the worst of the paused are swapped out ahead of need (`reclaim`).

use crate::blocks::BlockId;
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
    Finished,
}

/// Blocks that a transfer copies, in token order: equally many on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies<'a> {
    /// Blocks of the KV cache.
    pub device: &'a [BlockId],
    /// Blocks of the host pool, below [`SchedulerConfig::host_blocks`](crate::SchedulerConfig).
    pub host: &'a [BlockId],
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
            let hashes = self.hashes.first(idx, self.requests[idx].computed / BLOCK_TOKENS);
            self.swap_state.host.publish(idx, hashes);
            self.swap_state.end_out(idx);
            self.blocks.release(idx);
        } else {
            // Not before: its rank depends on it.
            self.requests[idx].computed = self.copied_end(idx);
            self.swap_state.end_in(idx);
            self.publish(idx);
        }
        if ended {
            self.free(idx);
            return Transferred::Finished;
        }
        let key = self.key(idx);
        if swapping_out {
            self.waiting.insert(idx, key);
            return Transferred::Swapped;
        }
        self.paused.insert(idx, key);
        Transferred::Returned
    }

    /// The blocks that the transfer of a request copies, from [`Scheduler::plan`] to
    /// [`Scheduler::transferred`]; none where the other side has them all.
    pub fn copies(&self, idx: RequestIdx) -> Copies<'_> {
        let host = self.host_blocks(idx);
        let copied = self.copied_from(idx) as usize..host.len();
        Copies { device: &self.blocks.table(idx)[copied.clone()], host: &host[copied] }
    }

    /// The place of the first block that the transfer of a request copies. Those before were found
    /// at the other side by hash.
    pub fn copied_from(&self, idx: RequestIdx) -> u32 {
        self.swap_state.first(idx)
    }

    /// The first token of a request in transfer whose KV the other side will not have: those before
    /// are computed, or in full blocks that were found on the host.
    pub fn copied_end(&self, idx: RequestIdx) -> u32 {
        match self.requests[idx].computed {
            0 => self.swap_state.host.held(idx) * BLOCK_TOKENS,
            computed => computed,
        }
    }

    /// Host blocks of a request that is swapped or in transfer, in token order.
    pub fn host_blocks(&self, idx: RequestIdx) -> &[BlockId] {
        self.swap_state.host.table(idx)
    }

    /// Frees everything that a request outside all orders holds, and its index.
    pub(crate) fn free(&mut self, idx: RequestIdx) {
        if self.requests[idx].phase == Phase::Swapped {
            self.swap_state.leave();
        }
        self.swap_state.host.release(idx);
        self.blocks.release(idx);
        self.requests.release(idx);
    }

    /// Returns true if a victim's KV should go to the host: copying those of its `blocks` that are
    /// not `known` there, and all back, takes less time than recomputing it.
    fn worth_swapping(&self, idx: RequestIdx, blocks: u32, known: u32) -> bool {
        match self.config.preemption {
            Preemption::Recompute => false,
            Preemption::Swap => true,
            Preemption::Auto => {
                let copied_s = f64::from(2 * blocks - known) * self.config.block_s;
                copied_s < f64::from(self.requests[idx].computed) * self.config.token_s
            }
        }
    }

    /// Begins to swap a victim out, if that is worthwhile and the host has room. The victim is in
    /// no order any more; its blocks without computed tokens are free at once.
    pub(crate) fn swap_out(&mut self, idx: RequestIdx) -> bool {
        let computed = self.requests[idx].computed;
        let blocks = blocks_for(computed);
        let hashes = self.hashes.first(idx, computed / BLOCK_TOKENS);
        let host = &mut self.swap_state.host;
        let known = host.find(hashes);
        if computed == 0 || !self.worth_swapping(idx, blocks, known) {
            return false;
        }
        // Held before the others take room, whose place these may have.
        self.swap_state.host.share(idx, &hashes[..known as usize]);
        if blocks - known > self.swap_state.host.free() {
            self.swap_state.host.release(idx);
            return false;
        }
        self.swap_state.host.grow(idx, blocks - known);
        self.requests.set_phase(idx, Phase::SwappingOut);
        self.requests[idx].swaps += 1;
        self.blocks.truncate(idx, blocks);
        self.swap_state.begin_out(idx, known);
        self.plan.swap_out.push(idx);
        true
    }

    /// The request's first blocks that the host has by hash and the device, which has
    /// `cached`, has not; 0 if computing them takes less time than copying.
    pub(crate) fn blocks_on_host(&self, idx: RequestIdx, cached: u32) -> u32 {
        let copied_s = self.config.block_s;
        if copied_s >= f64::from(BLOCK_TOKENS) * self.config.token_s {
            return 0;
        }
        let max = self.requests[idx].max_cached_blocks();
        let found = self.swap_state.host.find(self.hashes.first(idx, max));
        if found > cached { found } else { 0 }
    }

    /// Begins to swap a request in. It is in no order any more, holds host blocks of its KV,
    /// or of its first tokens, and on the device blocks for all its tokens; the first `cached` are
    /// filled already.
    pub(crate) fn swap_in(&mut self, idx: RequestIdx, cached: u32) {
        if self.requests[idx].phase == Phase::Swapped {
            self.swap_state.leave();
        } else {
            self.plan.cached_tokens += self.copied_end(idx);
        }
        self.requests.set_phase(idx, Phase::SwappingIn);
        self.requests[idx].skipped_steps = 0;
        self.swap_state.begin_in(idx, cached);
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
        if self.config.host_blocks == 0 || self.config.preemption == Preemption::Recompute {
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
        self.swap_state.host.used()
    }
}

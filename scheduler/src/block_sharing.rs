//! Hashes of the requests' blocks, by which requests that begin alike share them.

use crate::blocks::{BlockChange, BlockHash, BlockId};
use crate::limits::BLOCK_TOKENS;
use crate::request::{Phase, RequestIdx};
use crate::scheduler::Scheduler;

impl Scheduler {
    /// Hashes the request's next block of [`crate::BLOCK_TOKENS`] known tokens, prompt and output
    /// in one sequence, from its first on. Once a block is computed, another request that has the
    /// same hash at the same place shares it instead of computing it again, and it stays known
    /// after its last holder until its place is needed. No effect where
    /// [`crate::SchedulerConfig::cached_blocks`] is 0.
    pub fn push_block_hash(&mut self, idx: RequestIdx, hash: BlockHash) {
        let Some(block) = self.hashes.push(idx, hash) else { return };
        let request = &mut self.requests[idx];
        // How far it will be able to begin with them is not known before its turn.
        let goes_on = !self.config.marked_blocks
            && request.cached_tokens == block * BLOCK_TOKENS
            && block < request.max_cached_blocks();
        if request.phase == Phase::Waiting && !request.started && goes_on && self.blocks.knows(hash)
        {
            request.cached_tokens += BLOCK_TOKENS;
            self.rekey(idx);
        }
    }

    /// Lets a request of the last plan, which entered or is swapped in with blocks that were found
    /// by hash, begin again and share none from now on: for a caller that found other tokens in
    /// them. Its row of the plan is no longer to be executed, nor its transfer; the caller plans
    /// again.
    pub fn forget_hashes(&mut self, idx: RequestIdx) {
        self.hashes.clear(idx);
        self.restart(idx);
    }

    /// Lets a request of the last plan begin again, as if it had been evicted: for a caller that no
    /// longer has what it needs besides KV blocks. See [`Scheduler::forget_hashes`].
    pub fn restart(&mut self, idx: RequestIdx) {
        self.running.retain(|ranked| ranked.idx != idx);
        self.plan.swap_in.retain(|&other| other != idx);
        self.swap_state.end_in(idx);
        self.blocks.release(idx);
        self.requests.set_phase(idx, Phase::Waiting);
        let request = &mut self.requests[idx];
        (request.planned, request.computed, request.cached_tokens) = (false, 0, 0);
        self.policy.on_preempted(&self.requests[idx]);
        self.waiting.insert(idx, self.key(idx));
    }

    /// Leading blocks of the request that are known by hash, those that it computed among them.
    pub fn known_blocks(&self, idx: RequestIdx) -> u32 {
        self.blocks.known(self.hashes.first(idx, u32::MAX))
    }

    /// The block that is known by the hash of the request's block `block`, its own or another's.
    pub fn known_block(&self, idx: RequestIdx, block: u32) -> Option<BlockId> {
        self.blocks.block_of(self.hashes.at(idx, block)?.0)
    }

    /// Marks a block that is known by hash, so that requests may begin after it, or takes the mark
    /// back. A block that is forgotten has no mark. No effect without
    /// [`crate::SchedulerConfig::marked_blocks`].
    pub fn set_resumable(&mut self, block: BlockId, is_resumable: bool) {
        self.blocks.set_resumable(block, is_resumable);
    }

    /// True if `block` is marked.
    pub fn is_resumable(&self, block: BlockId) -> bool {
        self.blocks.is_resumable(block)
    }

    /// Records from now on which blocks of the device are found by hash, for
    /// [`Scheduler::take_block_changes`].
    pub fn record_block_changes(&mut self) {
        self.blocks.record_changes();
    }

    /// Takes the changes since the last call, in order; none where they are not recorded. A caller
    /// that takes them after each plan, before it writes to the plan's blocks, finds in a block of
    /// [`BlockChange::Known`] what it is known by, and recording allocates nothing.
    pub fn take_block_changes(&mut self) -> impl Iterator<Item = BlockChange> {
        self.blocks.take_changes()
    }

    /// Blocks of a request without KV on the device that are found there by hash.
    pub(crate) fn cached_blocks(&self, idx: RequestIdx) -> u32 {
        let request = &self.requests[idx];
        let max = match request.phase {
            Phase::Waiting => request.max_cached_blocks(),
            Phase::Swapped => request.computed / BLOCK_TOKENS,
            _ => 0,
        };
        self.blocks.find(self.hashes.first(idx, max))
    }

    /// Makes the full blocks of a request with KV known by hash, those too whose hashes came after
    /// their step.
    pub(crate) fn publish(&mut self, idx: RequestIdx) {
        let request = &self.requests[idx];
        if request.resident() {
            self.blocks.publish(idx, self.hashes.first(idx, request.computed / BLOCK_TOKENS));
        }
    }
}

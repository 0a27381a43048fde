//! Recurrent states of a hybrid's requests: whose each state of the backend's pool is.
//!
//! The pool has a state for each request of a step and some more. Those are snapshots, by which
//! later requests begin with the blocks of a prefix, and the states of paused requests. Where a
//! request needs one, snapshots go before states of paused requests, the least recently used first;
//! a request that finds its state taken begins again, as after an eviction.
//!
//! A snapshot is a copy of the state at the end of a KV block that is known by its hash. It is made
//! where a later request probably begins: at the last block of a prompt, at the last block of an
//! answer so far, and where a request finds that another had the same tokens up to a block.

use trail_scheduler::{BlockId, LoggedScheduler, PlanRow, RequestIdx, Scheduler};

use super::active::ActiveRequest;
use super::build_backend::BuiltBackend;
use super::lifecycle::Lifecycle;
use super::pool_contents::PoolContents;
use crate::backend::{BLOCK_TOKENS, Batch, MAX_STATE_DRAFTS, StateCopy};

/// Tokens of a block.
const BLOCK: u32 = BLOCK_TOKENS as u32;

/// The states of the backend's pool, of one that completes a step at launch; none for a model
/// without gated delta nets.
pub(super) struct RecurrentStates {
    states: Vec<Entry>,
    /// By request index: its state, unless that was taken.
    of_requests: Vec<Option<u32>>,
    /// By block: its snapshot, unless that was taken.
    of_blocks: Vec<Option<u32>>,
    /// By request index: the block of the last snapshot within its answer, and its number.
    in_answers: Vec<Option<(u64, BlockId)>>,
    /// Requests of the plan whose state was taken.
    lost: Vec<RequestIdx>,
    /// States that draft tokens of a step may need.
    for_drafts: usize,
    /// States that snapshots of this plan may take.
    for_snapshots: usize,
    /// Blocks that are known by the hashes of a request.
    chain: Vec<BlockId>,
    /// Blocks whose snapshot was taken in this plan.
    dropped: Vec<BlockId>,
    /// Number of the plan: states of its requests are not taken.
    plan: u64,
}

/// A state of the pool.
#[derive(Clone, Copy)]
struct Entry {
    owner: Owner,
    /// The last plan that used it.
    used: u64,
}

/// The tokens after which a state is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// None: it may be taken.
    Free,
    /// Those of the request with number `id`, `tokens` tokens.
    Request { idx: RequestIdx, id: u64, tokens: u32 },
    /// Those up to the end of a block.
    Block(BlockId),
    /// Those of the step in flight up to a draft token.
    Draft,
    /// Those of the step in flight up to the end of a block.
    NewBlock,
}

/// The order in which states are taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Unused,
    Snapshot(u64),
    OfRequest(u64),
}

impl RecurrentStates {
    /// The states of a backend for steps of up to `max_running` requests.
    pub(super) fn new(built: &BuiltBackend, max_requests: usize, max_running: usize) -> Self {
        let num_states = built.backend.num_states();
        let any = |count: usize| if num_states > 0 { count } else { 0 };
        RecurrentStates {
            states: vec![Entry { owner: Owner::Free, used: 0 }; num_states],
            of_requests: vec![None; any(max_requests)],
            of_blocks: vec![None; any(built.kv_blocks)],
            in_answers: vec![None; any(max_requests)],
            lost: Vec::with_capacity(max_running),
            for_drafts: if built.backend.takes_drafts() { MAX_STATE_DRAFTS } else { 0 },
            for_snapshots: 0,
            chain: Vec::with_capacity(any(built.kv_blocks)),
            dropped: Vec::with_capacity(num_states),
            plan: 0,
        }
    }

    /// Keeps the states of the requests of the plan, and gives those that begin one. Lets those
    /// whose state was taken begin again: true if there was none.
    pub(super) fn restart_lost(
        &mut self,
        scheduler: &mut LoggedScheduler,
        lifecycle: &mut Lifecycle,
    ) -> bool {
        if self.states.is_empty() {
            return true;
        }
        self.plan += 1;
        self.lost.clear();
        for row in scheduler.last_plan().rows.iter().filter(|row| row.start > 0) {
            let id = lifecycle.planned(row.idx).id;
            match self.before(row, id, scheduler) {
                Some(state) => self.states[state as usize].used = self.plan,
                None => self.lost.push(row.idx),
            }
        }
        self.lost.iter().for_each(|&idx| lifecycle.lose_state(idx, scheduler));
        if self.lost.is_empty() {
            self.begin(scheduler, lifecycle);
        }
        self.lost.is_empty()
    }

    /// Gives the requests of the plan that have no state one.
    fn begin(&mut self, scheduler: &Scheduler, lifecycle: &Lifecycle) {
        let rows = &scheduler.last_plan().rows;
        // Those that have one keep it.
        for row in rows {
            if let Some(own) = self.own(row.idx, lifecycle.planned(row.idx).id) {
                self.states[own as usize].used = self.plan;
            }
        }
        for row in rows {
            let (idx, id) = (row.idx, lifecycle.planned(row.idx).id);
            if self.own(idx, id).is_none() {
                let taken = self.take(Rank::OfRequest(u64::MAX), (scheduler, lifecycle));
                let state = taken.expect("as many states as a step needs");
                self.give(state, Owner::Request { idx, id, tokens: 0 });
                self.of_requests[idx.index()] = Some(state);
            }
        }
        let left = self.states.iter().filter(|entry| entry.used < self.plan).count();
        let caches = scheduler.config().cached_blocks > 0;
        self.for_snapshots = if caches { left.saturating_sub(self.for_drafts) } else { 0 };
    }

    /// Names the states of the segment of `batch` that was appended last: `row` of the plan, with
    /// `drafts` draft tokens.
    pub(super) fn assign(
        &mut self,
        row: &PlanRow,
        drafts: usize,
        (scheduler, lifecycle): (&Scheduler, &Lifecycle),
        batch: &mut Batch,
    ) {
        if self.states.is_empty() {
            return;
        }
        let active = lifecycle.planned(row.idx);
        let id = active.id;
        let before = self.before(row, id, scheduler).filter(|_| row.start > 0);
        let after = self.own(row.idx, id).expect("it was given one");
        let known = row.start + row.len;
        let tokens = known + drafts as u32;
        self.give(after, Owner::Request { idx: row.idx, id, tokens });
        batch.keep_state(before, after);
        let ends = block_ends(row, tokens, active, scheduler);
        let mut ends = ends.into_iter().flatten().peekable();
        while let Some(end) = ends.next_if(|&end| end < known) {
            self.copy(end, Owner::NewBlock, (scheduler, lifecycle), batch);
        }
        for end in known..=tokens {
            if end < tokens {
                self.copy(end, Owner::Draft, (scheduler, lifecycle), batch);
            }
            if ends.next_if_eq(&end).is_some() {
                self.copy(end, Owner::NewBlock, (scheduler, lifecycle), batch);
            }
        }
    }

    /// Copies the state after `end` tokens in the segment that was appended last. A snapshot takes
    /// no state of a request: it may find none.
    fn copy(
        &mut self,
        end: u32,
        owner: Owner,
        (scheduler, lifecycle): (&Scheduler, &Lifecycle),
        batch: &mut Batch,
    ) {
        let worst = match owner {
            Owner::Draft => Rank::OfRequest(u64::MAX),
            _ if self.for_snapshots == 0 => return,
            _ => Rank::Snapshot(u64::MAX),
        };
        let state = self.take(worst, (scheduler, lifecycle));
        assert!(state.is_some() || owner != Owner::Draft, "as many states as a step needs");
        if let Some(state) = state {
            self.for_snapshots -= usize::from(owner == Owner::NewBlock);
            self.give(state, owner);
            batch.copy_state(StateCopy { end, state });
        }
    }

    /// Takes the marks of the blocks whose snapshots were taken back.
    pub(super) fn unmark(&mut self, scheduler: &mut LoggedScheduler) {
        for block in self.dropped.drain(..) {
            scheduler.set_resumable(block, false);
        }
    }

    /// Keeps of each request of `batch`, whose step is complete, the state after the tokens that
    /// are kept, and the snapshots of its blocks.
    pub(super) fn collect(
        &mut self,
        batch: &Batch,
        scheduler: &mut LoggedScheduler,
        (lifecycle, contents): (&Lifecycle, Option<&PoolContents>),
    ) {
        for segment in batch.segments.iter().filter(|segment| segment.state.copies > 0) {
            let idx = RequestIdx(segment.request);
            let tokens = scheduler.state(idx).computed;
            let after = segment.state.after as usize;
            let Owner::Request { id, .. } = self.states[after].owner else { continue };
            for copy in batch.copies(segment) {
                let state = copy.state as usize;
                let owner = std::mem::replace(&mut self.states[state].owner, Owner::Free);
                if owner == Owner::Draft && copy.end == tokens {
                    self.states[after].owner = Owner::Free;
                    self.states[state].owner = Owner::Request { idx, id, tokens };
                    self.of_requests[idx.index()] = Some(copy.state);
                } else if owner == Owner::NewBlock && copy.end <= tokens {
                    let block = self.block_of(idx, copy.end, (scheduler, lifecycle, contents));
                    block.into_iter().for_each(|block| {
                        self.keep_snapshot(*copy, (idx, id), block, scheduler);
                    });
                }
            }
        }
    }

    /// The block without a snapshot that is known by the hash of the request's block which ends at
    /// `end`, if it has the request's tokens: as for blocks that are found, a hash is no proof.
    fn block_of(
        &mut self,
        idx: RequestIdx,
        end: u32,
        (scheduler, lifecycle, contents): (&Scheduler, &Lifecycle, Option<&PoolContents>),
    ) -> Option<BlockId> {
        let last = end / BLOCK - 1;
        let block = scheduler.known_block(idx, last)?;
        if scheduler.is_resumable(block) {
            return None;
        }
        if scheduler.blocks(idx)[last as usize] == block {
            return Some(block);
        }
        self.chain.clear();
        self.chain.extend((0..=last).map_while(|at| scheduler.known_block(idx, at)));
        let (active, count) = (lifecycle.planned(idx), self.chain.len());
        let (contents, hashes) = contents.zip(active.hashes.as_ref())?;
        let has = contents.device.have(count, hashes.root(), &active.tokens, &self.chain);
        (has && count == last as usize + 1).then_some(block)
    }

    /// Makes `copy`, of the request with number `id` at `idx`, the snapshot of `block`.
    fn keep_snapshot(
        &mut self,
        copy: StateCopy,
        (idx, id): (RequestIdx, u64),
        block: BlockId,
        scheduler: &mut LoggedScheduler,
    ) {
        self.states[copy.state as usize].owner = Owner::Block(block);
        self.of_blocks[block as usize] = Some(copy.state);
        scheduler.set_resumable(block, true);
        if copy.end < scheduler.state(idx).prompt_tokens {
            return;
        }
        // Within an answer the last one is enough.
        let last = self.in_answers[idx.index()].replace((id, block));
        if let Some((_, last)) = last.filter(|&(other, last)| other == id && last != block)
            && let Some(state) = self.snapshot(last, scheduler)
        {
            self.states[state as usize].owner = Owner::Free;
            scheduler.set_resumable(last, false);
        }
    }

    /// The state before `row` of the plan, of the request with number `id`; `None` if it was taken.
    fn before(&self, row: &PlanRow, id: u64, scheduler: &Scheduler) -> Option<u32> {
        let owner = Owner::Request { idx: row.idx, id, tokens: row.start };
        let own = self.own(row.idx, id).filter(|&own| self.states[own as usize].owner == owner);
        own.or_else(|| {
            let is_end = row.start.is_multiple_of(BLOCK);
            let last = (row.start / BLOCK).checked_sub(1).filter(|_| is_end)?;
            self.snapshot(scheduler.blocks(row.idx)[last as usize], scheduler)
        })
    }

    /// The snapshot of `block`.
    fn snapshot(&self, block: BlockId, scheduler: &Scheduler) -> Option<u32> {
        let state = self.of_blocks[block as usize]?;
        let is_its = self.states[state as usize].owner == Owner::Block(block);
        (is_its && scheduler.is_resumable(block)).then_some(state)
    }

    /// The state of the request with number `id` at `idx`, after whatever tokens.
    fn own(&self, idx: RequestIdx, id: u64) -> Option<u32> {
        let own = self.of_requests[idx.index()]?;
        let owner = self.states[own as usize].owner;
        let is_own = matches!(owner, Owner::Request { id: other, .. } if other == id);
        is_own.then_some(own)
    }

    /// Takes the first state in the order of their ranks that the plan does not use; `None` if its
    /// rank is behind `worst`.
    fn take(
        &mut self,
        worst: Rank,
        (scheduler, lifecycle): (&Scheduler, &Lifecycle),
    ) -> Option<u32> {
        let plan = self.plan;
        let rank = |at: usize, entry: &Entry| match entry.owner {
            Owner::Free => Some(Rank::Unused),
            Owner::Request { idx, id, tokens } => {
                let is_live = lifecycle.live(idx).is_some_and(|active| active.id == id);
                // An evicted request begins again: its state is of no use.
                let is_kept =
                    is_live && (entry.used == plan || scheduler.state(idx).computed == tokens);
                if is_kept { used(entry, plan).map(Rank::OfRequest) } else { Some(Rank::Unused) }
            }
            Owner::Block(block) if self.snapshot(block, scheduler) != Some(at as u32) => {
                Some(Rank::Unused)
            }
            Owner::Block(_) => used(entry, plan).map(Rank::Snapshot),
            Owner::Draft | Owner::NewBlock => None,
        };
        let ranks = self.states.iter().enumerate();
        let (rank, state) = ranks.filter_map(|(at, entry)| Some((rank(at, entry)?, at))).min()?;
        if rank > worst {
            return None;
        }
        if let (Owner::Block(block), Rank::Snapshot(_)) = (self.states[state].owner, rank) {
            self.dropped.push(block);
        }
        Some(state as u32)
    }

    fn give(&mut self, state: u32, owner: Owner) {
        self.states[state as usize] = Entry { owner, used: self.plan };
    }
}

/// The plan that used a state last, unless that is `plan`.
fn used(entry: &Entry, plan: u64) -> Option<u64> {
    Some(entry.used).filter(|&used| used < plan)
}

/// The ends of blocks within `row` and its draft tokens, up to `tokens` tokens, at which a later
/// request may begin, in order: where the tokens that another request had end, where the prompt's
/// last block ends, and the last one of the answer.
fn block_ends(
    row: &PlanRow,
    tokens: u32,
    active: &ActiveRequest,
    scheduler: &Scheduler,
) -> [Option<u32>; 3] {
    let prompt = active.prompt_len as u32;
    // Not after the last token, whose logits a request needs.
    let of_prompt = (prompt - 1) / BLOCK * BLOCK;
    // Looking up the blocks takes time by the length of the prompt: not in a decode.
    let known = match row.start < of_prompt {
        true => (scheduler.known_blocks(row.idx) * BLOCK).min(of_prompt),
        false => 0,
    };
    let of_answer = if tokens > prompt { tokens / BLOCK * BLOCK } else { 0 };
    let mut ends = [known, of_prompt, of_answer].map(Some);
    for at in 0..ends.len() {
        let is_new = !ends[..at].contains(&ends[at]);
        ends[at] = ends[at].filter(|&end| is_new && end > row.start);
        ends[at] = ends[at].filter(|&end| end <= tokens);
    }
    ends
}

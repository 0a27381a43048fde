//! Recurrent states of a hybrid's requests: whose each state of the backend's pool is.
//!
//! The pool has a state for each request of a step and some more, which paused requests keep while
//! no other needs them. The least recently used one is taken first; a request that finds its own
//! taken begins again, as after an eviction.

use trail_scheduler::{LoggedScheduler, PlanRow, RequestIdx};

use super::build_backend::BuiltBackend;
use super::lifecycle::Lifecycle;
use crate::backend::{Batch, StateCopy};

/// The states of the backend's pool, of one that completes a step at launch; none for a model
/// without gated delta nets.
pub(super) struct RecurrentStates {
    states: Vec<Entry>,
    /// By request index: its state, unless that was taken.
    of_requests: Vec<Option<u32>>,
    /// Requests of the plan whose state was taken.
    lost: Vec<RequestIdx>,
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
    /// Those up to a draft token of the step in flight.
    Draft,
}

impl RecurrentStates {
    /// The states of a backend for steps of up to `max_running` requests.
    pub(super) fn new(built: &BuiltBackend, max_requests: usize, max_running: usize) -> Self {
        let num_states = built.backend.num_states();
        RecurrentStates {
            states: vec![Entry { owner: Owner::Free, used: 0 }; num_states],
            of_requests: vec![None; if num_states > 0 { max_requests } else { 0 }],
            lost: Vec::with_capacity(max_running),
            plan: 0,
        }
    }

    /// Keeps the states of the requests of the plan, and lets those whose state was taken begin
    /// again. Returns true if there was none.
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
            match self.before(row, id) {
                Some(state) => self.states[state as usize].used = self.plan,
                None => self.lost.push(row.idx),
            }
        }
        self.lost.iter().for_each(|&idx| lifecycle.lose_state(idx, scheduler));
        self.lost.is_empty()
    }

    /// Names the states of the segment of `batch` that was appended last: `row` of the plan, of the
    /// request with number `id`, and `drafts` draft tokens.
    pub(super) fn assign(
        &mut self,
        (row, id, drafts): (&PlanRow, u64, usize),
        lifecycle: &Lifecycle,
        batch: &mut Batch,
    ) {
        if self.states.is_empty() {
            return;
        }
        let before = (row.start > 0).then(|| self.before(row, id).expect("it was not taken"));
        let after = match self.own(row.idx, id) {
            Some(own) => own,
            None => self.take(lifecycle),
        };
        let tokens = row.start + row.len + drafts as u32;
        self.give(after, Owner::Request { idx: row.idx, id, tokens });
        self.of_requests[row.idx.index()] = Some(after);
        batch.keep_state(before, after);
        for end in tokens - drafts as u32..tokens {
            let state = self.take(lifecycle);
            self.give(state, Owner::Draft);
            batch.copy_state(StateCopy { end, state });
        }
    }

    /// Keeps of each request of `batch`, whose step is complete, the state after the tokens that
    /// are kept.
    pub(super) fn collect(&mut self, batch: &Batch, scheduler: &LoggedScheduler) {
        for segment in batch.segments.iter().filter(|segment| segment.state.copies > 0) {
            let idx = RequestIdx(segment.request);
            let tokens = scheduler.state(idx).computed;
            let after = segment.state.after as usize;
            let Owner::Request { id, .. } = self.states[after].owner else { continue };
            for copy in batch.copies(segment) {
                self.states[copy.state as usize].owner = Owner::Free;
                if copy.end == tokens {
                    self.states[after].owner = Owner::Free;
                    self.states[copy.state as usize].owner = Owner::Request { idx, id, tokens };
                    self.of_requests[idx.index()] = Some(copy.state);
                }
            }
        }
    }

    /// The state before `row` of the plan, of the request with number `id`; `None` if it was taken.
    fn before(&self, row: &PlanRow, id: u64) -> Option<u32> {
        let own = self.own(row.idx, id)?;
        let owner = Owner::Request { idx: row.idx, id, tokens: row.start };
        (self.states[own as usize].owner == owner).then_some(own)
    }

    /// The state of the request with number `id` at `idx`, after whatever tokens.
    fn own(&self, idx: RequestIdx, id: u64) -> Option<u32> {
        let own = self.of_requests[idx.index()]?;
        let owner = self.states[own as usize].owner;
        let is_own = matches!(owner, Owner::Request { id: other, .. } if other == id);
        is_own.then_some(own)
    }

    /// Takes a state that the plan does not use: a free one, that of an ended request, else the
    /// least recently used.
    fn take(&mut self, lifecycle: &Lifecycle) -> u32 {
        let rank = |(at, entry): (usize, &Entry)| {
            let last = match entry.owner {
                Owner::Free => 0,
                Owner::Request { idx, id, .. } => {
                    let is_live = lifecycle.live(idx).is_some_and(|active| active.id == id);
                    if is_live { entry.used } else { 0 }
                }
                Owner::Draft => entry.used,
            };
            (last, at)
        };
        let takes = self.states.iter().enumerate().map(rank);
        let (used, state) = takes.min().expect("a pool of states");
        assert!(used < self.plan, "more states in a step than the pool has");
        state as u32
    }

    fn give(&mut self, state: u32, owner: Owner) {
        self.states[state as usize] = Entry { owner, used: self.plan };
    }
}

//! Filling a plan: one walk over all requests in rank order.
//!
//! Each request in turn takes a seat (of `max_running`), rows (of `token_budget`) and KV blocks:
//!
//! * **Rows.** A decode takes one, a prefill as many as are left, except one for each running
//!   request behind it. So a long prompt, however well it ranks, does not stall the decodes (in a
//!   memory-bound step they cost next to nothing), and no running request leaves for want of a row.
//! * **Blocks.** A request entering without KV takes the blocks of all its present tokens at once,
//!   so that two half-done prefills cannot deadlock, and leaves the watermark free. Who is short of
//!   blocks takes them from residents ranked *behind* it: from the paused first, worst first; then
//!   from the running, worst first. Those ahead of it keep theirs: in rank order an eviction never
//!   serves a worse request. Nobody is evicted unless that is enough.
//! * **Passing over.** A request that finds no blocks even so is passed over, and those behind it
//!   may fill in; `max_passed_over`, `max_blocked` and `max_lookahead` bound that from both sides.
//!
//! Why every request finishes once arrivals cease. The first in the order always gets a seat, a row
//! and, as all others are behind it and it fits alone, its blocks. So the first gets on by a token
//! per step, and an endless run in which none finishes would have to change the first for ever.
//! But an unpinned key changes only by a token generated or a prediction accepted; there are
//! finitely many of the former, and at most one of the latter for each (`RequestState::predict`).
//! A pinned first gives way only to one pinned earlier that has just come back, and arrivals do not
//! go back for ever.

use crate::key::{Key, Ranked};
use crate::limits::blocks_for;
use crate::plan::PlanRow;
use crate::request::{Phase, Slot};
use crate::scheduler::Scheduler;

/// What is left to hand out, and who was not looked at yet.
struct Left {
    seats: u32,
    rows: u32,
    /// Running requests not looked at yet: `Scheduler::running[running_first..running_end]`.
    running_first: usize,
    running_end: usize,
    /// The best paused and waiting request not looked at yet.
    paused: Option<Ranked>,
    waiting: Option<Ranked>,
    /// Whether requests outside the batch may still enter it.
    open: bool,
    passed: u32,
}

impl Left {
    /// Rows the next request may take: one stays for each running request behind it that can still
    /// find a seat. Kept by induction: `rows >= min(running behind, seats)`, as the configuration
    /// has `token_budget >= max_running`; so a running request always finds its row.
    fn rows_for_next(&self) -> u32 {
        let running_behind = (self.running_end - self.running_first) as u32;
        self.rows - self.rows.min(running_behind.min(self.seats - 1))
    }
}

/// The better ranked of the two.
fn sooner(a: Option<Ranked>, b: Option<Ranked>) -> Option<Ranked> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if a.key < b.key { a } else { b }),
        _ => a.or(b),
    }
}

impl Scheduler {
    /// Fills the cleared plan from the three ordered sets.
    pub(crate) fn fill(&mut self) {
        let mut left = Left {
            seats: self.config.max_running,
            rows: self.config.token_budget,
            running_first: 0,
            running_end: self.running.len(),
            paused: self.paused.first(),
            waiting: self.waiting.first(),
            open: true,
            passed: 0,
        };
        while left.seats > 0 {
            let Some(candidate) = self.next_ranked(&mut left) else { break };
            self.consider(candidate, &mut left);
        }
    }

    /// The best request not looked at yet: a merge of the three sets.
    fn next_ranked(&self, left: &mut Left) -> Option<Ranked> {
        let running = self.running[..left.running_end].get(left.running_first).copied();
        let idle = if left.open { sooner(left.paused, left.waiting) } else { None };
        let best = sooner(running, idle)?;
        match self.requests[best.slot].phase {
            Phase::Running => left.running_first += 1,
            Phase::Paused => left.paused = self.paused.next(best.slot),
            Phase::Waiting | Phase::Free => left.waiting = self.waiting.next(best.slot),
        }
        Some(best)
    }

    /// Gives the candidate a row if it fits.
    fn consider(&mut self, candidate: Ranked, left: &mut Left) {
        let slot = candidate.slot;
        let held = self.blocks.held(slot);
        let request = &self.requests[slot];
        let len = request.uncomputed().min(left.rows_for_next());
        if len == 0 {
            left.open = false;
            return;
        }
        // Waived for the first row: a request as large as the cache must get in when alone.
        let entering = request.phase == Phase::Waiting && !self.plan.rows.is_empty();
        let spare = if entering { self.config.watermark_blocks() } else { 0 };
        let needed = blocks_for(request.tokens()) - held;
        if needed > 0 && !self.take_blocks(candidate, needed, spare, left) {
            self.pass_over(slot, left);
            return;
        }
        self.choose(candidate, len);
        left.seats -= 1;
        left.rows -= len;
    }

    /// Puts the candidate into the plan with its next `len` tokens.
    fn choose(&mut self, candidate: Ranked, len: u32) {
        let slot = candidate.slot;
        match self.requests[slot].phase {
            Phase::Paused => self.paused.remove(slot),
            Phase::Waiting => self.waiting.remove(slot),
            Phase::Running | Phase::Free => {}
        }
        let request = &mut self.requests[slot];
        let start = request.computed;
        let row = PlanRow { slot, start, len, sample: len == request.uncomputed() };
        request.phase = Phase::Running;
        request.started = true;
        request.planned = true;
        request.passed_over = 0;
        self.plan.recomputed_tokens += len.min(request.computed_max.saturating_sub(start));
        self.plan.rows.push(row);
        self.chosen.push(candidate);
        self.policy.on_scheduled(request, row);
    }

    /// Notes that a request found no blocks, and whether others may go ahead of it.
    fn pass_over(&mut self, slot: Slot, left: &mut Left) {
        let (patience, hold) = (self.config.max_passed_over, self.config.max_blocked);
        let request = &mut self.requests[slot];
        request.passed_over += 1;
        let barrier = request.passed_over > patience;
        if request.passed_over >= patience + hold {
            request.passed_over = 0;
        }
        left.passed += 1;
        if barrier || self.policy.strict_order() || left.passed >= self.config.max_lookahead {
            left.open = false;
        }
    }

    /// Gives the candidate `needed` blocks so that `spare` stay free, evicting for them if it must.
    /// False, and nothing done, if there are not so many to be had.
    fn take_blocks(&mut self, to: Ranked, needed: u32, spare: u32, left: &mut Left) -> bool {
        if !self.can_free(needed + spare, to.key, left) {
            return false;
        }
        while self.blocks.free() < needed + spare {
            self.evict_worst(to.key, left);
        }
        self.blocks.grow(to.slot, needed);
        true
    }

    /// Whether `wanted` blocks are free, or would be without the residents ranked behind `key`.
    /// Looks at no more than `wanted` of them, as each holds at least one.
    fn can_free(&self, wanted: u32, key: Key, left: &Left) -> bool {
        let mut missing = wanted.saturating_sub(self.blocks.free());
        let mut paused = self.paused.last();
        while let Some(victim) = paused.filter(|victim| missing > 0 && victim.key > key) {
            missing = missing.saturating_sub(self.blocks.held(victim.slot));
            paused = self.paused.prev(victim.slot);
        }
        for victim in self.running[left.running_first..left.running_end].iter().rev() {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(self.blocks.held(victim.slot));
        }
        missing == 0
    }

    /// Frees the blocks of the worst resident ranked behind `key`: a paused one, else a running.
    fn evict_worst(&mut self, key: Key, left: &mut Left) {
        let victim = match self.paused.last().filter(|last| last.key > key) {
            Some(last) => {
                // The worst paused may be the very next one.
                left.paused = left.paused.filter(|&next| next != last);
                self.paused.remove(last.slot);
                last.slot
            }
            None => {
                left.running_end -= 1;
                self.running[left.running_end].slot
            }
        };
        self.blocks.release(victim);
        let request = &mut self.requests[victim];
        request.phase = Phase::Waiting;
        request.computed = 0;
        request.evictions += 1;
        self.plan.evicted.push(victim);
    }
}

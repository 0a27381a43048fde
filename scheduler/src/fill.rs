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
//! * **Swapping.** A victim may leave for the host (`swap`), and its blocks are free only when it has
//!   left. Whoever they were taken for is passed over until then, and *reserves* what it needs: those
//!   behind it get only what is free beyond that, so what comes free reaches it. Likewise where blocks
//!   behind it that are being filled would be enough, as these are to be had when they are full. A
//!   swapped request comes back, at its rank, into blocks for all its tokens that leave the low-water
//!   mark free; it takes no row, but a seat is kept for it.
//!
//! Why every request finishes once arrivals cease. Take the first in the order of those not on their
//! way. It always has a seat and a row to take, and whatever it lacks in blocks, as all others are
//! behind it and it fits alone, is free, leaving, being filled, or to be taken. In the last three
//! cases it has reserved all that is free, so until it has its blocks nobody gets any, and nobody
//! begins to return. Each transfer ends. So after finitely many steps nothing is being filled, what
//! it may take is leaving or free, then free, and it takes it; swapped, it returns by a transfer that
//! ends, with blocks that hold its tokens. (Its seat: one is kept for each that is returning, and
//! those end as well.) None but one ranked before it takes its blocks on the way: `reclaim` spares
//! whoever ranks before a row of the plan. So the first gets on by a token in finitely many steps,
//! and an endless run in which none finishes would have to change the first for ever. But an
//! unpinned key changes only by a token generated or a prediction accepted; there are finitely many
//! of the former, and at most one of the latter for each (`RequestState::predict`). A pinned first
//! gives way only to one pinned earlier that has just come back, and arrivals do not go back for ever.

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
    /// Blocks, free or coming free, that are spoken for by requests passed over.
    reserved: u32,
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
    /// Fills the cleared plan from the three ordered sets. Returns the blocks that are spoken for.
    pub(crate) fn fill(&mut self) -> u32 {
        let mut left = Left {
            seats: self.config.max_running,
            rows: self.config.token_budget,
            running_first: 0,
            running_end: self.running.len(),
            paused: self.paused.first(),
            waiting: self.waiting.first(),
            open: true,
            passed: 0,
            reserved: 0,
        };
        while left.seats > 0 {
            let Some(candidate) = self.next_ranked(&mut left) else { break };
            self.consider(candidate, &mut left);
        }
        left.reserved
    }

    /// The best request not looked at yet: a merge of the three sets.
    fn next_ranked(&self, left: &mut Left) -> Option<Ranked> {
        let running = self.running[..left.running_end].get(left.running_first).copied();
        let idle = if left.open { sooner(left.paused, left.waiting) } else { None };
        let best = sooner(running, idle)?;
        match self.requests[best.slot].phase {
            Phase::Running => left.running_first += 1,
            Phase::Paused => left.paused = self.paused.next(best.slot),
            _ => left.waiting = self.waiting.next(best.slot),
        }
        Some(best)
    }

    /// Gives the candidate a row if it fits; or lets it come back, if it is swapped.
    fn consider(&mut self, candidate: Ranked, left: &mut Left) {
        let slot = candidate.slot;
        let held = self.blocks.held(slot);
        let request = &self.requests[slot];
        let len = request.uncomputed().min(left.rows_for_next());
        if len == 0 {
            left.open = false;
            return;
        }
        let swapped = request.phase == Phase::Swapped;
        if swapped && left.seats as usize <= self.transit.returning().len() {
            return;
        }
        let needed = blocks_for(request.tokens()) - held;
        let spare = self.spare(request.phase);
        if needed > 0 && !self.take_blocks(candidate, needed, spare, left) {
            self.pass_over(slot, left);
            return;
        }
        if swapped {
            self.waiting.remove(slot);
            self.come_back(slot);
            return;
        }
        self.choose(candidate, len);
        left.seats -= 1;
        left.rows -= len;
    }

    /// Blocks that stay free when a request of this phase takes some. One that comes back leaves as
    /// much as keeps others from leaving: or two would change places at every step.
    fn spare(&self, phase: Phase) -> u32 {
        // Waived for the first: a request as large as the cache must get in when alone.
        if self.plan.rows.is_empty() && self.plan.swap_in.is_empty() {
            return 0;
        }
        match phase {
            Phase::Waiting => self.config.watermark_blocks(),
            Phase::Swapped => self.low_water(self.running.len()),
            _ => 0,
        }
    }

    /// Puts the candidate into the plan with its next `len` tokens.
    fn choose(&mut self, candidate: Ranked, len: u32) {
        let slot = candidate.slot;
        match self.requests[slot].phase {
            Phase::Paused => self.paused.remove(slot),
            Phase::Waiting => self.waiting.remove(slot),
            _ => {}
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

    /// Gives the candidate `needed` blocks so that `spare` stay free, dislodging others for them if
    /// it must. False if there are not so many to be had at all, or not yet; then they are reserved.
    fn take_blocks(&mut self, to: Ranked, needed: u32, spare: u32, left: &mut Left) -> bool {
        let wanted = needed + spare + left.reserved;
        let missing = self.cannot_free(wanted, to.key, left);
        if missing > 0 {
            if missing <= self.returning_behind(to.key) {
                left.reserved += needed + spare;
            }
            return false;
        }
        while self.blocks_to_come() < wanted {
            self.dislodge_worst(to.key, left);
        }
        if self.blocks.free() < wanted {
            left.reserved += needed + spare;
            return false;
        }
        self.blocks.grow(to.slot, needed);
        true
    }

    /// How many of `wanted` blocks are neither free, nor about to be, nor would be without the
    /// residents ranked behind `key`. Looks at no more than `wanted` of them, as each holds at
    /// least one.
    fn cannot_free(&self, wanted: u32, key: Key, left: &Left) -> u32 {
        let mut missing = wanted.saturating_sub(self.blocks_to_come());
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
        missing
    }

    /// Blocks being filled for requests ranked behind `key`, or for finished ones.
    fn returning_behind(&self, key: Key) -> u32 {
        let returning = self.transit.returning().iter().copied();
        let behind = returning.filter(|&slot| {
            let request = &self.requests[slot];
            request.ended || self.policy.key(request) > key
        });
        behind.map(|slot| self.blocks.held(slot)).sum()
    }

    /// Takes the blocks of the worst resident ranked behind `key`, a paused one, else a running:
    /// they are free when it has left, or at once if it is to be computed again.
    fn dislodge_worst(&mut self, key: Key, left: &mut Left) {
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
        if self.leave(victim) {
            return;
        }
        self.blocks.release(victim);
        let request = &mut self.requests[victim];
        request.phase = Phase::Waiting;
        request.computed = 0;
        request.evictions += 1;
        self.plan.evicted.push(victim);
    }
}

//! Filling a plan: one walk over all requests in rank order.
//!
//! Each request in turn takes a place (of `max_running`), rows (of `token_budget`) and KV blocks:
//!
//! * **Rows.** A decode takes one, a prefill as many as are left, except one for each running
//!   request behind it. So a long prompt, however well it ranks, does not stall the decodes (in a
//!   memory-bound step they cost next to nothing), and no running request is preempted for lack of
//!   a row.
//! * **Blocks.** A request that enters without KV takes the blocks of all its present tokens at
//!   once, so that two half-done prefills cannot deadlock, and leaves the watermark free. A request
//!   short of blocks takes them from residents ranked *behind* it: from the paused first, worst
//!   first; then from the running, worst first. Residents ranked before it keep theirs: an eviction
//!   never serves a worse request. Nothing is evicted unless that frees enough, and while the brake
//!   holds (`brake`) only the first of the plan evicts.
//! * **Reserve.** With [`Reserve::Mean`](crate::Reserve) or `P90` a request enters from the queue
//!   only into free blocks, and only if those left hold the predicted growth of the running
//!   requests and its own: it evicts no request, and is skipped until others have finished. A
//!   resident request, and the first of the plan, need their present blocks alone.
//! * **Skipping.** A request that finds no blocks even so is skipped, and those behind it may
//!   enter; `max_skipped_steps`, `max_barrier_steps` and `max_lookahead` bound that from both
//!   sides.
//! * **Swapping.** A victim may be swapped out to the host (`swap`); its blocks are free only when
//!   its transfer has ended. The request that needs them is skipped until then, and is *promised*
//!   what it needs: those behind it get only what is free beyond that. The same holds where
//!   blocks that are being filled for requests behind it would be enough, as they can be taken once
//!   they are full. A swapped request, or one whose prefix the host has, is swapped in at its rank
//!   into blocks for all its tokens, if the low-water mark stays free; it takes no row, but a place
//!   is kept for it.
//!
//! Why every request finishes once arrivals cease. Consider the first in the order of the requests
//! that are in no transfer. There is always a place and a row for it. The plan is empty when it is
//! considered, so neither the watermark nor the reserve applies to it. All others are behind it and
//! it fits alone, so every block it lacks is free, held by a request that is swapping out, being
//! filled by one that is swapping in, or held by a resident it may evict. In the last three cases
//! all free blocks are promised to it: until it has its blocks, no other request gets any, and none
//! begins to swap in. Each transfer ends. So after finitely many steps nothing is being filled,
//! what it may take is swapping out or free, then free, and it takes it; if its KV is on the host,
//! it returns by a transfer that ends, with blocks that hold its tokens. (One place is kept for
//! each request that is swapping in, and those transfers end as well.) Only a request ranked before
//! it takes its blocks in between: `reclaim` spares every request that ranks before a row of the
//! plan. So the first generates a token in finitely many steps, and in an endless run in which no
//! request finishes the first would have to change infinitely often. But an unpinned key changes
//! only by a token generated or a prediction accepted; the former are finitely many, the latter at
//! most one for each of the former (`RequestState::predict`). A pinned first is replaced only by
//! one that was pinned earlier and has just returned, and each request has finitely many earlier
//! arrivals.
//!
//! A policy whose keys change in other ways must keep those changes finite while no token comes. A
//! starved request is promoted once before its next token, and demoted only with a token (`ltr`,
//! `mlfq`): a demotion within a prefill could be evicted and recomputed in a cycle. Where entering
//! the batch pins a request for a slice or a window (`isrtf`, `rr`, `rr-sjf`), the first of the
//! pinned computes rows in every step, and only a request that enters and ranks before it, by
//! values that tokens alone change, takes its place: finitely often.

mod growth;
mod prefix;
mod victims;

use crate::decision::Action;
use crate::key::Ranked;
use crate::limits::{BLOCK_TOKENS, blocks_for};
use crate::plan::PlanRow;
use crate::prefill_limit::{MIN_CHUNK_TOKENS, PrefillLimit};
use crate::request::{Phase, RequestIdx, RequestState};
use crate::reserve::Reserve;
use crate::scheduler::Scheduler;

/// Result of a walk.
pub(crate) struct Filled {
    /// Blocks, free or soon free, that are promised to skipped requests.
    pub(crate) promised: u32,
    /// Tokens of the plan.
    pub(crate) tokens: u32,
    /// Running requests that stay in the batch.
    pub(crate) kept: usize,
    /// Running requests that the walk met: the first ones in rank order.
    pub(crate) visited: usize,
    /// The last request that entered the batch.
    pub(crate) entered: Option<RequestIdx>,
}

/// One walk: the resources left in the step, and the part of each ordered set not visited yet.
pub(crate) struct Fill<'a> {
    scheduler: &'a mut Scheduler,
    /// Places left of `max_running`.
    places: u32,
    /// Rows left of `token_budget`.
    rows: u32,
    /// Time left for prefill chunks; `None` without a limit, and where no request decodes.
    prefill: Option<PrefillLimit>,
    /// True after the first prefill chunk.
    prefills: bool,
    /// Running requests that stay in the batch.
    kept: usize,
    /// Running requests not visited yet: `scheduler.running[running_first..running_end]`. The end
    /// moves down when the worst of the running is evicted.
    running_first: usize,
    running_end: usize,
    /// The best paused request not visited yet.
    paused: Option<Ranked>,
    /// The best waiting request not visited yet.
    waiting: Option<Ranked>,
    /// True while requests outside the batch may enter it.
    admits: bool,
    /// Requests that may still enter the batch in this walk.
    entries: u32,
    /// The last request that entered the batch.
    entered: Option<RequestIdx>,
    /// Requests skipped in this walk.
    skipped: u32,
    /// Blocks, free or soon free, that are promised to skipped requests.
    promised: u32,
    /// Blocks of the predicted growth of the running requests, those that entered included.
    growth: u32,
}

impl Fill<'_> {
    /// A walk over the three ordered sets of `scheduler`, whose plan is cleared.
    pub(crate) fn new(scheduler: &mut Scheduler) -> Fill<'_> {
        Fill {
            places: scheduler.config.max_running,
            rows: scheduler.config.token_budget,
            prefill: scheduler.prefill_limit.filter(|_| scheduler.decodes()),
            prefills: false,
            kept: 0,
            running_first: 0,
            running_end: scheduler.running.len(),
            paused: scheduler.paused.first(),
            waiting: scheduler.waiting.first(),
            admits: true,
            entries: scheduler.policy.max_entries(),
            entered: None,
            skipped: 0,
            promised: 0,
            growth: scheduler.predicted_growth(),
            scheduler,
        }
    }

    /// Fills the plan.
    pub(crate) fn run(mut self) -> Filled {
        loop {
            self.choose_decodes();
            if self.places == 0 {
                break;
            }
            let Some(candidate) = self.next_ranked() else { break };
            self.consider(candidate);
        }
        Filled {
            promised: self.promised,
            tokens: self.scheduler.config.token_budget - self.rows,
            kept: self.kept,
            visited: self.running_first,
            entered: self.entered,
        }
    }

    /// Chooses the next running requests as long as they precede all others and decode into a block
    /// that they hold, for which nothing else is to be decided: most rows of most steps.
    fn choose_decodes(&mut self) {
        let idle = if self.admits { better(self.paused, self.waiting) } else { None };
        let end = self.running_end.min(self.running_first + self.places as usize);
        let Scheduler { running, requests, blocks, plan, chosen, .. } = &mut *self.scheduler;
        let next = &running[self.running_first..end];
        let first = idle.map_or(next.len(), |idle| next.partition_point(|own| own.key < idle.key));
        let mut count = 0;
        for ranked in &next[..first] {
            let request = &mut requests[ranked.idx];
            let tokens = request.tokens();
            if request.computed + 1 != tokens || blocks_for(tokens) > blocks.held(ranked.idx) {
                break;
            }
            request.planned = true;
            request.skipped_steps = 0;
            let start = request.computed;
            plan.recomputed_tokens += (start < request.computed_max) as u32;
            plan.rows.push(PlanRow { idx: ranked.idx, start, len: 1, sample: true });
            count += 1;
        }
        chosen.extend_from_slice(&next[..count]);
        self.running_first += count;
        self.kept += count;
        self.places -= count as u32;
        self.rows -= count as u32;
    }

    /// The best request not visited yet: a merge of the three sets.
    fn next_ranked(&mut self) -> Option<Ranked> {
        let scheduler = &*self.scheduler;
        let running = scheduler.running[..self.running_end].get(self.running_first).copied();
        let idle = if self.admits { better(self.paused, self.waiting) } else { None };
        let best = better(running, idle)?;
        match scheduler.requests[best.idx].phase {
            Phase::Running => self.running_first += 1,
            Phase::Paused => self.paused = scheduler.paused.next(best.idx),
            _ => self.waiting = scheduler.waiting.next(best.idx),
        }
        Some(best)
    }

    /// Adds a row of the candidate to the plan if it fits; a swapped candidate is swapped in
    /// instead.
    fn consider(&mut self, candidate: Ranked) {
        let idx = candidate.idx;
        let request = &self.scheduler.requests[idx];
        let (waits, swapped) = (request.phase == Phase::Waiting, request.phase == Phase::Swapped);
        let cached = self.scheduler.cached_blocks(idx);
        let on_host = if waits { self.scheduler.blocks_on_host(idx, cached) } else { 0 };
        let returns = swapped || on_host > 0;
        let start = request.computed.max(cached * BLOCK_TOKENS);
        let uncomputed = request.tokens() - start;
        let len = uncomputed.min(self.rows_for_next());
        if len == 0 {
            self.admits = false;
            return;
        }
        let len = if returns { len } else { len.min(self.prefill_rows(request, start)) };
        if len == 0 || waits && !returns && self.is_being_computed(idx, cached) {
            self.pass();
            return;
        }
        if returns && self.places as usize <= self.scheduler.swap_state.swapping_in().len() {
            if waits {
                self.pass();
            }
            return;
        }
        // Held before others are evicted for it, who may hold them too.
        let Scheduler { blocks, hashes, swap_state, .. } = &mut *self.scheduler;
        blocks.share(idx, hashes.first(idx, cached));
        swap_state.host.share(idx, hashes.first(idx, on_host));
        let request = &self.scheduler.requests[idx];
        let needed = blocks_for(request.tokens()) - self.scheduler.blocks.held(idx);
        let spare = self.spare(request, returns);
        let fits = needed == 0
            || self.can_grow(request, needed, spare) && self.take_blocks(candidate, needed, spare);
        if !fits {
            if waits {
                self.scheduler.swap_state.host.release(idx);
            }
            if waits || swapped {
                self.scheduler.blocks.release(idx);
            }
            self.skip(idx);
            return;
        }
        if returns {
            self.growth += self.scheduler.config.reserve.growth(&self.scheduler.requests[idx]);
            self.scheduler.waiting.remove(idx);
            self.scheduler.swap_in(idx, cached);
            self.scheduler.decide(Action::SwappedIn, idx, None);
            return;
        }
        self.choose(candidate, start, len);
    }

    /// Rows the next request may take: one stays for each running request behind it that can still
    /// find a place. Kept by induction: `rows >= min(running behind, places)`, as the configuration
    /// has `token_budget >= max_running`; so a running request always finds its row.
    fn rows_for_next(&self) -> u32 {
        let running_behind = (self.running_end - self.running_first) as u32;
        self.rows - self.rows.min(running_behind.min(self.places - 1))
    }

    /// Rows that the prefill limit leaves to `request` from token `start` on; any number to a
    /// decode.
    fn prefill_rows(&self, request: &RequestState, start: u32) -> u32 {
        let uncomputed = request.tokens() - start;
        let Some(limit) = self.prefill.filter(|_| uncomputed > 1) else {
            return u32::MAX;
        };
        let rows = limit.tokens(start);
        if !self.prefills {
            return rows.max(MIN_CHUNK_TOKENS);
        }
        match request.phase {
            Phase::Running => rows.max(1),
            _ if rows >= MIN_CHUNK_TOKENS.min(uncomputed) => rows,
            _ => 0,
        }
    }

    /// Blocks that stay free when `request` takes some. One that `returns` from the host leaves the
    /// low-water mark free, below which others are swapped out: otherwise two requests could
    /// replace each other at every step.
    fn spare(&self, request: &RequestState, returns: bool) -> u32 {
        // Waived for the first: a request as large as the cache must get in when alone.
        if self.is_first() {
            return 0;
        }
        let scheduler = &*self.scheduler;
        match request.phase {
            _ if returns => scheduler.low_water(scheduler.running.len()),
            Phase::Waiting => scheduler.config.watermark_blocks(),
            _ => 0,
        }
    }

    /// True until a request is in the plan.
    fn is_first(&self) -> bool {
        self.scheduler.plan.rows.is_empty() && self.scheduler.plan.swap_in.is_empty()
    }

    /// True if `request` leaves free blocks for the predicted growth of the running requests and
    /// its own. Residents keep growing into whatever is free.
    fn can_grow(&self, request: &RequestState, needed: u32, spare: u32) -> bool {
        let reserve = self.scheduler.config.reserve;
        if reserve == Reserve::None || request.resident() || self.is_first() {
            return true;
        }
        let growth = self.growth + reserve.growth(request);
        self.scheduler.blocks.free() >= needed + spare.max(growth) + self.promised
    }

    /// Puts the candidate into the plan with `len` tokens from `start` on. Those before have KV, of
    /// shared blocks where it enters.
    fn choose(&mut self, candidate: Ranked, start: u32, len: u32) {
        let scheduler = &mut *self.scheduler;
        let idx = candidate.idx;
        let entry = match scheduler.requests[idx].phase {
            Phase::Paused => {
                scheduler.paused.remove(idx);
                Some(Action::Resumed)
            }
            Phase::Waiting => {
                scheduler.waiting.remove(idx);
                Some(Action::Admitted)
            }
            _ => None,
        };
        if let Some(action) = entry {
            scheduler.decide(action, idx, None);
            scheduler.requests.set_phase(idx, Phase::Running);
            self.growth += scheduler.config.reserve.growth(&scheduler.requests[idx]);
            self.entered = Some(idx);
            self.entries -= 1;
            self.admits &= self.entries > 0;
        } else {
            self.kept += 1;
        }
        let request = &mut scheduler.requests[idx];
        if !request.started && scheduler.config.cached_blocks > 0 {
            request.cached_tokens = start;
            scheduler.plan.prompt_hits += start;
        }
        if start > request.computed {
            scheduler.plan.cached_tokens += start;
            request.computed = start;
        }
        let row = PlanRow { idx, start, len, sample: len == request.uncomputed() };
        if request.uncomputed() > 1 {
            self.prefill = self.prefill.map(|limit| limit.after(start, len));
            self.prefills = true;
        }
        request.started = true;
        request.planned = true;
        request.skipped_steps = 0;
        scheduler.plan.recomputed_tokens += len.min(request.computed_max.saturating_sub(start));
        scheduler.plan.rows.push(row);
        scheduler.chosen.push(candidate);
        self.places -= 1;
        self.rows -= len;
    }

    /// Counts a request that found no blocks, and decides whether others may enter before it.
    fn skip(&mut self, idx: RequestIdx) {
        let config = &self.scheduler.config;
        let request = &mut self.scheduler.requests[idx];
        request.skipped_steps += 1;
        let barrier = request.skipped_steps > config.max_skipped_steps;
        if request.skipped_steps >= config.max_skipped_steps + config.max_barrier_steps {
            request.skipped_steps = 0;
        }
        self.admits &= !barrier;
        self.pass();
    }

    /// Counts a request that finds no place in this step, and decides whether others may enter
    /// before it.
    fn pass(&mut self) {
        self.skipped += 1;
        let strict = self.scheduler.policy.strict_order();
        if strict || self.skipped >= self.scheduler.config.max_lookahead {
            self.admits = false;
        }
    }
}

/// The better ranked of two.
fn better(a: Option<Ranked>, b: Option<Ranked>) -> Option<Ranked> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if a.key < b.key { a } else { b }),
        _ => a.or(b),
    }
}

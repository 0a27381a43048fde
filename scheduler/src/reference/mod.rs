//! Reference of [`crate::Scheduler`]: sorts all requests at every step, recounts all blocks.
//!
//! It shares with the scheduler only the request's state and the policies. `world` drives both
//! through the same events and compares their plans.

mod blocks;
mod room;
mod swap;
mod world;

use std::collections::BTreeMap;

use self::blocks::RefBlocks;
use crate::brake::Brake;
use crate::limits::blocks_for;
use crate::{
    BLOCK_TOKENS, BlockHash, Key, MIN_CHUNK_TOKENS, Phase, Plan, PlanRow, Policy, PrefillLimit,
    RequestIdx, RequestState, Reserve, SchedulerConfig,
};

struct Reference {
    config: SchedulerConfig,
    policy: Box<dyn Policy>,
    requests: BTreeMap<RequestIdx, RequestState>,
    /// Finished requests whose transfers have not ended.
    ending: BTreeMap<RequestIdx, RequestState>,
    blocks: RefBlocks,
    host: RefBlocks,
    /// Hashes of each request's full blocks; none where blocks are not known by them.
    hashes: BTreeMap<RequestIdx, Vec<BlockHash>>,
    /// The first block of each transfer.
    copied_from: BTreeMap<RequestIdx, u32>,
    limit: Option<PrefillLimit>,
    /// False: first in, first out.
    trusts_predictions: bool,
    brake: Brake,
    /// The limit's time that the plan has not given away yet.
    left: Option<PrefillLimit>,
    plan: Plan,
    /// Times that a request was skipped for the growth of the batch alone.
    held_back: usize,
    /// Times that a request was skipped for the brake alone.
    braked: usize,
}

impl Reference {
    fn held(&self, idx: RequestIdx) -> u32 {
        self.blocks.held(idx)
    }

    fn free(&self) -> u32 {
        self.blocks.free()
    }

    /// The hashes of the request's first blocks, `max` at the most.
    fn hashes(&self, idx: RequestIdx, max: u32) -> Vec<BlockHash> {
        self.hashes.get(&idx).into_iter().flatten().take(max as usize).copied().collect()
    }

    /// Blocks that `request` finds by hash if the device has none, and the first token
    /// to compute.
    fn begin_at(&self, request: &RequestState) -> (u32, u32) {
        let max = match request.phase {
            Phase::Waiting => request.max_cached_blocks(),
            Phase::Swapped => request.computed / BLOCK_TOKENS,
            _ => return (0, request.computed),
        };
        let cached = self.blocks.find(&self.hashes(request.idx, max));
        (cached, (cached * BLOCK_TOKENS).max(request.computed))
    }

    /// Lets go of the blocks that a request found by hash, and cannot enter with. Returns those
    /// that no other held.
    fn give_back(&mut self, idx: RequestIdx) -> u32 {
        if self.requests[&idx].resident() {
            return 0;
        }
        let alone = self.blocks.held_only_by(&[idx]);
        self.blocks.truncate(idx, 0);
        if self.requests[&idx].phase == Phase::Waiting {
            self.host.truncate(idx, 0);
        }
        alone
    }

    fn begin(&mut self, step: u64, now_s: f64) {
        self.policy.on_step(step, now_s);
        self.policy.on_blocks(self.config.num_blocks - self.free(), self.config.num_blocks);
        while self.policy.next_changed().is_some() {}
        self.plan = Plan { step, ..Plan::default() };
        self.left = self.limit.filter(|_| self.decodes());
        self.brake.on_step(now_s);
    }

    fn plan(&mut self, step: u64, now_s: f64) {
        self.begin(step, now_s);
        let order = self.order();
        let ran = order.iter().filter(|entry| entry.2 == Phase::Running).count() as u32;
        let (mut rows, mut open) = (self.config.token_budget, true);
        let (mut passed, mut reserved, mut entered) = (0, 0, 0);
        for (rank, &(_, idx, phase)) in order.iter().enumerate() {
            let places = self.config.max_running - self.plan.rows.len() as u32;
            let running = phase == Phase::Running;
            if places == 0 || self.is_gone(idx) || !(running || open) {
                continue;
            }
            let victims = self.victims(&order[rank + 1..]);
            let runs = |idx: &&RequestIdx| self.requests[idx].phase == Phase::Running;
            let running_behind = victims.iter().filter(runs).count() as u32;
            let request = &self.requests[&idx];
            let rows_left = rows - rows.min(running_behind.min(places - 1));
            let (cached, start) = self.begin_at(request);
            let uncomputed = request.tokens() - start;
            let on_host = self.blocks_on_host(request, cached);
            let returns = phase == Phase::Swapped || on_host > 0;
            let chunk = if returns { u32::MAX } else { self.prefill_rows(request, start) };
            let len = uncomputed.min(rows_left).min(chunk);
            if len == 0 || !returns && self.is_being_computed(idx, cached) {
                assert!(!running, "a running request is never short of a row");
                passed += 1;
                open &= rows_left > 0 && self.goes_on(passed);
                continue;
            }
            if returns && places <= self.swapping_in().count() as u32 {
                if phase == Phase::Waiting {
                    passed += 1;
                    open &= self.goes_on(passed);
                }
                continue;
            }
            let spare = self.spare(if returns { Phase::Swapped } else { phase }, ran);
            let blocks = blocks_for(request.tokens());
            self.blocks.share(idx, &self.hashes(idx, cached));
            self.host.share(idx, &self.hashes(idx, on_host));
            let needed = blocks - self.held(idx);
            let (fits, promised) =
                self.make_room(idx, needed, (spare, reserved), &order[rank + 1..]);
            if !fits {
                let alone = self.give_back(idx);
                passed += 1;
                open &= !self.skip(idx) && passed < self.config.max_lookahead;
                reserved += if promised { needed + spare + alone } else { 0 };
                continue;
            }
            self.blocks.grow(idx, needed);
            if returns {
                self.swap_in(idx, cached, on_host);
                continue;
            }
            self.choose(idx, start, len);
            rows -= len;
            entered += !running as u32;
            open &= entered < self.policy.max_entries();
        }
        self.brake.on_planned(self.config.token_budget - rows, self.plan.recomputed_tokens);
        self.requeue_preempted(&order);
        self.reclaim(&order, reserved);
    }

    /// True for a victim of this plan, and for a request in transfer.
    fn is_gone(&self, idx: RequestIdx) -> bool {
        let Plan { evicted, swap_out, .. } = &self.plan;
        evicted.contains(&idx) || swap_out.contains(&idx) || self.requests[&idx].moving()
    }

    /// Residents among the requests `behind`, in the order of eviction: paused from the worst up,
    /// then running likewise.
    fn victims(&self, behind: &[(Key, RequestIdx, Phase)]) -> Vec<RequestIdx> {
        let of = |phase| {
            let worst_up = behind.iter().rev().filter(move |entry| entry.2 == phase);
            worst_up.map(|entry| entry.1).filter(|&idx| !self.is_gone(idx))
        };
        of(Phase::Paused).chain(of(Phase::Running)).collect()
    }

    fn reclaimable(&self, victims: &[RequestIdx]) -> u32 {
        self.blocks.held_only_by(victims)
    }

    /// The victims; none while the brake holds, but for the first of the plan.
    fn brake(&mut self, victims: Vec<RequestIdx>, missing: u32) -> Vec<RequestIdx> {
        let first = self.plan.rows.is_empty() && self.plan.swap_in.is_empty();
        if first || !self.brake.holds() {
            return victims;
        }
        self.braked += (1..=self.reclaimable(&victims)).contains(&missing) as usize;
        Vec::new()
    }

    /// All requests, best rank first.
    fn order(&self) -> Vec<(Key, RequestIdx, Phase)> {
        let mut order: Vec<(Key, RequestIdx, Phase)> = self
            .requests
            .values()
            .map(|request| (self.key(request), request.idx, request.phase))
            .collect();
        order.sort_by_key(|entry| entry.0);
        order
    }

    fn key(&self, request: &RequestState) -> Key {
        let key = self.policy.key(request);
        let by_value = [Key::EXPRESS, Key::OPEN].contains(&key.class());
        let by_arrival = Key::new(Key::OVERDUE, 0.0, request.seq);
        let key = if by_value && !self.trusts_predictions { by_arrival } else { key };
        key.with_priority(request.priority)
    }

    fn decodes(&self) -> bool {
        let decodes = |request: &&RequestState| request.generated > 0 && request.uncomputed() == 1;
        self.requests.values().filter(decodes).any(|request| request.phase == Phase::Running)
    }

    /// Most rows under the limit: for a prefill at least 16 if it is the first, else 1 if it runs.
    fn prefill_rows(&self, request: &RequestState, start: u32) -> u32 {
        let uncomputed = request.tokens() - start;
        let Some(limit) = self.left.filter(|_| uncomputed > 1) else { return u32::MAX };
        let is_prefill = |row: &PlanRow| self.requests[&row.idx].tokens() > row.start + 1;
        let is_first = !self.plan.rows.iter().any(is_prefill);
        let rows = limit.tokens(start);
        match (is_first, request.phase) {
            (true, _) => rows.max(MIN_CHUNK_TOKENS),
            (false, Phase::Running) => rows.max(1),
            (false, _) if rows >= uncomputed || rows >= MIN_CHUNK_TOKENS => rows,
            (false, _) => 0,
        }
    }

    /// Blocks that stay free when a request of this phase takes some; `ran` requests ran before.
    fn spare(&self, phase: Phase, ran: u32) -> u32 {
        let first = self.plan.rows.is_empty() && self.plan.swap_in.is_empty();
        match phase {
            Phase::Waiting if !first => self.config.watermark_blocks(),
            Phase::Swapped if !first => self.low_water(ran),
            _ => 0,
        }
    }

    /// Blocks that the running requests and `idx` will hold at their predicted ends, beyond those
    /// for their present tokens.
    fn growth(&self, idx: RequestIdx) -> u32 {
        let of = |request: &RequestState| {
            let remaining = match self.config.reserve {
                Reserve::None => Some(0.0),
                Reserve::Mean => request.remaining(),
                Reserve::P90 => request.remaining_p90(),
            };
            let left = remaining.unwrap_or((request.max_tokens - request.generated) as f32);
            let end = request.tokens() + left.ceil() as u32;
            end.div_ceil(BLOCK_TOKENS) - request.tokens().div_ceil(BLOCK_TOKENS)
        };
        let enters = |phase| matches!(phase, Phase::Running | Phase::SwappingIn);
        let grows = |request: &&RequestState| enters(request.phase) || request.idx == idx;
        self.requests.values().filter(grows).map(of).sum()
    }

    /// True if `idx` may take `needed` blocks: of the free ones, with `kept` left, where it comes
    /// from the queue and another precedes it in the plan.
    fn grows(&mut self, idx: RequestIdx, needed: u32, kept: u32) -> bool {
        let queued = matches!(self.requests[&idx].phase, Phase::Waiting | Phase::Swapped);
        let first = self.plan.rows.is_empty() && self.plan.swap_in.is_empty();
        let bound = self.config.reserve != Reserve::None && queued && !first;
        let grows = !bound || self.free() >= needed + kept;
        self.held_back += (!grows && self.free() >= needed) as usize;
        grows
    }

    /// Blocks being filled for requests in `behind` and for finished ones: they can be taken later.
    fn filling(&self, behind: &[(Key, RequestIdx, Phase)]) -> u32 {
        let unfinished = behind.iter().filter(|entry| entry.2 == Phase::SwappingIn);
        let finished = self.ending.values().filter(|request| request.phase == Phase::SwappingIn);
        let all = unfinished.map(|entry| entry.1).chain(finished.map(|request| request.idx));
        all.map(|idx| self.held(idx)).sum()
    }

    fn skip(&mut self, idx: RequestIdx) -> bool {
        let request = self.requests.get_mut(&idx).unwrap();
        request.skipped_steps += 1;
        let barrier = request.skipped_steps > self.config.max_skipped_steps;
        if request.skipped_steps >= self.config.max_skipped_steps + self.config.max_barrier_steps {
            request.skipped_steps = 0;
        }
        barrier || self.policy.strict_order()
    }

    fn evict(&mut self, idx: RequestIdx) {
        if self.swap_out(idx) {
            return;
        }
        self.publish(idx);
        self.blocks.truncate(idx, 0);
        let request = self.requests.get_mut(&idx).unwrap();
        (request.phase, request.computed) = (Phase::Waiting, 0);
        self.plan.evicted.push(idx);
    }

    fn choose(&mut self, idx: RequestIdx, start: u32, len: u32) {
        let request = self.requests.get_mut(&idx).unwrap();
        if !request.started && self.config.cached_blocks > 0 {
            request.cached_tokens = start;
            self.plan.prompt_hits += start;
        }
        if start > request.computed {
            self.plan.cached_tokens += start;
            request.computed = start;
        }
        let sample = start + len == request.tokens();
        if request.uncomputed() > 1 {
            self.left = self.left.map(|limit| limit.after(start, len));
        }
        (request.phase, request.started, request.skipped_steps) = (Phase::Running, true, 0);
        let again = (start..start + len).filter(|&token| token < request.computed_max).count();
        self.plan.recomputed_tokens += again as u32;
        let row = PlanRow { idx, start, len, sample };
        self.plan.rows.push(row);
        self.policy.on_scheduled(request, row);
    }

    fn requeue_preempted(&mut self, order: &[(Key, RequestIdx, Phase)]) {
        for &(_, idx, phase) in order {
            if phase == Phase::Running && self.plan.rows.iter().all(|row| row.idx != idx) {
                self.plan.preempted.push(idx);
                let request = self.requests.get_mut(&idx).unwrap();
                request.preemptions += 1;
                request.slice_tokens = 0;
                if request.phase == Phase::Running {
                    request.phase = Phase::Paused;
                }
                self.policy.on_preempted(request);
            }
        }
    }

    fn advance(&mut self) {
        for row in &self.plan.rows {
            if let Some(request) = self.requests.get_mut(&row.idx) {
                request.advance(self.plan.step, row.len, row.sample);
                self.policy.on_tokens(request, row.sample as u32);
            }
        }
        for row in self.plan.rows.clone() {
            self.publish(row.idx);
        }
    }

    fn accept(&mut self, idx: RequestIdx, tokens: u32) {
        let request = self.requests.get_mut(&idx).unwrap();
        for _ in 0..tokens {
            request.advance(self.plan.step, 1, true);
            self.policy.on_tokens(request, 1);
        }
        self.publish(idx);
    }

    fn publish(&mut self, idx: RequestIdx) {
        let Some(request) = self.requests.get(&idx).filter(|request| request.resident()) else {
            return;
        };
        let hashes = self.hashes(idx, request.computed / BLOCK_TOKENS);
        self.blocks.publish(idx, &hashes);
    }

    /// True if the request has no KV, and a row of the plan computes the block after its first
    /// `cached` ones.
    fn is_being_computed(&self, idx: RequestIdx, cached: u32) -> bool {
        let request = &self.requests[&idx];
        if request.phase != Phase::Waiting || (cached + 1) * BLOCK_TOKENS >= request.tokens() {
            return false;
        }
        let hash = |idx| self.hashes.get(&idx)?.get(cached as usize);
        let mut rows = self.plan.rows.iter().filter(|row| row.start / BLOCK_TOKENS <= cached);
        hash(idx).is_some() && rows.any(|row| hash(row.idx) == hash(idx))
    }
}

//! Goal: the scheduler makes the plans of its reference, keeps the invariants, and starves no
//! request. Method: both receive the same random events (seeded), with adversarial policies, sizes
//! and predictions; after each step the plans must be equal and the invariants hold; at the end
//! arrivals cease, and every request must finish.

mod checks;
mod events;
mod kinds;

use std::collections::BTreeMap;

use self::kinds::{KINDS, kinds};
use super::Reference;
use super::blocks::RefBlocks;
use crate::brake::Brake;
use crate::policies::PolicyKind;
use crate::{
    BLOCK_TOKENS, BlockHash, BlockId, Finished, NewRequest, Phase, Plan, Preemption, RequestId,
    RequestIdx, RequestState, Reserve, Scheduler, SchedulerConfig,
};
use trail_platform::rng::Rng;

/// The scheduler, its reference, and the source of events for both.
struct World {
    rng: Rng,
    kind: PolicyKind,
    fast: Scheduler,
    reference: Reference,
    /// Names given to the blocks of each request.
    hashes: BTreeMap<u64, u64>,
    /// Blocks that are found by hash, from the recorded changes.
    found: BTreeMap<BlockHash, BlockId>,
    step: u64,
    arrivals: u64,
    /// Number of priorities that requests have.
    priorities: Option<u64>,
    seen: Seen,
}

/// Number of events of each kind, as evidence that the random worlds cover them.
#[derive(Default)]
struct Seen {
    preemptions: usize,
    evictions: usize,
    swaps: usize,
    returns: usize,
    finished_on_the_way: usize,
    /// Indices of the plan that belonged to another request at `advance`.
    taken_again: usize,
    /// Plans without rows, because all requests need a transfer to end.
    waits: usize,
    /// Tokens found by hash.
    cached_tokens: usize,
    /// Tokens beyond the first of a step.
    accepted: usize,
    /// Blocks with two holders or more, over all steps.
    shared: usize,
    /// Requests that were waiting and are swapped in.
    host_hits: usize,
    /// Blocks of transfers that the other side has already.
    not_copied: usize,
    /// Hashes by which no block is found any more.
    forgotten: usize,
    /// Tokens found by hash where requests begin only after marked blocks.
    after_marked: usize,
    /// Policies that took over.
    switches: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let max_running = 1 + rng.below(6) as u32;
        let config = SchedulerConfig {
            max_running,
            max_requests: max_running + rng.below(20) as u32,
            token_budget: max_running + rng.below(40) as u32,
            num_blocks: 8 + rng.below(24) as u32,
            max_context: 128,
            watermark: 0.1 * rng.below(4) as f32,
            max_skipped_steps: rng.below(4) as u32,
            max_barrier_steps: 1 + rng.below(4) as u32,
            max_lookahead: 1 + rng.below(4) as u32,
            preemption: [Preemption::Recompute, Preemption::Swap, Preemption::Auto]
                [rng.below(3) as usize],
            host_blocks: rng.below(40) as u32,
            // Longer than the break-even or shorter, with the last block's filling in between.
            block_s: 1.0,
            token_s: 0.125 + 0.01 * rng.below(3) as f64,
            reclaim_steps: rng.below(20) as u32,
            reserve: [Reserve::None, Reserve::Mean, Reserve::P90][rng.below(3) as usize],
            cached_blocks: [0, 3, 64][rng.below(3) as usize],
            marked_blocks: rng.below(4) == 0,
            max_recompute: [0.05, 0.5, 1.0][rng.below(3) as usize],
            refresh_tokens: 1 + rng.below(4) as u32,
        };
        let kind = kinds(&mut rng)[seed as usize % KINDS];
        let mut policy = kind.build();
        policy.reserve(config.max_requests);
        let on_host = if config.cached_blocks > 0 { config.host_blocks } else { 0 };
        let blocks = RefBlocks::new(config.num_blocks, config.cached_blocks);
        let reference = Reference {
            config,
            policy,
            requests: BTreeMap::new(),
            ending: BTreeMap::new(),
            blocks: match config.marked_blocks {
                true => blocks.with_marked_only(),
                false => blocks,
            },
            host: RefBlocks::new(config.host_blocks, on_host),
            hashes: BTreeMap::new(),
            copied_from: BTreeMap::new(),
            limit: None,
            trusts_predictions: true,
            brake: Brake::new(config.max_recompute),
            left: None,
            plan: Plan::default(),
            held_back: 0,
            braked: 0,
        };
        let mut fast = Scheduler::new(config, kind.build()).unwrap();
        fast.record_block_changes();
        let (hashes, found, seen) = (BTreeMap::new(), BTreeMap::new(), Seen::default());
        let priorities = (rng.below(2) == 0).then(|| 2 + rng.below(2));
        World { rng, kind, fast, reference, hashes, found, step: 0, arrivals: 0, priorities, seen }
    }

    fn submit(&mut self) {
        let max_tokens = 1 + self.rng.below(70) as u32;
        let request = NewRequest {
            id: RequestId(self.arrivals),
            prompt_tokens: 1 + self.rng.below(57) as u32,
            max_tokens,
            arrival_s: self.step as f64,
            initial_prediction: (self.rng.below(3) > 0).then(|| self.rng.below(80) as f32),
            true_length: (self.rng.below(4) > 0)
                .then(|| 1 + self.rng.below(max_tokens as u64) as u32),
            // In half of the worlds requests have priorities.
            priority: self.priorities.map_or(0, |count| self.rng.below(count) as i32 - 1),
            ..NewRequest::default()
        };
        let Ok(idx) = self.fast.submit(request) else { return };
        let generation = self.fast.generation(idx);
        let state = RequestState::new(idx, generation, self.arrivals, &request);
        self.reference.hashes.insert(idx, Vec::new());
        self.reference.policy.on_submitted(&state);
        self.reference.requests.insert(idx, state);
        self.arrivals += 1;
        for _ in 0..request.prompt_tokens / BLOCK_TOKENS {
            self.push_block_hash(idx);
        }
    }

    /// Names the request's next block. The prompts of each of three families begin
    /// with the same blocks: as many as the request's number says.
    fn push_block_hash(&mut self, idx: RequestIdx) {
        let id = self.fast.state(idx).id.0;
        let block = self.hashes.entry(id).or_default();
        let (family, shared) = (id % 3, id / 3 % 5);
        let content = if *block < shared { family } else { 3 + id };
        let hash = BlockHash(u128::from(content) << 64 | u128::from(*block) | 1 << 127);
        *block += 1;
        self.fast.push_block_hash(idx, hash);
        let (fast, reference) = (&self.fast, &mut self.reference);
        if reference.config.cached_blocks == 0 {
            return;
        }
        let hashes = reference.hashes.get_mut(&idx).unwrap();
        hashes.push(hash);
        let place = hashes.len() as u32 - 1;
        let request = reference.requests.get_mut(&idx).unwrap();
        let is_new =
            request.phase == Phase::Waiting && !request.started && !reference.config.marked_blocks;
        let goes_on =
            request.cached_tokens / BLOCK_TOKENS == place && place < request.max_cached_blocks();
        if is_new && goes_on && reference.blocks.knows(hash) {
            request.cached_tokens += BLOCK_TOKENS;
        }
        assert_eq!(fast.state(idx).cached_tokens, request.cached_tokens);
    }

    /// Names blocks of outputs, some steps after their tokens are known.
    fn name_outputs(&mut self) {
        let indices: Vec<RequestIdx> = self.reference.requests.keys().copied().collect();
        for idx in indices {
            let request = &self.reference.requests[&idx];
            let full = u64::from(request.tokens() / BLOCK_TOKENS);
            let hashed = self.hashes.get(&request.id.0).copied().unwrap_or(0);
            if hashed < full && self.rng.below(2) == 0 {
                self.push_block_hash(idx);
            }
        }
    }

    fn finish(&mut self, idx: RequestIdx) {
        let want = match self.fast.state(idx).phase {
            Phase::SwappingOut | Phase::SwappingIn => Finished::AfterTransfer,
            _ => Finished::Now,
        };
        assert_eq!(self.fast.finish(idx), want);
        self.seen.finished_on_the_way += (want == Finished::AfterTransfer) as usize;
        self.reference.finish(idx);
    }

    /// Ends some of the transfers in flight, in any order: each with a probability of 1 in `mean`.
    fn end_transfers(&mut self, mean: u64) {
        let all = self.reference.requests.values().chain(self.reference.ending.values());
        let mut moving: Vec<RequestIdx> =
            all.filter(|request| request.moving()).map(|request| request.idx).collect();
        assert_eq!(moving.len(), self.fast.moving());
        while !moving.is_empty() {
            let idx = moving.swap_remove(self.rng.below(moving.len() as u64) as usize);
            if self.rng.below(mean) == 0 {
                assert_eq!(self.fast.transferred(idx), self.reference.transferred(idx));
            }
        }
    }

    fn some_request(&mut self) -> Option<RequestIdx> {
        let live = self.reference.requests.len() as u64;
        (live > 0)
            .then(|| *self.reference.requests.keys().nth(self.rng.below(live) as usize).unwrap())
    }

    /// One step. `busy`: requests arrive and are cancelled.
    fn run_step(&mut self, busy: bool) {
        if busy {
            (0..self.rng.below(3)).for_each(|_| self.submit());
        }
        (0..self.rng.below(8)).for_each(|_| self.predict());
        // From one step to many; or as late as possible: only when no plan has rows.
        let stuck = self.reference.plan.rows.is_empty();
        let mean = match self.reference.config.host_blocks % 4 {
            0 if stuck => 2,
            0 => u64::MAX / 8,
            n => [1, 2, 20][n as usize - 1],
        };
        self.end_transfers(mean);
        self.limit_prefill();
        self.trust();
        self.switch_policy();
        let now_s = 0.25 * self.step as f64;
        let before = self.running();
        self.fast.plan(self.step, now_s);
        self.reference.plan(self.step, now_s);
        let decisions = Vec::new(); // have a check of their own
        assert_eq!(Plan { decisions, ..self.fast.last_plan().clone() }, self.reference.plan);
        self.check();
        self.check_block_changes();
        self.choose_resumable();
        self.check_batch(&before);
        self.check_decisions();
        if busy && self.rng.below(8) == 0 {
            // Cancels between plan and advance, whose indices may be taken again at once.
            for _ in 0..1 + self.rng.below(2) {
                if let Some(idx) = self.some_request() {
                    self.finish(idx);
                }
            }
            let planned = self.fast.last_plan().rows.clone();
            (0..self.rng.below(3)).for_each(|_| self.submit());
            let again = planned.iter().filter(|row| {
                self.reference.requests.contains_key(&row.idx) && !self.fast.state(row.idx).planned
            });
            self.seen.taken_again += again.count();
        }
        self.predict();
        self.end_transfers(4 * mean);
        self.name_outputs();
        self.fast.advance();
        self.reference.advance();
        self.accept();
        for row in self.reference.plan.rows.clone() {
            let Some(request) = self.reference.requests.get(&row.idx) else { continue };
            assert_eq!(self.fast.state(row.idx).tokens(), request.tokens(), "{row:?}");
            let length = request.true_length.unwrap_or(request.max_tokens);
            if request.generated >= length {
                self.finish(row.idx);
            }
        }
        self.step += 1;
    }
}

#[test]
fn plans_equal_the_references_and_every_request_finishes() {
    let (mut all, mut held_back, mut braked) = (Seen::default(), 0, 0);
    let worlds = if cfg!(miri) { KINDS as u64 } else { 130 * KINDS as u64 };
    for seed in 0..worlds {
        let mut world = World::new(seed);
        (0..300).for_each(|_| world.run_step(true));
        // A few thousand steps are enough even where each token is recomputed many times.
        let deadline = world.step + 20_000;
        while world.fast.live() > 0 {
            world.run_step(false);
            assert!(world.step < deadline, "seed {seed}, {}: livelock", world.kind);
        }
        world.end_transfers(1);
        assert_eq!((world.fast.blocks_used(), world.fast.host_blocks_used()), (0, 0));
        assert_eq!(world.fast.plan(world.step, 0.0).rows, []);
        let seen = world.seen;
        all.preemptions += seen.preemptions;
        all.evictions += seen.evictions;
        all.swaps += seen.swaps;
        all.returns += seen.returns;
        all.finished_on_the_way += seen.finished_on_the_way;
        all.taken_again += seen.taken_again;
        held_back += world.reference.held_back;
        braked += world.reference.braked;
        all.waits += seen.waits;
        all.cached_tokens += seen.cached_tokens;
        all.shared += seen.shared;
        all.accepted += seen.accepted;
        all.host_hits += seen.host_hits;
        all.not_copied += seen.not_copied;
        all.forgotten += seen.forgotten;
        all.after_marked += seen.after_marked;
        all.switches += seen.switches;
    }
    // Quiet worlds would prove nothing.
    let Seen { preemptions, evictions, swaps, returns, finished_on_the_way, .. } = all;
    let Seen { taken_again, waits, cached_tokens, shared, accepted, .. } = all;
    let Seen { host_hits, not_copied, forgotten, after_marked, switches, .. } = all;
    if !cfg!(miri) {
        assert!(preemptions > 4000 && evictions > 2000, "{preemptions} {evictions}");
        assert!(swaps > 2000 && returns > 1000, "{swaps} {returns}");
        assert!(finished_on_the_way > 50 && waits > 100, "{finished_on_the_way} {waits}");
        assert!(taken_again > 1000 && held_back > 1000, "{taken_again} {held_back}");
        assert!(braked > 1000, "{braked}");
        assert!(cached_tokens > 100_000 && shared > 10_000, "{cached_tokens} {shared}");
        assert!(accepted > 10_000, "{accepted}");
        assert!(host_hits > 1000 && not_copied > 1000, "{host_hits} {not_copied}");
        assert!(forgotten > 100_000 && after_marked > 10_000, "{forgotten} {after_marked}");
        assert!(switches > 100, "{switches}");
    }
}

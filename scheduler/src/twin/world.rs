//! Goal: the fast scheduler makes the plans of its naive twin, keeps the invariants, and starves
//! nobody. Method: both take the same random events (seeded), with policies, sizes and predictions
//! chosen to be nasty; after each step the plans must be equal and the invariants hold; at the end
//! arrivals cease, and everyone must finish.

use std::collections::{BTreeMap, BTreeSet};

use super::Twin;
use crate::policies::{Fcfs, Oracle, Sjf, Trail};
use crate::{
    BLOCK_TOKENS, Finished, NewRequest, Phase, Plan, Policy, Prediction, Preemption, RequestId,
    RequestState, Scheduler, SchedulerConfig, Slot,
};
use trail_base::rng::Rng;

/// The scheduler, its twin, and the world around them.
struct World {
    rng: Rng,
    fast: Scheduler,
    twin: Twin,
    step: u64,
    arrivals: u64,
    seen: Seen,
}

/// How eventful the worlds were.
#[derive(Default)]
struct Seen {
    preemptions: usize,
    evictions: usize,
    swaps: usize,
    returns: usize,
    finished_on_the_way: usize,
    /// Plans without rows, for want of a transfer's end.
    waits: usize,
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
            max_passed_over: rng.below(4) as u32,
            max_blocked: 1 + rng.below(4) as u32,
            max_lookahead: 1 + rng.below(4) as u32,
            preemption: [Preemption::Recompute, Preemption::Swap, Preemption::Auto]
                [rng.below(3) as usize],
            host_blocks: rng.below(40) as u32,
            // Longer than the break-even or shorter, with the last block's filling in between.
            block_s: 1.0,
            token_s: 0.125 + 0.01 * rng.below(3) as f64,
            reclaim_steps: rng.below(20) as u32,
        };
        let c = rng.below(11) as f32 / 10.0;
        let policies = || -> [Box<dyn Policy>; 5] {
            [
                Box::new(Fcfs),
                Box::new(Sjf),
                Box::new(Trail { c }),
                Box::new(Oracle { c: None }),
                Box::new(Oracle { c: Some(c) }),
            ]
        };
        let policy = || policies().into_iter().nth(seed as usize % 5).unwrap();
        let twin = Twin {
            config,
            policy: policy(),
            requests: BTreeMap::new(),
            ending: BTreeMap::new(),
            held: BTreeMap::new(),
            copies: BTreeMap::new(),
            plan: Plan::default(),
        };
        let fast = Scheduler::new(config, policy()).unwrap();
        World { rng, fast, twin, step: 0, arrivals: 0, seen: Seen::default() }
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
        };
        let Ok(slot) = self.fast.submit(request) else { return };
        let generation = self.fast.generation(slot);
        let state = RequestState::new(slot, generation, self.arrivals, &request);
        self.twin.requests.insert(slot, state);
        self.arrivals += 1;
    }

    fn finish(&mut self, slot: Slot) {
        let want = match self.fast.state(slot).phase {
            Phase::Leaving | Phase::Returning => Finished::AfterTransfer,
            Phase::Swapped => Finished::Forget,
            _ => Finished::Now,
        };
        assert_eq!(self.fast.finish(slot), want);
        self.seen.finished_on_the_way += (want == Finished::AfterTransfer) as usize;
        self.twin.finish(slot);
    }

    /// Some of the transfers under way end, in any order: each with a chance of 1 in `mean`.
    fn end_transfers(&mut self, mean: u64) {
        let all = self.twin.requests.values().chain(self.twin.ending.values());
        let mut moving: Vec<Slot> =
            all.filter(|request| request.moving()).map(|request| request.slot).collect();
        assert_eq!(moving.len(), self.fast.moving());
        while !moving.is_empty() {
            let slot = moving.swap_remove(self.rng.below(moving.len() as u64) as usize);
            if self.rng.below(mean) == 0 {
                assert_eq!(self.fast.transferred(slot), self.twin.transferred(slot));
            }
        }
    }

    /// A prediction for a random slot: fresh, late, stale, or absurd.
    fn predict(&mut self) {
        let slot = Slot(self.rng.below(self.fast.config().max_requests as u64) as u32);
        let absurd = [f32::NAN, f32::INFINITY, -1e9, 1e9, 0.0];
        let remaining = match self.rng.below(20) {
            n @ 0..5 => absurd[n as usize],
            _ => self.rng.below(80) as f32 / 2.0,
        };
        let late = if self.rng.below(4) == 0 { self.rng.below(80) } else { 0 };
        let stale = (self.rng.below(8) == 0) as u32;
        let prediction = Prediction {
            remaining,
            step: self.step.saturating_sub(late),
            generation: self.fast.generation(slot).wrapping_sub(stale),
            ..Prediction::default()
        };
        self.fast.predict(slot, prediction);
        if let Some(request) = self.twin.requests.get_mut(&slot)
            && stale == 0
        {
            request.predict(&prediction);
        }
    }

    fn some_slot(&mut self) -> Option<Slot> {
        let live = self.twin.requests.len() as u64;
        (live > 0).then(|| *self.twin.requests.keys().nth(self.rng.below(live) as usize).unwrap())
    }

    /// One step. `busy`: requests arrive and are cancelled.
    fn run_step(&mut self, busy: bool) {
        if busy {
            (0..self.rng.below(3)).for_each(|_| self.submit());
        }
        (0..self.rng.below(8)).for_each(|_| self.predict());
        // From at once to many steps; or as late as can be: only when there is nothing to compute.
        let stuck = self.twin.plan.rows.is_empty();
        let mean = match self.twin.config.host_blocks % 4 {
            0 if stuck => 2,
            0 => u64::MAX / 8,
            n => [1, 2, 20][n as usize - 1],
        };
        self.end_transfers(mean);
        self.fast.plan(self.step, 0.0);
        self.twin.plan(self.step);
        assert_eq!(self.fast.last_plan(), &self.twin.plan);
        self.check();
        if busy && self.rng.below(30) == 0 {
            // A cancel between plan and advance, whose slot may be taken again at once.
            if let Some(slot) = self.some_slot() {
                self.finish(slot);
            }
        }
        self.predict();
        self.end_transfers(4 * mean);
        self.fast.advance();
        self.twin.advance();
        for row in self.twin.plan.rows.clone() {
            let Some(request) = self.twin.requests.get(&row.slot) else { continue };
            let length = request.true_length.unwrap_or(request.max_tokens);
            if request.generated >= length {
                self.finish(row.slot);
            }
        }
        self.step += 1;
    }

    /// What must hold of every plan, whatever the policy.
    fn check(&mut self) {
        let (fast, plan) = (&self.fast, self.fast.last_plan());
        assert!(plan.rows.len() <= fast.config().max_running as usize);
        assert!(plan.tokens() <= fast.config().token_budget);
        let mut seen = BTreeSet::new();
        for request in self.twin.requests.values() {
            let blocks = fast.blocks(request.slot);
            let (held, copies) =
                (self.twin.held(request.slot), self.twin.copies.get(&request.slot));
            let returning = request.phase == Phase::Returning;
            let copied = if returning { *copies.unwrap() } else { held };
            assert_eq!(blocks.len() as u32, copied);
            assert_eq!(request.resident() || request.moving(), !blocks.is_empty());
            assert_eq!(request.moving() || request.phase == Phase::Swapped, copies.is_some());
            // Also the blocks behind those that are being filled are its own.
            let blocks = fast.blocks.table(request.slot);
            assert_eq!(blocks.len() as u32, held);
            assert!(blocks.iter().all(|&block| block < fast.config().num_blocks));
            assert!(blocks.iter().all(|&block| seen.insert(block)), "a block is held twice");
        }
        for &slot in self.twin.ending.keys() {
            let blocks = fast.blocks.table(slot);
            assert!(blocks.iter().all(|&block| seen.insert(block)), "a block is held twice");
        }
        assert_eq!(seen.len() as u32, fast.blocks_used());
        assert_eq!(fast.host_blocks_used(), self.twin.copies.values().sum::<u32>());
        assert!(fast.host_blocks_used() <= fast.config().host_blocks);
        for row in &plan.rows {
            assert!(row.len > 0);
            assert_eq!(fast.state(row.slot).phase, Phase::Running);
            assert!(fast.blocks(row.slot).len() as u32 * BLOCK_TOKENS >= row.start + row.len);
        }
        for &slot in &plan.preempted {
            let request = fast.state(slot);
            let lost = plan.evicted.contains(&slot) || plan.swap_out.contains(&slot);
            let for_memory = lost || request.passed_over > 0;
            // Or passed over and forgiven within this very plan.
            let barred = fast.config().max_passed_over + fast.config().max_blocked == 1;
            assert!(fast.policy().preemptable(request) || for_memory || barred, "{request:?}");
        }
        let moving = fast.moving() - self.twin.ending.len();
        let at_rest = fast.running() + fast.waiting() + fast.paused() + fast.swapped();
        assert_eq!(at_rest + moving, fast.live());
        // Nothing to compute only where something is under way.
        assert!(!plan.rows.is_empty() || fast.live() == 0 || fast.moving() > 0, "{plan}");
        self.seen.waits += (plan.rows.is_empty() && fast.live() > 0) as usize;
        self.seen.preemptions += plan.preempted.len();
        self.seen.evictions += plan.evicted.len();
        self.seen.swaps += plan.swap_out.len();
        self.seen.returns += plan.swap_in.len();
    }
}

#[test]
fn plans_equal_the_naive_twins_and_everyone_finishes() {
    let mut all = Seen::default();
    let worlds = if cfg!(miri) { 5 } else { 800 };
    for seed in 0..worlds {
        let mut world = World::new(seed);
        (0..300).for_each(|_| world.run_step(true));
        // A few thousand steps are enough even where each token is recomputed many times.
        let deadline = world.step + 20_000;
        while world.fast.live() > 0 {
            world.run_step(false);
            assert!(world.step < deadline, "seed {seed}: livelock");
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
        all.waits += seen.waits;
    }
    // The test is worth nothing if the worlds are quiet.
    let Seen { preemptions, evictions, swaps, returns, finished_on_the_way, waits } = all;
    if !cfg!(miri) {
        assert!(preemptions > 4000 && evictions > 2000, "{preemptions} {evictions}");
        assert!(swaps > 2000 && returns > 1000, "{swaps} {returns}");
        assert!(finished_on_the_way > 50 && waits > 100, "{finished_on_the_way} {waits}");
    }
}

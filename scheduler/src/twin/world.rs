//! Goal: the fast scheduler makes the plans of its naive twin, keeps the invariants, and starves
//! nobody. Method: both take the same random events (seeded), with policies, sizes and predictions
//! chosen to be nasty; after each step the plans must be equal and the invariants hold; at the end
//! arrivals cease, and everyone must finish.

use std::collections::{BTreeMap, BTreeSet};

use super::Twin;
use crate::policies::{Fcfs, Oracle, Sjf, Trail};
use crate::rng::Rng;
use crate::{
    BLOCK_TOKENS, NewRequest, Plan, Policy, Prediction, RequestId, RequestState, Scheduler,
    SchedulerConfig, Slot,
};

/// The scheduler, its twin, and the world around them.
struct World {
    rng: Rng,
    fast: Scheduler,
    twin: Twin,
    step: u64,
    arrivals: u64,
    preemptions: usize,
    evictions: usize,
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
            held: BTreeMap::new(),
            plan: Plan::default(),
        };
        let fast = Scheduler::new(config, policy()).unwrap();
        World { rng, fast, twin, step: 0, arrivals: 0, preemptions: 0, evictions: 0 }
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
        self.fast.finish(slot);
        self.twin.requests.remove(&slot);
        self.twin.held.remove(&slot);
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
            assert_eq!(blocks.len() as u32, self.twin.held(request.slot));
            assert_eq!(request.resident(), !blocks.is_empty());
            assert!(blocks.iter().all(|&block| block < fast.config().num_blocks));
            assert!(blocks.iter().all(|&block| seen.insert(block)), "a block is held twice");
        }
        assert_eq!(seen.len() as u32, fast.blocks_used());
        for row in &plan.rows {
            assert!(row.len > 0);
            assert!(fast.blocks(row.slot).len() as u32 * BLOCK_TOKENS >= row.start + row.len);
        }
        for &slot in &plan.preempted {
            let request = fast.state(slot);
            let for_memory = plan.evicted.contains(&slot) || request.passed_over > 0;
            // Or passed over and forgiven within this very plan.
            let barred = fast.config().max_passed_over + fast.config().max_blocked == 1;
            assert!(fast.policy().preemptable(request) || for_memory || barred, "{request:?}");
        }
        assert_eq!(fast.running() + fast.waiting() + fast.paused(), fast.live());
        self.preemptions += plan.preempted.len();
        self.evictions += plan.evicted.len();
    }
}

#[test]
fn plans_equal_the_naive_twins_and_everyone_finishes() {
    let (mut preemptions, mut evictions) = (0, 0);
    let worlds = if cfg!(miri) { 5 } else { 400 };
    for seed in 0..worlds {
        let mut world = World::new(seed);
        (0..300).for_each(|_| world.run_step(true));
        // A few thousand steps are enough even where each token is recomputed many times.
        let deadline = world.step + 20_000;
        while world.fast.live() > 0 {
            world.run_step(false);
            assert!(world.step < deadline, "seed {seed}: livelock");
        }
        assert_eq!(world.fast.blocks_used(), 0);
        assert_eq!(world.fast.plan(world.step, 0.0).rows, []);
        preemptions += world.preemptions;
        evictions += world.evictions;
    }
    // The test is worth nothing if the worlds are quiet.
    if !cfg!(miri) {
        assert!(preemptions > 4000 && evictions > 2000, "{preemptions} {evictions}");
    }
}

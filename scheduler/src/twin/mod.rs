//! The naive twin of [`crate::Scheduler`]: sorts everything at every step, counts everything anew.
//!
//! It shares with the fast one only what a request is and what a policy says of it. `world` drives
//! both through the same events and compares.

mod world;

use std::collections::BTreeMap;

use crate::limits::blocks_for;
use crate::{Key, Phase, Plan, PlanRow, Policy, RequestState, SchedulerConfig, Slot};

struct Twin {
    config: SchedulerConfig,
    policy: Box<dyn Policy>,
    requests: BTreeMap<Slot, RequestState>,
    /// Blocks held, by slot; none for those without KV.
    held: BTreeMap<Slot, u32>,
    plan: Plan,
}

impl Twin {
    fn held(&self, slot: Slot) -> u32 {
        self.held.get(&slot).copied().unwrap_or(0)
    }

    fn free(&self) -> u32 {
        self.config.num_blocks - self.held.values().sum::<u32>()
    }

    fn plan(&mut self, step: u64) {
        self.plan = Plan { step, ..Plan::default() };
        let mut order: Vec<(Key, Slot, Phase)> = self
            .requests
            .values()
            .map(|request| (self.policy.key(request), request.slot, request.phase))
            .collect();
        order.sort_by_key(|entry| entry.0);
        let (mut rows, mut open, mut passed) = (self.config.token_budget, true, 0);
        for (rank, &(_, slot, phase)) in order.iter().enumerate() {
            let seats = self.config.max_running - self.plan.rows.len() as u32;
            let running = phase == Phase::Running;
            if seats == 0 || self.plan.evicted.contains(&slot) || !(running || open) {
                continue;
            }
            // Victims, first to go first: paused from the worst up, then running from the worst up.
            let behind = |phase| {
                let worst_up = order[rank + 1..].iter().rev();
                worst_up.filter(move |entry| entry.2 == phase).map(|entry| entry.1)
            };
            let there = |slot: &Slot| !self.plan.evicted.contains(slot);
            let running_behind = behind(Phase::Running).filter(there).count() as u32;
            let victims: Vec<Slot> =
                behind(Phase::Paused).chain(behind(Phase::Running)).filter(there).collect();

            let request = &self.requests[&slot];
            let len = request.uncomputed().min(rows - rows.min(running_behind.min(seats - 1)));
            if len == 0 {
                assert!(!running, "a running request is never short of a row");
                open = false;
                continue;
            }
            let entering = phase == Phase::Waiting && !self.plan.rows.is_empty();
            let spare = if entering { self.config.watermark_blocks() } else { 0 };
            let needed = blocks_for(request.tokens()) - self.held(slot);
            let reclaimable: u32 = victims.iter().map(|&victim| self.held(victim)).sum();
            if self.free() + reclaimable < needed + spare {
                passed += 1;
                let barrier = self.pass_over(slot);
                open &= !barrier && passed < self.config.max_lookahead;
                continue;
            }
            for victim in victims {
                if self.free() < needed + spare {
                    self.evict(victim);
                }
            }
            *self.held.entry(slot).or_default() += needed;
            self.choose(slot, len);
            rows -= len;
        }
        self.settle(&order);
    }

    fn pass_over(&mut self, slot: Slot) -> bool {
        let request = self.requests.get_mut(&slot).unwrap();
        request.passed_over += 1;
        let barrier = request.passed_over > self.config.max_passed_over;
        if request.passed_over >= self.config.max_passed_over + self.config.max_blocked {
            request.passed_over = 0;
        }
        barrier || self.policy.strict_order()
    }

    fn evict(&mut self, slot: Slot) {
        self.held.remove(&slot);
        let request = self.requests.get_mut(&slot).unwrap();
        (request.phase, request.computed) = (Phase::Waiting, 0);
        self.plan.evicted.push(slot);
    }

    fn choose(&mut self, slot: Slot, len: u32) {
        let request = self.requests.get_mut(&slot).unwrap();
        let (start, sample) = (request.computed, request.computed + len == request.tokens());
        (request.phase, request.started, request.passed_over) = (Phase::Running, true, 0);
        let again = (start..start + len).filter(|&token| token < request.computed_max).count();
        self.plan.recomputed_tokens += again as u32;
        self.plan.rows.push(PlanRow { slot, start, len, sample });
    }

    fn settle(&mut self, order: &[(Key, Slot, Phase)]) {
        for &(_, slot, phase) in order {
            if phase == Phase::Running && self.plan.rows.iter().all(|row| row.slot != slot) {
                self.plan.preempted.push(slot);
                let request = self.requests.get_mut(&slot).unwrap();
                if request.phase == Phase::Running {
                    request.phase = Phase::Paused;
                }
            }
        }
    }

    fn advance(&mut self) {
        for row in &self.plan.rows {
            if let Some(request) = self.requests.get_mut(&row.slot) {
                request.advance(self.plan.step, row.len, row.sample);
            }
        }
    }
}

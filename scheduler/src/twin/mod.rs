//! The naive twin of [`crate::Scheduler`]: sorts everything at every step, counts everything anew.
//!
//! It shares with the fast one only what a request is and what a policy says of it. `world` drives
//! both through the same events and compares.

mod swap;
mod world;

use std::collections::BTreeMap;

use crate::limits::blocks_for;
use crate::{BLOCK_TOKENS, Key, Phase, Plan, PlanRow, Policy, RequestState, SchedulerConfig, Slot};

struct Twin {
    config: SchedulerConfig,
    policy: Box<dyn Policy>,
    requests: BTreeMap<Slot, RequestState>,
    /// Finished, but their transfers have not ended.
    ending: BTreeMap<Slot, RequestState>,
    /// Blocks held, by slot; none for those without KV.
    held: BTreeMap<Slot, u32>,
    /// Blocks that the host holds, is sent or sends back.
    copies: BTreeMap<Slot, u32>,
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
        let ran = order.iter().filter(|entry| entry.2 == Phase::Running).count() as u32;
        let (mut rows, mut open, mut passed) = (self.config.token_budget, true, 0);
        let mut reserved = 0;
        for (rank, &(_, slot, phase)) in order.iter().enumerate() {
            let seats = self.config.max_running - self.plan.rows.len() as u32;
            let running = phase == Phase::Running;
            let gone =
                |slot| self.plan.evicted.contains(&slot) || self.plan.swap_out.contains(&slot);
            let moving = matches!(phase, Phase::Leaving | Phase::Returning);
            if seats == 0 || gone(slot) || moving || !(running || open) {
                continue;
            }
            // Victims, first to go first: paused from the worst up, then running from the worst up.
            let behind = |phase| {
                let worst_up = order[rank + 1..].iter().rev();
                worst_up.filter(move |entry| entry.2 == phase).map(|entry| entry.1)
            };
            let there = |slot: &Slot| !gone(*slot);
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
            if phase == Phase::Swapped && seats <= self.returning().count() as u32 {
                continue;
            }
            let first = self.plan.rows.is_empty() && self.plan.swap_in.is_empty();
            let spare = match phase {
                Phase::Waiting if !first => self.config.watermark_blocks(),
                Phase::Swapped if !first => self.low_water(ran),
                _ => 0,
            };
            let needed = blocks_for(request.tokens()) - self.held(slot);
            let wanted = needed + spare + reserved;
            let reclaimable: u32 = victims.iter().map(|&victim| self.held(victim)).sum();
            let enough = needed == 0 || self.free() + self.leaving() + reclaimable >= wanted;
            // Those on their way back: to be had when they are there, if ranked behind or finished.
            let back = order[rank + 1..].iter().filter(|entry| entry.2 == Phase::Returning);
            let filling: u32 = back.map(|entry| self.held(entry.1)).sum();
            let finished = self.ending.values().filter(|request| request.phase == Phase::Returning);
            let filling = filling + finished.map(|request| self.held(request.slot)).sum::<u32>();
            let later = self.free() + self.leaving() + reclaimable + filling >= wanted;
            for victim in victims {
                if enough && needed > 0 && self.free() + self.leaving() < wanted {
                    self.dislodge(victim);
                }
            }
            if needed > 0 && self.free() < wanted {
                passed += 1;
                let barrier = self.pass_over(slot);
                open &= !barrier && passed < self.config.max_lookahead;
                if enough || later {
                    reserved += needed + spare;
                }
                continue;
            }
            *self.held.entry(slot).or_default() += needed;
            if phase == Phase::Swapped {
                self.come_back(slot);
                continue;
            }
            self.choose(slot, len);
            rows -= len;
        }
        self.settle(&order);
        self.reclaim(&order, reserved);
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

    fn dislodge(&mut self, slot: Slot) {
        if self.leave(slot) {
            return;
        }
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

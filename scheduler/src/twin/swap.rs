//! The naive twin's swapping.

use super::*;
use crate::{Preemption, Transferred};

impl Twin {
    /// Requests in transit in `phase`, finished ones too.
    fn moving(&self, phase: Phase) -> impl Iterator<Item = &RequestState> {
        let all = self.requests.values().chain(self.ending.values());
        all.filter(move |request| request.phase == phase)
    }

    pub(super) fn returning(&self) -> impl Iterator<Item = &RequestState> {
        self.moving(Phase::Returning)
    }

    /// Blocks of those that leave.
    pub(super) fn leaving(&self) -> u32 {
        self.moving(Phase::Leaving).map(|request| self.held(request.slot)).sum()
    }

    pub(super) fn low_water(&self, rows: u32) -> u32 {
        let growth = (rows * self.config.reclaim_steps).div_ceil(BLOCK_TOKENS);
        self.config.watermark_blocks() + growth
    }

    /// Whether the victim leaves for the host.
    pub(super) fn leave(&mut self, slot: Slot) -> bool {
        let request = self.requests.get_mut(&slot).unwrap();
        let copies = blocks_for(request.computed);
        let room = self.config.host_blocks - self.copies.values().sum::<u32>();
        let cheaper = match self.config.preemption {
            Preemption::Recompute => false,
            Preemption::Swap => true,
            Preemption::Auto => {
                let (block_s, token_s) = (self.config.block_s, self.config.token_s);
                2.0 * copies as f64 * block_s < request.computed as f64 * token_s
            }
        };
        if !cheaper || copies == 0 || copies > room {
            return false;
        }
        request.phase = Phase::Leaving;
        self.held.insert(slot, copies);
        self.copies.insert(slot, copies);
        self.plan.swap_out.push(slot);
        true
    }

    pub(super) fn come_back(&mut self, slot: Slot) {
        let request = self.requests.get_mut(&slot).unwrap();
        (request.phase, request.passed_over) = (Phase::Returning, 0);
        self.plan.swap_in.push(slot);
    }

    /// The worst paused leave while blocks are low, if they rank behind all rows.
    pub(super) fn reclaim(&mut self, order: &[(Key, Slot, Phase)], reserved: u32) {
        let Some(worst) = self.plan.rows.last().map(|row| row.slot) else { return };
        let rank = order.iter().position(|entry| entry.1 == worst).unwrap();
        // Those paused only now stand where their present key puts them.
        let mut paused: Vec<(Key, Slot)> = self
            .requests
            .values()
            .filter(|request| request.phase == Phase::Paused)
            .map(|request| (self.policy.key(request), request.slot))
            .filter(|&(key, _)| key > order[rank].0)
            .collect();
        paused.sort_by_key(|entry| std::cmp::Reverse(entry.0));
        let wanted = reserved + self.low_water(self.plan.rows.len() as u32);
        for (_, slot) in paused.into_iter().take(self.config.max_lookahead as usize) {
            if self.free() + self.leaving() < wanted {
                self.leave(slot);
            }
        }
    }

    pub(super) fn finish(&mut self, slot: Slot) {
        let Some(request) = self.requests.remove(&slot) else { return };
        if matches!(request.phase, Phase::Leaving | Phase::Returning) {
            self.ending.insert(slot, request);
            return;
        }
        self.held.remove(&slot);
        self.copies.remove(&slot);
    }

    pub(super) fn transferred(&mut self, slot: Slot) -> Transferred {
        if let Some(ended) = self.ending.remove(&slot) {
            self.held.remove(&slot);
            self.copies.remove(&slot);
            return Transferred::Finished { forget: ended.phase == Phase::Leaving };
        }
        let request = self.requests.get_mut(&slot).unwrap();
        if request.phase == Phase::Leaving {
            request.phase = Phase::Swapped;
            self.held.remove(&slot);
            return Transferred::Swapped;
        }
        request.phase = Phase::Paused;
        self.copies.remove(&slot);
        Transferred::Returned
    }
}

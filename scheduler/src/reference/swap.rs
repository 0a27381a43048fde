//! Swapping in the reference.

use super::*;
use crate::{Preemption, Transferred};

impl Reference {
    /// Requests in `phase`, a transfer; finished ones too.
    fn moving(&self, phase: Phase) -> impl Iterator<Item = &RequestState> {
        let all = self.requests.values().chain(self.ending.values());
        all.filter(move |request| request.phase == phase)
    }

    pub(super) fn swapping_in(&self) -> impl Iterator<Item = &RequestState> {
        self.moving(Phase::SwappingIn)
    }

    /// Blocks of requests that are swapping out.
    pub(super) fn swapping_out(&self) -> u32 {
        self.moving(Phase::SwappingOut).map(|request| self.held(request.idx)).sum()
    }

    pub(super) fn low_water(&self, rows: u32) -> u32 {
        let growth = (rows * self.config.reclaim_steps).div_ceil(BLOCK_TOKENS);
        self.config.watermark_blocks() + growth
    }

    /// Begins to swap the victim out. Returns false if it is recomputed instead.
    pub(super) fn swap_out(&mut self, idx: RequestIdx) -> bool {
        let request = self.requests.get_mut(&idx).unwrap();
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
        request.phase = Phase::SwappingOut;
        self.blocks.truncate(idx, copies);
        self.copies.insert(idx, copies);
        self.plan.swap_out.push(idx);
        true
    }

    pub(super) fn swap_in(&mut self, idx: RequestIdx) {
        let request = self.requests.get_mut(&idx).unwrap();
        (request.phase, request.skipped_steps) = (Phase::SwappingIn, 0);
        self.plan.swap_in.push(idx);
    }

    /// Swaps the worst paused requests out while blocks are low, if they rank behind all rows.
    pub(super) fn reclaim(&mut self, order: &[(Key, RequestIdx, Phase)], reserved: u32) {
        let Some(worst) = self.plan.rows.last().map(|row| row.idx) else { return };
        let rank = order.iter().position(|entry| entry.1 == worst).unwrap();
        // Requests paused by this plan rank by their present key.
        let mut paused: Vec<(Key, RequestIdx)> = self
            .requests
            .values()
            .filter(|request| request.phase == Phase::Paused)
            .map(|request| (self.key(request), request.idx))
            .filter(|&(key, _)| key > order[rank].0)
            .collect();
        paused.sort_by_key(|entry| std::cmp::Reverse(entry.0));
        let wanted = reserved + self.low_water(self.plan.rows.len() as u32);
        for (_, idx) in paused.into_iter().take(self.config.max_lookahead as usize) {
            if self.free() + self.swapping_out() < wanted {
                self.swap_out(idx);
            }
        }
    }

    pub(super) fn finish(&mut self, idx: RequestIdx) {
        self.publish(idx);
        let Some(request) = self.requests.remove(&idx) else { return };
        self.policy.on_finished(&request);
        self.plan.rows.retain(|row| row.idx != idx);
        if matches!(request.phase, Phase::SwappingOut | Phase::SwappingIn) {
            self.ending.insert(idx, request);
            return;
        }
        self.blocks.truncate(idx, 0);
        self.copies.remove(&idx);
    }

    pub(super) fn transferred(&mut self, idx: RequestIdx) -> Transferred {
        if let Some(ended) = self.ending.remove(&idx) {
            self.blocks.truncate(idx, 0);
            self.copies.remove(&idx);
            return Transferred::Finished { forget: ended.phase == Phase::SwappingOut };
        }
        let request = self.requests.get_mut(&idx).unwrap();
        if request.phase == Phase::SwappingOut {
            request.phase = Phase::Swapped;
            self.blocks.truncate(idx, 0);
            return Transferred::Swapped;
        }
        request.phase = Phase::Paused;
        self.copies.remove(&idx);
        Transferred::Returned
    }
}

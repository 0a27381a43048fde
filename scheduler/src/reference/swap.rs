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
        let computed = self.requests[&idx].computed;
        let copies = blocks_for(computed);
        let hashes = self.hashes(idx, computed / BLOCK_TOKENS);
        let known = self.host.find(&hashes);
        let cheaper = match self.config.preemption {
            Preemption::Recompute => false,
            Preemption::Swap => true,
            Preemption::Auto => {
                let (block_s, token_s) = (self.config.block_s, self.config.token_s);
                (2 * copies - known) as f64 * block_s < computed as f64 * token_s
            }
        };
        if !cheaper || copies == 0 {
            return false;
        }
        self.host.share(idx, &hashes[..known as usize]);
        if copies - known > self.host.free() {
            self.host.truncate(idx, 0);
            return false;
        }
        self.host.grow(idx, copies - known);
        self.copied_from.insert(idx, known);
        self.requests.get_mut(&idx).unwrap().phase = Phase::SwappingOut;
        self.blocks.truncate(idx, copies);
        self.plan.swap_out.push(idx);
        true
    }

    /// Blocks that a waiting request finds on the host, more than on the device, if copying one
    /// takes less time than computing it.
    pub(super) fn blocks_on_host(&self, request: &RequestState, cached: u32) -> u32 {
        let pays = self.config.block_s < f64::from(BLOCK_TOKENS) * self.config.token_s;
        if request.phase != Phase::Waiting || !pays {
            return 0;
        }
        let found = self.host.find(&self.hashes(request.idx, request.max_cached_blocks()));
        if found > cached { found } else { 0 }
    }

    pub(super) fn swap_in(&mut self, idx: RequestIdx, cached: u32, on_host: u32) {
        self.plan.cached_tokens += on_host * BLOCK_TOKENS;
        self.copied_from.insert(idx, cached);
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
        self.host.truncate(idx, 0);
    }

    pub(super) fn transferred(&mut self, idx: RequestIdx) -> Transferred {
        let ended = self.ending.remove(&idx);
        let request = ended.as_ref().unwrap_or_else(|| &self.requests[&idx]);
        let phase = request.phase;
        if phase == Phase::SwappingOut {
            let hashes = self.hashes(idx, request.computed / BLOCK_TOKENS);
            self.host.publish(idx, &hashes);
            self.blocks.truncate(idx, 0);
        } else {
            let found = self.host.held(idx) * BLOCK_TOKENS;
            let computed = if request.computed == 0 { found } else { request.computed };
            self.host.truncate(idx, 0);
            let hashes = self.hashes(idx, computed / BLOCK_TOKENS);
            self.blocks.publish(idx, &hashes);
            if let Some(request) = self.requests.get_mut(&idx) {
                request.computed = computed;
            }
        }
        if ended.is_some() {
            self.blocks.truncate(idx, 0);
            self.host.truncate(idx, 0);
            return Transferred::Finished;
        }
        let request = self.requests.get_mut(&idx).unwrap();
        if phase == Phase::SwappingOut {
            request.phase = Phase::Swapped;
            return Transferred::Swapped;
        }
        request.phase = Phase::Paused;
        Transferred::Returned
    }
}

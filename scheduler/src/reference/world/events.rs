//! Random events of a world beside arrivals: predictions, limits, trust, draft tokens, marks.

use super::World;
use super::kinds::{KINDS, kinds};
use crate::{Phase, Prediction, PrefillLimit, RequestIdx};

impl World {
    /// A prediction for a random index: fresh, late, stale, or absurd.
    pub(super) fn predict(&mut self) {
        let idx = RequestIdx(self.rng.below(self.fast.config().max_requests as u64) as u32);
        let absurd = [f32::NAN, f32::INFINITY, -1e9, 1e9, 0.0];
        let remaining = match self.rng.below(20) {
            n @ 0..5 => absurd[n as usize],
            _ => self.rng.below(80) as f32 / 2.0,
        };
        let late = if self.rng.below(4) == 0 { self.rng.below(80) } else { 0 };
        let stale = (self.rng.below(8) == 0) as u32;
        let prediction = Prediction {
            remaining,
            p90: [0.0, 1.5, f32::NAN][self.rng.below(3) as usize] * remaining,
            step: self.step.saturating_sub(late),
            generation: self.fast.generation(idx).wrapping_sub(stale),
            ..Prediction::default()
        };
        self.fast.predict(idx, prediction);
        if let Some(request) = self.reference.requests.get_mut(&idx)
            && stale == 0
            && request.predict(&prediction, self.reference.config.refresh_tokens)
        {
            self.reference.policy.on_predicted(request);
        }
    }

    /// In half of the worlds another prefill limit at every step: none, no time, or some.
    pub(super) fn limit_prefill(&mut self) {
        if self.reference.config.token_budget.is_multiple_of(2) {
            return;
        }
        let ns = self.rng.below(60) as f64;
        let context_token_ns = self.rng.below(3) as f64 / 16.0;
        let limit = PrefillLimit { ns, token_ns: 1.0, context_token_ns };
        self.reference.limit = (self.rng.below(4) > 0).then_some(limit);
        self.fast.limit_prefill(self.reference.limit);
    }

    /// In a third of the worlds predictions lose their trust now and then, or gain it back.
    pub(super) fn trust(&mut self) {
        if self.reference.config.num_blocks.is_multiple_of(3) && self.rng.below(20) == 0 {
            self.reference.trusts_predictions ^= true;
            self.fast.trust_predictions(self.reference.trusts_predictions);
        }
    }

    /// In a fifth of the worlds another policy takes over now and then.
    pub(super) fn switch_policy(&mut self) {
        if !self.reference.config.num_blocks.is_multiple_of(5) || self.rng.below(25) > 0 {
            return;
        }
        self.kind = kinds(&mut self.rng)[self.rng.below(KINDS as u64) as usize];
        self.fast.set_policy(self.kind.build());
        let mut policy = self.kind.build();
        policy.reserve(self.reference.config.max_requests);
        let mut live: Vec<_> = self.reference.requests.values().collect();
        live.sort_by_key(|request| request.seq);
        live.into_iter().for_each(|request| policy.on_submitted(request));
        for row in &self.reference.plan.rows {
            let running = self.reference.requests.get(&row.idx);
            if let Some(request) = running.filter(|request| request.phase == Phase::Running) {
                policy.on_scheduled(request, *row);
            }
        }
        self.reference.policy = policy;
        self.seen.switches += 1;
    }

    /// Some of the requests that decoded get more tokens than one, as draft tokens were accepted.
    pub(super) fn accept(&mut self) {
        let decoded = self.reference.plan.rows.clone().into_iter().filter(|row| row.sample);
        for row in decoded.filter(|row| row.len == 1) {
            let state = self.fast.state(row.idx);
            let is_the_planned_one = state.computed == row.start + 1 && state.resident();
            if !is_the_planned_one || self.rng.below(3) > 0 {
                continue;
            }
            let length = state.true_length.unwrap_or(state.max_tokens);
            let room = self.fast.room(row.idx).min(length - state.generated.min(length));
            let tokens = self.rng.below(u64::from(room) + 1) as u32;
            self.fast.accept(row.idx, tokens);
            self.reference.accept(row.idx, tokens);
            self.seen.accepted += tokens as usize;
        }
    }

    /// Where requests begin only after marked blocks, marks some of those that are known, and takes
    /// the marks of others back.
    pub(super) fn choose_resumable(&mut self) {
        if !self.reference.config.marked_blocks {
            return;
        }
        for (&hash, &block) in &self.found {
            if self.rng.below(8) == 0 {
                let is_marked = self.rng.below(2) == 0;
                self.fast.set_resumable(block, is_marked);
                self.reference.blocks.set_resumable(hash, is_marked);
            }
        }
        self.seen.after_marked += self.fast.last_plan().cached_tokens as usize;
    }
}

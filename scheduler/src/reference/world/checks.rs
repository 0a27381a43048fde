//! Invariants of every plan, for any policy.

use std::collections::{BTreeMap, BTreeSet};

use super::World;
use crate::policies::PolicyKind;
use crate::{
    Action, BLOCK_TOKENS, BlockChange, BlockId, Copies, Outstanding, Phase, RequestId, RequestIdx,
    RequestState,
};

impl World {
    /// The running requests, each with true if it may be preempted.
    pub(super) fn running(&self) -> BTreeMap<RequestIdx, bool> {
        let running =
            self.reference.requests.values().filter(|request| request.phase == Phase::Running);
        running.map(|request| (request.idx, self.fast.policy().preemptable(request))).collect()
    }

    /// Invariants of the batch, given the requests of the last one.
    pub(super) fn check_batch(&self, before: &BTreeMap<RequestIdx, bool>) {
        let (fast, plan) = (&self.fast, self.fast.last_plan());
        for idx in &plan.preempted {
            let request = fast.state(*idx);
            let lost = plan.evicted.contains(idx) || plan.swap_out.contains(idx);
            let for_memory = lost || request.skipped_steps > 0;
            // Or skipped, with the counter reset within the same plan.
            let barred = fast.config().max_skipped_steps + fast.config().max_barrier_steps == 1;
            assert!(before[idx] || for_memory || barred, "{}: {request:?}", self.kind);
        }
        let entered = plan.rows.iter().filter(|row| !before.contains_key(&row.idx));
        assert!(entered.count() as u64 <= u64::from(fast.policy().max_entries()), "{plan}");
        let one_order = self.seen.switches == 0 && self.priorities.is_none();
        if self.kind == PolicyKind::Fcfs && one_order {
            // First in, first out: no arrival starts before an earlier one.
            let by_start = |started| {
                let all = self.reference.requests.values();
                // Or its first blocks are on their way from the host.
                let has_begun = |request: &RequestState| {
                    request.started || request.computed > 0 || request.phase == Phase::SwappingIn
                };
                all.filter(move |request| has_begun(request) == started).map(|request| request.seq)
            };
            assert!(by_start(true).max() < by_start(false).min() || by_start(false).count() == 0);
        }
    }

    /// Replays the changes of the plan and of the step before it: they give exactly the blocks that
    /// requests find, each once, and no more than there is room for.
    pub(super) fn check_block_changes(&mut self) {
        let changes: Vec<BlockChange> = self.fast.take_block_changes().collect();
        assert!(changes.len() <= 2 * self.fast.config().num_blocks as usize);
        for change in changes {
            let is_new = match change {
                BlockChange::Known { hash, block, .. } => self.found.insert(hash, block).is_none(),
                BlockChange::Forgotten { hash } => self.found.remove(&hash).is_some(),
            };
            assert!(is_new, "{change:?}");
            self.seen.forgotten += matches!(change, BlockChange::Forgotten { .. }) as usize;
            if let BlockChange::Known { hash, parent, .. } = change {
                // Names are numbered along a sequence, and begin with its family.
                let place = hash.0 as u64;
                assert_eq!(parent.map(|parent| parent.0 as u64 + 1), (place > 0).then_some(place));
            }
        }
        assert!(self.found.keys().eq(self.reference.blocks.known()), "{}", self.kind);
        let blocks: BTreeSet<BlockId> = self.found.values().copied().collect();
        assert_eq!(blocks.len(), self.found.len(), "one hash a block");
    }

    /// Invariants of every plan, for any policy.
    pub(super) fn check(&mut self) {
        let (fast, plan) = (&self.fast, self.fast.last_plan());
        assert!(plan.rows.len() <= fast.config().max_running as usize);
        assert!(plan.tokens() <= fast.config().token_budget);
        let mut seen = BTreeMap::new();
        for request in self.reference.requests.values() {
            let blocks = fast.blocks(request.idx);
            let held = self.reference.held(request.idx);
            let on_host = self.reference.host.held(request.idx);
            assert_eq!(request.resident() || request.moving(), !blocks.is_empty());
            assert_eq!(request.moving() || request.phase == Phase::Swapped, on_host > 0);
            if request.moving() {
                let Copies { device, host } = fast.copies(request.idx);
                let first = self.reference.copied_from[&request.idx];
                assert_eq!((device.len(), host.len() as u32), (host.len(), on_host - first));
                self.seen.not_copied += first as usize;
            }
            assert_eq!(blocks.len() as u32, held);
            assert!(blocks.iter().all(|&block| block < fast.config().num_blocks));
            self.check_sharing(request.idx, &mut seen);
        }
        for &idx in self.reference.ending.keys() {
            self.check_sharing(idx, &mut seen);
        }
        self.seen.shared += seen.values().filter(|holders| holders.len() > 1).count();
        self.seen.cached_tokens += plan.cached_tokens as usize;
        assert_eq!(seen.len() as u32, fast.blocks_used());
        assert_eq!(fast.host_blocks_used(), self.reference.host.used());
        assert!(fast.host_blocks_used() <= fast.config().host_blocks);
        let remaining: Vec<f32> =
            self.reference.requests.values().filter_map(|request| request.remaining()).collect();
        let tokens = remaining.iter().copied().map(f64::from).sum();
        let predicted = remaining.len() as u32;
        assert_eq!(fast.outstanding(), Outstanding { tokens, predicted });
        for row in &plan.rows {
            assert!(row.len > 0);
            assert_eq!(fast.state(row.idx).phase, Phase::Running);
            assert!(fast.blocks(row.idx).len() as u32 * BLOCK_TOKENS >= row.start + row.len);
        }
        let moving = fast.moving() - self.reference.ending.len();
        let at_rest = fast.running() + fast.waiting() + fast.paused() + fast.swapped();
        assert_eq!(at_rest + moving, fast.live());
        // An empty plan only while a transfer is in flight.
        assert!(!plan.rows.is_empty() || fast.live() == 0 || fast.moving() > 0, "{plan}");
        self.seen.waits += (plan.rows.is_empty() && fast.live() > 0) as usize;
        self.seen.preemptions += plan.preempted.len();
        self.seen.evictions += plan.evicted.len();
        self.seen.swaps += plan.swap_out.len();
        self.seen.returns += plan.swap_in.len();
        let hits = plan.swap_in.iter().filter(|&&idx| fast.state(idx).swaps == 0);
        self.seen.host_hits += hits.count();
    }

    /// A block of two requests has the same place and hash in both, and tokens that neither will
    /// write.
    fn check_sharing(&self, idx: RequestIdx, seen: &mut BTreeMap<BlockId, Vec<RequestIdx>>) {
        for (at, &block) in (0..).zip(self.fast.blocks.table(idx)) {
            let holders = seen.entry(block).or_default();
            if let Some(&other) = holders.first() {
                let hash = |idx| self.fast.hashes.at(idx, at);
                assert!(hash(idx).is_some() && hash(idx) == hash(other), "{block} is held twice");
                for idx in [idx, other] {
                    let request = self.fast.state(idx);
                    let planned = self.fast.last_plan().rows.iter().find(|row| row.idx == idx);
                    let written = match request.phase {
                        Phase::SwappingIn => self.fast.swap_state.first(idx) * BLOCK_TOKENS,
                        _ => planned.map_or(request.computed, |row| row.start),
                    };
                    assert!((at + 1) * BLOCK_TOKENS <= written, "{block} is written and shared");
                }
            }
            holders.push(idx);
        }
    }

    /// Each change of a plan has one decision, and the request in whose favour it was made ranks
    /// before the other.
    pub(super) fn check_decisions(&self) {
        let plan = self.fast.last_plan();
        let of = |action| {
            let decisions = plan.decisions.iter().filter(move |decision| decision.action == action);
            decisions.map(|decision| decision.request).collect::<BTreeSet<_>>()
        };
        let ids = |indices: &[RequestIdx]| -> BTreeSet<RequestId> {
            indices.iter().map(|&idx| self.fast.state(idx).id).collect()
        };
        assert_eq!(of(Action::Evicted), ids(&plan.evicted));
        assert_eq!(of(Action::SwappedOut), ids(&plan.swap_out));
        assert_eq!(of(Action::SwappedIn), ids(&plan.swap_in));
        // One that loses its KV to the request that displaces it has one decision for both.
        let (preempted, explained) = (ids(&plan.preempted), of(Action::Preempted));
        let lost = ids(&[&plan.evicted[..], &plan.swap_out].concat());
        assert!(explained.is_subset(&preempted));
        assert!(preempted.difference(&explained).all(|id| lost.contains(id)));
        let entries = of(Action::Admitted).len() + of(Action::Resumed).len();
        let moves = plan.evicted.len() + plan.swap_out.len() + plan.swap_in.len();
        assert_eq!(plan.decisions.len(), entries + moves + explained.len());
        for decision in plan.decisions.iter().filter(|decision| decision.by.is_some()) {
            let by = decision.by.unwrap();
            let mut takers =
                plan.rows.iter().map(|row| row.idx).chain(plan.swap_in.iter().copied());
            // Or it still waits for the blocks, which are in transfer.
            let waits = decision.action != Action::Preempted && self.fast.moving() > 0;
            assert!(waits || takers.any(|idx| self.fast.state(idx).id == by), "{decision}");
            assert_ne!(decision.request, by);
        }
    }
}

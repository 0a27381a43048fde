//! The scheduler: admits requests, ranks them, plans steps and accounts for their blocks.

use crate::blocks::{BlockId, Blocks, RequestHashes};
use crate::brake::Brake;
use crate::config::{ConfigError, SchedulerConfig};
use crate::decision::{Action, Decision};
use crate::fill::{Fill, Filled};
use crate::key::{Key, Ranked, sort_again};
use crate::limits::{BLOCK_TOKENS, blocks_for};
use crate::order::Order;
use crate::plan::Plan;
use crate::policy::{BatchLoop, Loop, Policy, rank};
use crate::prefill_limit::PrefillLimit;
use crate::refusal::Refusal;
use crate::request::{NewRequest, Phase, Prediction, RequestIdx, RequestState};
use crate::requests::{Outstanding, Requests};
use crate::swap::Finished;
use crate::swap_state::SwapState;

/// All requests from submission to finish. Each is in exactly one of three ordered sets, by its
/// [`Phase`]: running, paused (out of the batch, with KV) or waiting (without KV, or with KV on the
/// host only); or in none while its KV is in transfer.
///
/// The order of calls in one step: any of `submit`, `predict`, `transferred`, `finish`; `plan`; the
/// transfers and the forward pass; `advance`. `submit`, `predict`, `transferred` and `finish` may
/// also come between `plan` and `advance`.
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) requests: Requests,
    pub(crate) blocks: Blocks,
    /// No room for any where [`SchedulerConfig::cached_blocks`] is 0.
    pub(crate) hashes: RequestHashes,
    /// Sorted by the keys of the last `plan`.
    pub(crate) running: Vec<Ranked>,
    /// The running set of the plan being filled.
    pub(crate) chosen: Vec<Ranked>,
    pub(crate) paused: Order,
    pub(crate) waiting: Order,
    pub(crate) swap_state: SwapState,
    pub(crate) prefill_limit: Option<PrefillLimit>,
    trusts_predictions: bool,
    pub(crate) brake: Brake,
    pub(crate) plan: Plan,
}

impl Scheduler {
    /// Creates a scheduler and allocates everything that it will need.
    pub fn new(
        config: SchedulerConfig,
        mut policy: Box<dyn Policy>,
    ) -> Result<Scheduler, ConfigError> {
        config.validate()?;
        policy.reserve(config.max_requests);
        let max_running = config.max_running as usize;
        let max_residents = config.num_blocks.min(config.max_requests) as usize;
        let blocks = |num_blocks, max_cached| {
            Blocks::new(num_blocks, config.max_requests, config.max_context, max_cached)
        };
        let hashed = if config.cached_blocks > 0 { blocks_for(config.max_context) } else { 0 };
        let on_host = if config.cached_blocks > 0 { config.host_blocks } else { 0 };
        let host = blocks(config.host_blocks, on_host);
        let device = blocks(config.num_blocks, config.cached_blocks);
        Ok(Scheduler {
            policy,
            requests: Requests::new(config.max_requests),
            blocks: if config.marked_blocks { device.with_marked_only() } else { device },
            hashes: RequestHashes::new(config.max_requests, hashed.min(config.num_blocks)),
            running: Vec::with_capacity(max_running),
            chosen: Vec::with_capacity(max_running),
            paused: Order::new(config.max_requests),
            waiting: Order::new(config.max_requests),
            swap_state: SwapState::new(host, config.max_requests, config.max_running),
            prefill_limit: None,
            trusts_predictions: true,
            brake: Brake::new(config.max_recompute),
            plan: Plan::with_capacity(max_running, max_residents),
            config,
        })
    }

    /// Takes a request into the queue if [`SchedulerConfig::admit`] accepts it.
    pub fn submit(&mut self, request: NewRequest) -> Result<RequestIdx, Refusal> {
        self.config.admit(&request)?;
        let max_requests = self.config.max_requests;
        let idx = self.requests.take(&request).ok_or(Refusal::Full { max_requests })?;
        self.hashes.clear(idx);
        self.policy.on_submitted(&self.requests[idx]);
        self.waiting.insert(idx, self.key(idx));
        Ok(idx)
    }

    /// Records a prediction of the probe and updates the request's rank. Ignored if the index has
    /// been given to another request, if a prediction of the same or a later age was accepted
    /// before, or one of fewer than `refresh_tokens` tokens earlier, or if it is not a number.
    #[inline] // copied through memory, a prediction is stored in parts and read whole: a stall
    pub fn predict(&mut self, idx: RequestIdx, prediction: Prediction) {
        let request = &self.requests[idx];
        let is_stale = request.generation != prediction.generation;
        if is_stale || request.ended || request.phase == Phase::Free {
            return;
        }
        let refresh = self.config.refresh_tokens;
        if self.requests.predict(idx, &prediction, refresh) {
            let request = &self.requests[idx];
            self.policy.on_predicted(request);
            if request.phase != Phase::Running {
                self.rekey(idx);
            }
        }
    }

    /// Moves a request outside the batch to its new place in the order. Running requests are sorted
    /// by every `plan`.
    pub(crate) fn rekey(&mut self, idx: RequestIdx) {
        let request = &self.requests[idx];
        let order = match request.phase {
            Phase::Waiting | Phase::Swapped => &mut self.waiting,
            Phase::Paused => &mut self.paused,
            // In transfer: its key is computed when the transfer ends.
            Phase::Running | Phase::SwappingOut | Phase::SwappingIn | Phase::Free => return,
        };
        let key = rank(&*self.policy, request, self.trusts_predictions);
        if key != order.key(idx) {
            order.remove(idx);
            order.insert(idx, key);
        }
    }

    /// Bounds the prefill chunks of each later plan in which a request decodes; `None`, the
    /// default, leaves them to the token budget. Chunks change when a token is computed, not which
    /// one.
    pub fn limit_prefill(&mut self, limit: Option<PrefillLimit>) {
        self.prefill_limit = limit;
    }

    /// Ranks by the policy if `trusted`, the default; else what the policy ranks by value goes
    /// first in, first out: for predictions that are worse than none. Requests that may not be
    /// preempted stay in their place.
    pub fn trust_predictions(&mut self, trusted: bool) {
        if std::mem::replace(&mut self.trusts_predictions, trusted) != trusted {
            (0..self.config.max_requests).for_each(|idx| self.rekey(RequestIdx(idx)));
        }
    }

    /// Ranks by another policy from the next plan on, as if all live requests had just moved here:
    /// state of the policy before is lost. Allocates.
    pub fn set_policy(&mut self, mut policy: Box<dyn Policy>) {
        let max_requests = self.config.max_requests;
        policy.reserve(max_requests);
        let all = (0..max_requests).map(RequestIdx);
        let is_live = |&idx: &RequestIdx| {
            let request = &self.requests[idx];
            request.phase != Phase::Free && !request.ended
        };
        let mut live: Vec<RequestIdx> = all.filter(is_live).collect();
        live.sort_unstable_by_key(|&idx| self.requests[idx].seq);
        live.iter().for_each(|&idx| policy.on_submitted(&self.requests[idx]));
        for row in &self.plan.rows {
            let request = &self.requests[row.idx];
            if request.phase == Phase::Running && !request.ended {
                policy.on_scheduled(request, *row);
            }
        }
        self.policy = policy;
        live.into_iter().for_each(|idx| self.rekey(idx));
    }

    /// False after [`Scheduler::trust_predictions`] with `false`.
    pub fn trusts_predictions(&self) -> bool {
        self.trusts_predictions
    }

    /// True while only the first request of a plan may evict another
    /// ([`SchedulerConfig::max_recompute`]).
    pub fn is_braked(&self) -> bool {
        self.brake.holds()
    }

    /// The request's rank.
    pub(crate) fn key(&self, idx: RequestIdx) -> Key {
        rank(&*self.policy, &self.requests[idx], self.trusts_predictions)
    }

    /// True if a request of the last plan decodes: its caller waits for the next token.
    pub(crate) fn decodes(&self) -> bool {
        let mut running = self.running.iter().map(|ranked| &self.requests[ranked.idx]);
        running.any(|request| request.generated > 0 && request.uncomputed() == 1)
    }

    /// Chooses the rows of step `step`, allocates their blocks, and evicts or swaps out the victims
    /// that this requires. Uses the predictions that have arrived and waits for none. `now_s` is
    /// the time in seconds on the caller's clock.
    pub fn plan(&mut self, step: u64, now_s: f64) -> &Plan {
        self.policy.on_step(step, now_s);
        self.policy.on_blocks(self.blocks.used(), self.config.num_blocks);
        while let Some(idx) = self.policy.next_changed() {
            self.rekey(idx);
        }
        self.plan.clear(step);
        self.rank_running();
        self.brake.on_step(now_s);
        let filled = Fill::new(self).run();
        self.brake.on_planned(filled.tokens, self.plan.recomputed_tokens);
        let (plan, requests) = (&self.plan, &self.requests);
        self.policy.run_loop(BatchLoop(Loop::Scheduled { plan, requests }));
        self.requeue_preempted(&filled);
        self.reclaim(filled.promised);
        &self.plan
    }

    fn rank_running(&mut self) {
        let (running, requests) = (&mut self.running[..], &mut self.requests);
        let trusted = self.trusts_predictions;
        self.policy.run_loop(BatchLoop(Loop::Rank { running, requests, trusted }));
        sort_again(&mut self.running);
    }

    /// Moves requests that left the batch to the paused or the waiting ones.
    fn requeue_preempted(&mut self, filled: &Filled) {
        // Mostly all stay.
        let left = if filled.kept < self.running.len() { self.running.len() } else { 0 };
        for position in 0..left {
            let idx = self.running[position].idx;
            let request = &mut self.requests[idx];
            if request.planned {
                continue;
            }
            self.plan.preempted.push(idx);
            request.preemptions += 1;
            request.slice_tokens = 0;
            let has_kv = request.phase == Phase::Running;
            if has_kv {
                self.requests.set_phase(idx, Phase::Paused);
            }
            self.policy.on_preempted(&self.requests[idx]);
            if has_kv {
                self.paused.insert(idx, self.key(idx));
                // One that the walk met was short of a block, the others of a place.
                let by = filled.entered.filter(|_| position >= filled.visited);
                self.decide(Action::Preempted, idx, by);
            }
        }
        for &idx in &self.plan.evicted {
            self.waiting.insert(idx, self.key(idx));
        }
        std::mem::swap(&mut self.running, &mut self.chosen);
        self.chosen.clear();
    }

    /// The worst ranked request that was never in a plan: the one to give up where there are too
    /// many. Visits those ranked behind it, which have run.
    pub fn worst_unstarted(&self) -> Option<RequestIdx> {
        let from_worst = std::iter::successors(self.waiting.last(), |at| self.waiting.prev(at.idx));
        from_worst.map(|ranked| ranked.idx).find(|&idx| !self.requests[idx].started)
    }

    /// Records that the plan's rows were executed: their tokens are computed, one more is sampled
    /// in each row with `sample`, and each expectation counts down by one per token until the next
    /// prediction. The engine finishes a request at its `max_tokens`.
    pub fn advance(&mut self) {
        let (plan, requests) = (&self.plan, &mut self.requests);
        self.policy.run_loop(BatchLoop(Loop::Advance { plan, requests }));
        if self.config.cached_blocks > 0 {
            for row in &self.plan.rows {
                let full = self.requests[row.idx].computed / BLOCK_TOKENS;
                self.blocks.publish(row.idx, self.hashes.first(row.idx, full));
            }
        }
    }

    /// Tokens beyond those computed for whose KV the request has room in its blocks.
    pub fn room(&self, idx: RequestIdx) -> u32 {
        self.blocks.held(idx) * BLOCK_TOKENS - self.requests[idx].computed
    }

    /// Records that the last plan's step sampled `tokens` more for a request that decoded in it,
    /// after [`Scheduler::advance`]: each from a draft token that was the one sampled before it.
    /// At most [`Scheduler::room`].
    pub fn accept(&mut self, idx: RequestIdx, tokens: u32) {
        let step = self.plan.step;
        for _ in 0..tokens {
            let request = &mut self.requests[idx];
            request.advance(step, 1, true);
            debug_assert!(request.generated <= request.max_tokens, "finish was due");
            self.policy.on_tokens(request, 1);
        }
        self.publish(idx);
    }

    /// Removes a request in any phase, completed or cancelled. Increments the index's generation
    /// and frees the index and its blocks, unless a transfer is in flight. A second call has no
    /// effect.
    pub fn finish(&mut self, idx: RequestIdx) -> Finished {
        match self.requests[idx].phase {
            Phase::Free => return Finished::Now,
            Phase::Waiting | Phase::Swapped => self.waiting.remove(idx),
            Phase::Paused => self.paused.remove(idx),
            Phase::Running => self.running.retain(|ranked| ranked.idx != idx),
            Phase::SwappingOut | Phase::SwappingIn if self.requests[idx].ended => {
                return Finished::AfterTransfer;
            }
            Phase::SwappingOut | Phase::SwappingIn => {
                self.end(idx);
                return Finished::AfterTransfer;
            }
        }
        self.end(idx);
        self.free(idx);
        Finished::Now
    }

    /// Adds a decision about `idx` in favour of `by` to the plan.
    pub(crate) fn decide(&mut self, action: Action, idx: RequestIdx, by: Option<RequestIdx>) {
        let by = by.map(|by| &self.requests[by]);
        let decision = Decision::new(self.plan.step, action, &self.requests[idx], by);
        self.plan.decisions.push(decision);
    }

    fn end(&mut self, idx: RequestIdx) {
        self.publish(idx);
        self.policy.on_finished(&self.requests[idx]);
        self.requests.end(idx);
    }

    /// The last plan.
    pub fn last_plan(&self) -> &Plan {
        &self.plan
    }

    /// The request's KV blocks in token order. A request in the plan has all it needs this step; a
    /// prefill holds those of its whole prompt from its first chunk on.
    pub fn blocks(&self, idx: RequestIdx) -> &[BlockId] {
        self.blocks.table(idx)
    }

    /// Number of requests that had the index before the present one.
    pub fn generation(&self, idx: RequestIdx) -> u32 {
        self.requests[idx].generation
    }

    /// The state of the request at `idx`.
    pub fn state(&self, idx: RequestIdx) -> &RequestState {
        &self.requests[idx]
    }

    /// The policy that ranks the requests.
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// The configuration it was built with.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Number of requests admitted and not finished.
    pub fn live(&self) -> usize {
        self.requests.live()
    }

    /// Predicted output tokens of the requests admitted and not finished. Visits the running ones.
    pub fn outstanding(&self) -> Outstanding {
        self.requests.outstanding(self.running.iter().map(|ranked| ranked.idx))
    }

    /// Number of requests in the last plan that are not finished.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Number of requests without KV: never started, or evicted.
    pub fn waiting(&self) -> usize {
        self.waiting.len() - self.swapped()
    }

    /// Number of preempted requests that still hold their KV.
    pub fn paused(&self) -> usize {
        self.paused.len()
    }

    /// KV blocks that requests hold, including those of a finished request whose transfer has not
    /// ended.
    pub fn blocks_used(&self) -> u32 {
        self.blocks.used()
    }
}

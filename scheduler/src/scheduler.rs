//! The scheduler: takes requests in, ranks them, plans steps, keeps count.

use crate::blocks::{BlockId, Blocks};
use crate::config::{ConfigError, SchedulerConfig};
use crate::key::Ranked;
use crate::order::Order;
use crate::plan::Plan;
use crate::policy::Policy;
use crate::refusal::Refusal;
use crate::request::{NewRequest, Phase, Prediction, RequestState, Slot};
use crate::requests::Requests;
use crate::swap::Finished;
use crate::transit::Transit;

/// All requests from submission to finish. Each is in exactly one of three ordered sets, by its
/// [`Phase`]: running, paused (out of the batch, with KV) or waiting (without KV, or with KV at the
/// host alone); or in none of them while its KV is on its way.
///
/// The order of calls in one step: any of `submit`, `predict`, `transferred`, `finish`; `plan`; the
/// transfers and the forward pass; `advance`. `predict`, `transferred` and `finish` may also come
/// between `plan` and `advance`.
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) requests: Requests,
    pub(crate) blocks: Blocks,
    /// Sorted by the keys of the last `plan`.
    pub(crate) running: Vec<Ranked>,
    /// The running set of the plan being filled.
    pub(crate) chosen: Vec<Ranked>,
    pub(crate) paused: Order,
    pub(crate) waiting: Order,
    pub(crate) transit: Transit,
    pub(crate) plan: Plan,
}

impl Scheduler {
    /// Allocates everything that will ever be needed.
    pub fn new(
        config: SchedulerConfig,
        mut policy: Box<dyn Policy>,
    ) -> Result<Scheduler, ConfigError> {
        config.validate()?;
        policy.reserve(config.max_requests);
        let max_running = config.max_running as usize;
        let max_residents = config.num_blocks.min(config.max_requests) as usize;
        Ok(Scheduler {
            policy,
            requests: Requests::new(config.max_requests),
            blocks: Blocks::new(config.num_blocks, config.max_requests, config.max_context),
            running: Vec::with_capacity(max_running),
            chosen: Vec::with_capacity(max_running),
            paused: Order::new(config.max_requests),
            waiting: Order::new(config.max_requests),
            transit: Transit::new(config.host_blocks, config.max_requests, config.max_running),
            plan: Plan::with_capacity(max_running, max_residents),
            config,
        })
    }

    /// Takes a request into the queue if [`SchedulerConfig::admit`] accepts it.
    pub fn submit(&mut self, request: NewRequest) -> Result<Slot, Refusal> {
        self.config.admit(&request)?;
        let max_requests = self.config.max_requests;
        let slot = self.requests.take(&request).ok_or(Refusal::Full { max_requests })?;
        self.policy.on_submitted(&self.requests[slot]);
        self.waiting.insert(slot, self.policy.key(&self.requests[slot]));
        Ok(slot)
    }

    /// Tells the rank what the probe read. Ignored if the slot has another request by now, if a
    /// prediction of the same or a later age was there first, or if it is not a number.
    pub fn predict(&mut self, slot: Slot, prediction: Prediction) {
        let request = &mut self.requests[slot];
        if request.generation != prediction.generation || request.phase == Phase::Free {
            return;
        }
        if request.predict(&prediction) {
            self.rekey(slot);
        }
    }

    /// Moves a request outside the batch to where its key now says. Running ones are sorted by
    /// every `plan` anyway.
    fn rekey(&mut self, slot: Slot) {
        let request = &self.requests[slot];
        let order = match request.phase {
            Phase::Waiting | Phase::Swapped => &mut self.waiting,
            Phase::Paused => &mut self.paused,
            // On its way: its key is asked for when it arrives.
            Phase::Running | Phase::Leaving | Phase::Returning | Phase::Free => return,
        };
        let key = self.policy.key(request);
        if key != order.key(slot) {
            order.remove(slot);
            order.insert(slot, key);
        }
    }

    /// Chooses the rows of step `step`, allocates their blocks, and evicts or swaps whom it must. Reads the
    /// predictions that are there; waits for none. Time in seconds on the caller's clock.
    pub fn plan(&mut self, step: u64, now_s: f64) -> &Plan {
        self.policy.on_step(step, now_s);
        self.plan.clear(step);
        self.rank_running();
        let reserved = self.fill();
        self.settle();
        self.reclaim(reserved);
        if self.policy.ages() {
            self.age();
        }
        &self.plan
    }

    fn rank_running(&mut self) {
        for ranked in &mut self.running {
            let request = &mut self.requests[ranked.slot];
            request.planned = false;
            ranked.key = self.policy.key(request);
        }
        self.running.sort_unstable_by_key(|ranked| ranked.key);
    }

    /// Moves those that left the batch to where they now belong.
    fn settle(&mut self) {
        for &Ranked { slot, .. } in &self.running {
            let request = &mut self.requests[slot];
            if request.planned {
                continue;
            }
            self.plan.preempted.push(slot);
            request.preemptions += 1;
            request.slice_tokens = 0;
            if request.phase == Phase::Running {
                request.phase = Phase::Paused;
                self.paused.insert(slot, self.policy.key(request));
            }
        }
        for &slot in &self.plan.evicted {
            self.waiting.insert(slot, self.policy.key(&self.requests[slot]));
        }
        std::mem::swap(&mut self.running, &mut self.chosen);
        self.chosen.clear();
    }

    /// For policies whose keys change by waiting alone.
    fn age(&mut self) {
        for slot in self.requests.slots() {
            let request = &self.requests[slot];
            if !matches!(request.phase, Phase::Running | Phase::Free) && !request.ended {
                self.policy.on_skipped(&self.requests[slot]);
                self.rekey(slot);
            }
        }
    }

    /// The plan's rows were carried out: their tokens are computed, one more is sampled where the
    /// row said so, and each expectation counts down by one per token until the next prediction.
    /// The engine finishes a request at its `max_tokens`.
    pub fn advance(&mut self) {
        for row in &self.plan.rows {
            let request = &mut self.requests[row.slot];
            // A request finished since the plan, whose slot may have been given away.
            if !request.planned {
                continue;
            }
            request.advance(self.plan.step, row.len, row.sample);
            debug_assert!(request.generated <= request.max_tokens, "finish was due");
            self.policy.on_tokens(request, row.sample as u32);
        }
    }

    /// Lets a request go, in whatever state: done, or cancelled. The slot's generation moves on; its
    /// blocks and the slot are free, unless a transfer is under way. Harmless when done twice.
    pub fn finish(&mut self, slot: Slot) -> Finished {
        let phase = self.requests[slot].phase;
        match phase {
            Phase::Free => return Finished::Now,
            Phase::Waiting | Phase::Swapped => self.waiting.remove(slot),
            Phase::Paused => self.paused.remove(slot),
            Phase::Running => self.running.retain(|ranked| ranked.slot != slot),
            Phase::Leaving | Phase::Returning if self.requests[slot].ended => {
                return Finished::AfterTransfer;
            }
            Phase::Leaving | Phase::Returning => {
                self.requests.end(slot);
                return Finished::AfterTransfer;
            }
        }
        self.requests.end(slot);
        self.discard(slot);
        if phase == Phase::Swapped { Finished::Forget } else { Finished::Now }
    }

    /// The last plan.
    pub fn last_plan(&self) -> &Plan {
        &self.plan
    }

    /// The request's KV blocks in token order. A request in the plan has all it needs this step; a
    /// prefill holds those of its whole prompt from its first chunk on. Of a request that leaves or
    /// returns: those that are copied.
    pub fn blocks(&self, slot: Slot) -> &[BlockId] {
        let table = self.blocks.table(slot);
        let moving = self.requests[slot].moving();
        if moving { &table[..self.transit.copies(slot) as usize] } else { table }
    }

    /// How many requests had the slot before the present one.
    pub fn generation(&self, slot: Slot) -> u32 {
        self.requests[slot].generation
    }

    /// All that is known of the request in `slot`.
    pub fn state(&self, slot: Slot) -> &RequestState {
        &self.requests[slot]
    }

    /// The policy that ranks.
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// The configuration it was built with.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Requests taken in and not finished.
    pub fn live(&self) -> usize {
        self.requests.live()
    }

    /// Requests in the last plan that are not finished.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests without KV anywhere: never started, or evicted.
    pub fn waiting(&self) -> usize {
        self.waiting.len() - self.swapped()
    }

    /// Preempted requests that still hold their KV.
    pub fn paused(&self) -> usize {
        self.paused.len()
    }

    /// KV blocks that requests hold; those of a finished one too, until its transfer has ended.
    pub fn blocks_used(&self) -> u32 {
        self.blocks.used()
    }
}

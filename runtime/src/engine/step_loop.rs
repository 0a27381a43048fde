//! The step loop: the only code that moves requests through scheduler and backend.
//!
//! Serving, the demo, benchmarks and tests all drive `StepLoop::step`, over a [`Backend`], a
//! [`Clock`] and a [`super::StepObserver`]. Where the backend runs asynchronously, one step is in
//! flight while the next is planned:
//!
//! ```text
//! device   ..|  step n                           |  step n+1                        |
//! probe              predictions of n
//! engine        .. await them | plan n+1, launch | collect n, send its tokens | await ..
//! ```
//!
//! So the plan of n+1 knows the predictions of n, but not its tokens. A request that turns out to
//! have ended in n has a surplus row in n+1, whose token is dropped. Its blocks may be reused at
//! once: the new owner's writes follow in stream order. Draft tokens follow known tokens: where
//! they are expected to pay, and after a step that has some, the step in flight is collected before
//! the next one is planned.

use std::sync::Arc;
use std::time::Instant;

use trail_scheduler::{LoggedScheduler, PrefillPace};

use super::block_sink::BlockReporter;
use super::clock::Clock;
use super::event::FinishReason;
use super::in_flight::InFlightStep;
use super::lifecycle::Lifecycle;
use super::live_board::LiveReporter;
use super::model_pace::prefill_work;
use super::observer::{CollectedStep, LoopPhase, Observing};
use super::policy_switch::PolicySwitch;
use super::pool_contents::PoolContents;
use super::predictions::Predictions;
use super::recurrent::RecurrentStates;
use super::speculation::{PlannedStep, Speculation};
use super::stats::{Counters, add};
use super::step_cost_file::work_of;
use super::step_time::StepTimeEstimator;
use super::swaps::Swaps;
use super::turns::TurnTaker;
use crate::backend::{Backend, Batch, Fault, Sampled, Step};

/// Result of `StepLoop::step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// A step was launched or collected.
    Ran,
    /// Nothing can run until a transfer of KV completes. By a simulated clock its time must come:
    /// [`super::SteppedEngine::next_transfer_ns`].
    Transferring,
    /// No request can run: there is none.
    Idle,
}

/// State of the engine that only its thread touches.
pub(super) struct StepLoop {
    pub(super) backend: Box<dyn Backend>,
    pub(super) scheduler: LoggedScheduler,
    pub(super) lifecycle: Lifecycle,
    pub(super) predictions: Predictions,
    pub(super) swaps: Swaps,
    pub(super) batch: Batch,
    /// `None` where no KV block is shared.
    pub(super) block_contents: Option<PoolContents>,
    /// `None` without a sink, and where no KV block is shared.
    pub(super) block_reporter: Option<BlockReporter>,
    pub(super) recurrent: RecurrentStates,
    /// `None` where there are no draft tokens.
    pub(super) speculation: Option<Speculation>,
    /// Tokens of the step being collected.
    pub(super) sampled: Vec<Sampled>,
    /// Launched and uncollected steps, by parity of their number.
    pub(super) in_flight: [InFlightStep; 2],
    /// True if step `step` is in flight.
    pub(super) is_in_flight: bool,
    /// True if the last plan was empty because of transfers.
    pub(super) is_transferring: bool,
    pub(super) step_times: StepTimeEstimator,
    pub(super) prefill_pace: PrefillPace,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) observer: Observing,
    pub(super) counters: Arc<Counters>,
    pub(super) live: LiveReporter,
    pub(super) policy: Arc<PolicySwitch>,
    /// `None` where no other engine computes on the same threads.
    pub(super) turns: Option<TurnTaker>,
    /// Number of the last launched step.
    pub(super) step: u64,
}

impl StepLoop {
    /// One iteration: predictions in, requests in and out, plan, launch, collect the step before. A
    /// backend that completes a step at launch has it collected at once.
    pub(super) fn step(&mut self) -> Result<StepOutcome, Fault> {
        let waits = self.waits_for_tokens();
        self.await_predictions()?;
        if waits {
            self.is_in_flight = false;
            self.collect(self.step)?;
        }
        let known_ns = self.clock.now_ns();
        let begin = self.observer.begin();
        if !self.admit_and_retire()? && self.is_transferring {
            // Planning again would give the same plan and wrongly count skipped requests.
            return Ok(StepOutcome::Transferring);
        }
        self.plan()?;
        self.observer.end(LoopPhase::Plan, self.step + 1, begin);
        let launched = self.launch()?;
        if let Some(speculation) = self.speculation.as_mut().filter(|_| waits && launched) {
            let begin_ns = self.in_flight[(self.step % 2) as usize].begin_ns;
            speculation.record_gap(begin_ns.saturating_sub(known_ns));
        }
        let in_flight = std::mem::replace(&mut self.is_in_flight, launched);
        if self.backend.ahead() == 0 && launched {
            self.is_in_flight = false;
            self.collect(self.step)?;
        } else if in_flight {
            self.collect(self.step - u64::from(launched))?;
        }
        let ran = launched || in_flight || waits;
        self.is_transferring = !ran && self.scheduler.moving() > 0;
        Ok(match (ran, self.is_transferring) {
            (true, _) => StepOutcome::Ran,
            (false, true) => StepOutcome::Transferring,
            (false, false) => StepOutcome::Idle,
        })
    }

    /// True if the tokens of the step in flight must be known before the next one is planned: for
    /// the masks of constrained requests, or for draft tokens.
    fn waits_for_tokens(&mut self) -> bool {
        let StepLoop { speculation, lifecycle, in_flight, .. } = self;
        let in_flight = &in_flight[(self.step % 2) as usize];
        self.is_in_flight
            && (in_flight.is_constrained()
                || speculation.as_mut().is_some_and(|of| of.waits(in_flight, lifecycle)))
    }

    /// Waits for the predictions of the step in flight, at most until the next one must be planned,
    /// and passes on those that are there, and late ones of preempted requests.
    fn await_predictions(&mut self) -> Result<(), Fault> {
        let (begin, step) = (self.observer.begin(), self.step);
        let in_flight = &self.in_flight[(step % 2) as usize];
        // Those of a step with draft tokens come when its tokens are known.
        let awaits = self.is_in_flight && in_flight.drafts() == 0;
        if awaits {
            let deadline_ns = self.step_times.deadline_ns(in_flight.rows);
            self.predictions.wait(step, in_flight, deadline_ns, &*self.clock);
        }
        self.predictions.check()?;
        self.predictions.observe_preempted(&mut self.lifecycle, &mut self.scheduler);
        if awaits {
            self.observe(step);
            self.observer.end(LoopPhase::AwaitPredictions, step, begin);
        }
        Ok(())
    }

    /// Passes the predictions of `step` on to the scheduler and the callers.
    fn observe(&mut self, step: u64) {
        let StepLoop { predictions, lifecycle, scheduler, in_flight, observer, .. } = self;
        let in_flight = &in_flight[(step % 2) as usize];
        let (fresh, late) = predictions.observe(step, in_flight, lifecycle, scheduler);
        if let Some(observer) = observer.0.as_mut().filter(|_| fresh + late > 0) {
            observer.predictions(step, fresh, late);
        }
    }

    /// Takes in submissions, cancellations and completed transfers. Returns whether there were any.
    fn admit_and_retire(&mut self) -> Result<bool, Fault> {
        let StepLoop { lifecycle, scheduler, swaps, counters, .. } = self;
        let submitted = lifecycle.drain_inbox(scheduler, swaps);
        if self.is_in_flight {
            let in_flight = &self.in_flight[(self.step % 2) as usize];
            lifecycle.retire_at_max_tokens(in_flight, scheduler);
        }
        let transferred = swaps.poll(&mut *self.backend, scheduler, &*self.clock)?;
        if transferred {
            // First: a caller that sees the last permit released finds no block in use.
            counters.set_load(scheduler, lifecycle.queue().live());
            swaps.release();
        }
        Ok(submitted || transferred)
    }

    /// Plans the next step, starts its transfers, drafts, and fills the batch; an empty one if
    /// nothing can run.
    fn plan(&mut self) -> Result<(), Fault> {
        self.scheduler.limit_prefill(self.prefill_pace.limit());
        if let Some(policy) = self.policy.take() {
            self.scheduler.set_policy(policy);
            self.live.set_policy(policy);
        }
        loop {
            self.scheduler.plan(self.step + 1, self.clock.now_s());
            self.report_blocks();
            self.report_preemptions();
            // A request without hashes finds none: each is planned again once at the most.
            let is_sound = self.has_own_blocks()
                && self.recurrent.restart_lost(&mut self.scheduler, &mut self.lifecycle);
            self.start_transfers()?;
            if is_sound {
                break;
            }
        }
        let StepLoop { scheduler, lifecycle, speculation, .. } = self;
        let predicts = self.predictions.probe().is_some();
        for row in &scheduler.last_plan().rows {
            lifecycle.schedule(row.idx, predicts);
        }
        if let Some(speculation) = speculation {
            let model = self.backend.draft_model();
            speculation.propose(PlannedStep {
                scheduler,
                lifecycle,
                is_in_flight: self.is_in_flight,
                model,
            });
        }
        self.fill_batch();
        Ok(())
    }

    /// Fills the batch with the rows of the plan and their draft tokens.
    fn fill_batch(&mut self) {
        let StepLoop { scheduler, lifecycle, batch, counters, block_contents, .. } = self;
        let plan = scheduler.last_plan();
        batch.clear();
        for (at, row) in plan.rows.iter().enumerate() {
            let active = lifecycle.planned_mut(row.idx);
            let drafts = self.speculation.as_ref().map_or(0, |of| of.drafts(at));
            let (first, last) = (row.start as usize, (row.start + row.len) as usize + drafts);
            let blocks = scheduler.blocks(row.idx);
            match active.tokens.get(first..last) {
                Some(tokens) => {
                    match drafts {
                        0 => batch.push(row.idx.0, row.start, tokens, blocks, row.sample),
                        _ => batch.push_drafts(row.idx.0, row.start, tokens, blocks),
                    }
                    if let Some(positions) = active.take_scored(first, last) {
                        batch.score(positions);
                    }
                    if let (Some(contents), Some(hashes)) = (&mut *block_contents, &active.hashes) {
                        contents.device.fill((first, last), hashes.root(), &active.tokens, blocks);
                    }
                }
                // Sampled by the step in flight: known to the device alone.
                None => batch.push_pending(row.idx.0, row.start, blocks),
            }
            if !std::mem::replace(&mut active.has_kv, true) {
                batch.begin_request();
            }
            if let Some(adapter) = &active.request.adapter {
                batch.adapt(adapter);
            }
            self.recurrent.assign(row, drafts, (scheduler, lifecycle), batch);
        }
        self.live.record(plan);
        counters.count_plan(plan);
        add(&counters.braked_steps, u64::from(scheduler.is_braked()));
        counters.set_load(scheduler, lifecycle.queue().live());
        self.recurrent.unmark(scheduler);
    }

    /// Compares the blocks that requests of the plan found by hash, on the device or on the host,
    /// with their tokens. One that found those of another sequence, as hashes collided, begins
    /// again and shares none. Returns true if there was none.
    fn has_own_blocks(&mut self) -> bool {
        let StepLoop { scheduler, lifecycle, block_contents, counters, .. } = self;
        let Some(contents) = block_contents.as_ref() else { return true };
        let collided = contents.collided(scheduler, lifecycle);
        for &idx in &collided {
            lifecycle.forget_hashes(idx, scheduler);
            add(&counters.hash_collisions, 1);
        }
        collided.is_empty()
    }

    /// Ends every request, after the last step.
    pub(super) fn end_all(&mut self, reason: FinishReason) {
        self.swaps.abandon();
        self.lifecycle.finish_all(reason);
        self.lifecycle.refuse_submissions(reason);
    }

    /// Starts the transfers of the plan, and records the content of the blocks that they fill.
    fn start_transfers(&mut self) -> Result<(), Fault> {
        let StepLoop { scheduler, lifecycle, block_contents, .. } = self;
        self.swaps.start(&mut *self.backend, scheduler, &*self.clock)?;
        if let Some(contents) = block_contents {
            contents.record_transfers(scheduler, lifecycle);
        }
        Ok(())
    }

    /// Launches the batch. Returns whether there was one.
    fn launch(&mut self) -> Result<bool, Fault> {
        if self.batch.segments.is_empty() {
            return Ok(false);
        }
        let begin = self.observer.begin();
        self.step += 1;
        let StepLoop { scheduler, lifecycle, batch, predictions, .. } = self;
        let tap = predictions.plan_tap(batch, scheduler);
        let in_flight = &mut self.in_flight[(self.step % 2) as usize];
        in_flight.begin_ns = self.clock.now_ns();
        in_flight.rows = batch.rows();
        in_flight.work = work_of(batch);
        in_flight.prefill = prefill_work(batch);
        in_flight.predicts = tap.is_some_and(|tap| !tap.rows.is_empty());
        in_flight.expect(batch, lifecycle);
        self.backend.launch(&Step { number: self.step, batch, sampling: &*lifecycle, tap })?;
        scheduler.advance();
        self.observer.end(LoopPhase::Launch, self.step, begin);
        Ok(true)
    }

    /// Waits for the tokens of `step`, sends them, and ends the requests that are complete.
    fn collect(&mut self, step: u64) -> Result<(), Fault> {
        let begin = self.observer.begin();
        self.sampled.clear();
        self.backend.collect(&mut self.sampled)?;
        let now = Instant::now();
        self.observer.end(LoopPhase::Collect, step, begin);
        let begin = self.observer.begin();
        let index = (step % 2) as usize;
        self.clock.complete_step(&self.in_flight[index].work);
        let now_ns = self.clock.now_ns();
        let StepLoop { lifecycle, in_flight, sampled, scheduler, .. } = self;
        lifecycle.send_scores(&in_flight[index], self.backend.scores().unwrap_or_default());
        lifecycle.send_tokens(&in_flight[index], sampled, scheduler);
        if let Some(contents) = &mut self.block_contents {
            contents.record_late(&self.batch, scheduler, lifecycle);
        }
        self.recurrent.collect(&self.batch, scheduler, (lifecycle, self.block_contents.as_ref()));
        self.predictions.verify(step, &in_flight[index], scheduler);
        let predicted = self.predictions.probe().and_then(|probe| probe.smoothed(step));
        if let Some(predicted) = predicted {
            let slack = now.saturating_duration_since(predicted.published);
            self.counters.count_slack(slack.as_micros() as u32);
        }
        if self.backend.ahead() == 0 || self.in_flight[index].drafts() > 0 {
            self.observe(step);
        }
        // First, as the log's reader takes the tokens of a step before the ends that they bring.
        self.count_step(step, now_ns);
        self.lifecycle.finish_ended(&mut self.scheduler, &mut self.swaps);
        self.live.report(&self.scheduler, step, self.clock.now_s(), &self.prefill_pace);
        self.observer.end(LoopPhase::Send, step, begin);
        if let Some(observer) = &mut self.observer.0 {
            let work = self.in_flight[index].work;
            observer.collected(&CollectedStep { number: step, work, end: now, predicted });
        }
        Ok(())
    }

    /// Adds a step collected at `now_ns` to the counters and to the step-time estimates.
    fn count_step(&mut self, step: u64, now_ns: u64) {
        let InFlightStep { rows, prefill, begin_ns, .. } = self.in_flight[(step % 2) as usize];
        let elapsed_ns = now_ns.saturating_sub(begin_ns);
        self.step_times.record(rows, elapsed_ns);
        if prefill.is_empty() {
            self.live.record_step(rows, elapsed_ns);
            if let Some(speculation) = &mut self.speculation {
                speculation.record(rows, elapsed_ns);
            }
        }
        self.prefill_pace.record(prefill, elapsed_ns);
        self.counters.set_pace(&self.prefill_pace);
        self.scheduler.collected(step, now_ns, elapsed_ns);
        // The step launched after it, if any, starts now.
        let next = &mut self.in_flight[((step + 1) % 2) as usize];
        next.begin_ns = next.begin_ns.max(now_ns);
        self.counters.count_step(rows, elapsed_ns);
    }
}

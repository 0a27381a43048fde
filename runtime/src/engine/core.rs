//! The step loop: the one thread that owns model, cache and scheduler.

use std::sync::Arc;
use std::time::Instant;

use trail_scheduler::{NewRequest, Prediction, RequestId, Scheduler, Slot};

use super::doors::{Doors, Inbox};
use super::event::{Event, FinishReason};
use super::forecast::Forecast;
use super::sampling::{History, Sampler};
use super::slot::Active;
use super::stats::{Counters, add, set};
use crate::batch::Batch;
use crate::cpu::{CpuBackend, Tap};

/// Everything the engine's thread owns.
pub(super) struct Core {
    pub(super) backend: CpuBackend,
    pub(super) scheduler: Scheduler,
    pub(super) sampler: Sampler,
    pub(super) forecast: Option<Forecast>,
    pub(super) batch: Batch,
    /// By scheduler slot: `[max_requests]`.
    pub(super) slots: Box<[Option<Box<Active>>]>,
    /// Requests of this step's plan that sample a token, in order of their logits.
    pub(super) sampled: Vec<Slot>,
    /// Requests that ended in this step.
    pub(super) ended: Vec<(Slot, FinishReason)>,
    pub(super) vocab_size: usize,
    pub(super) eos_tokens: Vec<u32>,
    pub(super) doors: Arc<Doors>,
    pub(super) inbox: Inbox,
    pub(super) counters: Arc<Counters>,
    pub(super) step: u64,
    pub(super) start: Instant,
}

impl Core {
    /// Steps while there is work, sleeps while there is none, until told to stop.
    pub(super) fn run(mut self) {
        self.doors.attend(std::thread::current());
        while !self.doors.is_stopping() {
            self.take();
            if self.step().is_none() {
                // A push between the last look and here leaves a wake-up token behind: no sleep.
                std::thread::park();
            }
        }
        self.take();
        self.abandon();
    }

    /// One iteration: schedule, fill, forward (tap and probe run beside it), sample, observe, send.
    /// `None` if there was nothing to run.
    fn step(&mut self) -> Option<()> {
        let begin = Instant::now();
        self.schedule()?;
        self.forward();
        self.sample();
        self.observe();
        self.dismiss();
        add(&self.counters.steps, 1);
        add(&self.counters.step_ns, begin.elapsed().as_nanos() as u64);
        Some(())
    }

    /// Takes in what came through the doors since the last step.
    fn take(&mut self) {
        while let Some(active) = self.inbox.next_submission() {
            self.admit(active);
        }
        while let Some(ticket) = self.inbox.next_cancel() {
            if let Some(slot) = ticket.live_slot() {
                self.end(Slot(slot), FinishReason::Cancelled);
            }
        }
    }

    fn admit(&mut self, active: Box<Active>) {
        let request = NewRequest {
            id: RequestId(active.id),
            prompt_tokens: active.prompt_len as u32,
            max_tokens: active.request.max_tokens,
            arrival_s: active.arrival_s,
            initial_prediction: active.initial_prediction,
            true_length: active.request.true_length,
        };
        if active.ticket.is_cancelled() {
            active.finish(FinishReason::Cancelled);
            self.doors.leave();
            return;
        }
        // `Engine::submit` checked the same limits, and the doors count the slots.
        let slot = self.scheduler.submit(request).expect("submit() lets only fitting requests in");
        active.ticket.admit(slot.0);
        if let Some(forecast) = &self.forecast {
            forecast.begin(slot.0, self.scheduler.generation(slot), active.prompt_len);
        }
        add(&self.counters.prompt_tokens, active.prompt_len as u64);
        self.slots[slot.0 as usize] = Some(active);
    }

    /// Plans the step and fills the batch with it.
    fn schedule(&mut self) -> Option<()> {
        self.step += 1;
        let now_s = self.start.elapsed().as_secs_f64();
        self.scheduler.plan(self.step, now_s);
        let plan = self.scheduler.last_plan();
        for &slot in &plan.evicted {
            tell(&self.slots, slot, Event::Preempted { evicted: true });
        }
        for &slot in plan.preempted.iter().filter(|slot| !plan.evicted.contains(slot)) {
            tell(&self.slots, slot, Event::Preempted { evicted: false });
        }
        self.batch.clear();
        self.sampled.clear();
        for row in &plan.rows {
            let active = self.slots[row.slot.0 as usize].as_ref().expect("planned rows are live");
            let (first, last) = (row.start as usize, (row.start + row.len) as usize);
            let blocks = self.scheduler.blocks(row.slot);
            self.batch.push(row.slot.0, row.start, &active.tokens[first..last], blocks, row.sample);
            if row.sample {
                self.sampled.push(row.slot);
            }
        }
        let counters = &self.counters;
        add(&counters.preemptions, plan.preempted.len() as u64);
        add(&counters.evictions, plan.evicted.len() as u64);
        add(&counters.recomputed_tokens, u64::from(plan.recomputed_tokens));
        set(&counters.running, plan.rows.len() as u64);
        set(&counters.waiting, u64::from(self.doors.live()).saturating_sub(plan.rows.len() as u64));
        set(&counters.blocks_used, u64::from(self.scheduler.blocks_used()));
        (!plan.rows.is_empty()).then_some(())
    }

    fn forward(&mut self) {
        let tap = self.forecast.as_ref().map(|forecast| {
            forecast.start(self.step);
            Tap { layer: forecast.layer(), sink: forecast }
        });
        self.backend.forward(&self.batch, tap);
        self.scheduler.advance();
    }

    /// Chooses a token for every row that asked for one, and sends it.
    fn sample(&mut self) {
        let vocab = self.vocab_size;
        let logits = self.backend.logits_mut();
        for (slot, logits) in self.sampled.iter().zip(logits.chunks_exact_mut(vocab)) {
            let active = self.slots[slot.0 as usize].as_mut().expect("sampled rows are live");
            let (prompt, generated) = active.tokens.split_at(active.prompt_len);
            let history = History { prompt, generated };
            let position = active.tokens.len() as u32;
            let sampling = &active.request.sampling;
            let chosen = self.sampler.sample(logits, sampling, history, position);
            for &(id, logprob) in &chosen.top[..usize::from(chosen.num_top)] {
                active.send(Event::Alternative { id, logprob });
            }
            active.tokens.push(chosen.id);
            active.send(Event::Token { id: chosen.id, logprob: chosen.logprob });
            let cancelled = active.ticket.is_cancelled().then_some(FinishReason::Cancelled);
            if let Some(reason) = active.ends_with(chosen.id, &self.eos_tokens).or(cancelled) {
                self.ended.push((*slot, reason));
            }
        }
        add(&self.counters.generated_tokens, self.sampled.len() as u64);
    }

    /// Hands the predictions that are there to the scheduler and to the callers; waits for none.
    fn observe(&mut self) {
        let Some(forecast) = &self.forecast else { return };
        if let Some(ready) = forecast.ready() {
            self.counters.count_slack(ready.elapsed().as_micros() as u32);
        }
        let (mut fresh, mut late) = (0, 0);
        for &slot in &self.sampled {
            let active = self.slots[slot.0 as usize].as_mut().expect("sampled rows are live");
            let generation = self.scheduler.generation(slot);
            let reading = forecast.read(slot.0).filter(|r| r.estimate.generation == generation);
            let Some(reading) = reading.filter(|r| r.step == self.step) else {
                late += 1;
                continue;
            };
            fresh += 1;
            let estimate = reading.estimate;
            let (generated, remaining) = (estimate.generated, estimate.remaining);
            let [p10, p50, p90] = estimate.quantiles;
            let step = reading.step;
            self.scheduler.predict(slot, Prediction { remaining, p10, p50, p90, step, generation });
            active.predictions.push((generated, remaining));
            active.send(Event::Prediction { generated, remaining });
        }
        add(&self.counters.predictions_fresh, fresh);
        add(&self.counters.predictions_late, late);
    }

    /// Ends the requests whose last token this step brought.
    fn dismiss(&mut self) {
        while let Some((slot, reason)) = self.ended.pop() {
            self.end(slot, reason);
        }
    }

    fn end(&mut self, slot: Slot, reason: FinishReason) {
        let Some(active) = self.slots[slot.0 as usize].take() else { return };
        self.scheduler.finish(slot);
        if matches!(reason, FinishReason::Stop | FinishReason::Length) {
            let (sum, count) = active.prediction_error();
            add(&self.counters.prediction_error_millitokens, (sum * 1e3) as u64);
            add(&self.counters.prediction_errors, count);
        }
        add(&self.counters.finished, 1);
        active.finish(reason);
        self.doors.leave();
        set(&self.counters.waiting, u64::from(self.doors.live()));
        set(&self.counters.running, 0);
        set(&self.counters.blocks_used, u64::from(self.scheduler.blocks_used()));
    }

    /// Ends everything that is left, at shutdown.
    fn abandon(&mut self) {
        for slot in 0..self.slots.len() {
            self.end(Slot(slot as u32), FinishReason::Shutdown);
        }
    }
}

fn tell(slots: &[Option<Box<Active>>], slot: Slot, event: Event) {
    if let Some(active) = &slots[slot.0 as usize] {
        active.send(event);
    }
}

//! The step loop: the one thread that owns scheduler, batch and backend.
//!
//! Where the backend works by itself, one step is under way while the next is planned:
//!
//! ```text
//! device   ..|  step n                        |  step n+1                       |
//! probe             predictions of n
//! engine        .. await them | take, plan n+1, launch it | await n's tokens, send them | await ..
//! ```
//!
//! So the plan of n+1 knows the predictions of n and not its tokens. Who turns out to have ended in n has a row too many in n+1:
//! what that samples is dropped. Its blocks may be given away at once, as whoever gets them writes behind it in stream order.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use trail_scheduler::{Scheduler, Slot};

use super::backend::{Backend, Choice, Choices, Fault, Step};
use super::doors::{Doors, Inbox};
use super::event::{Event, FinishReason};
use super::flight::Flight;
use super::forecast::Forecast;
use super::pace::Pace;
use super::sampling::Sampled;
use super::slot::Active;
use super::stats::{Counters, add, set};
use super::tap::{TapPlan, Tenant};
use crate::batch::Batch;

/// How often to look after KV on its way, when there is nothing else to do.
const TRANSFER_LOOK: Duration = Duration::from_micros(50);

/// What the engine's thread owns, beside the backend.
pub(super) struct Core {
    pub(super) scheduler: Scheduler,
    pub(super) forecast: Option<Arc<Forecast>>,
    pub(super) batch: Batch,
    pub(super) tap: TapPlan,
    /// By scheduler slot: `[max_requests]`.
    pub(super) slots: Box<[Option<Box<Active>>]>,
    /// The steps that are launched and not collected, by parity of their number.
    pub(super) flights: [Flight; 2],
    /// Whether the last step is among them.
    pub(super) under_way: bool,
    /// Whether there was nothing to do but to wait for a transfer, when last looked.
    pub(super) waits: bool,
    pub(super) pace: Pace,
    /// What a step chose.
    pub(super) sampled: Vec<Sampled>,
    /// Slots whose transfer has ended.
    pub(super) arrived: Vec<u32>,
    /// Slots whose copy at the host nobody needs any more.
    pub(super) forgotten: Vec<u32>,
    /// Requests that ended in the step that landed.
    pub(super) ended: Vec<(Slot, FinishReason)>,
    pub(super) eos_tokens: Vec<u32>,
    pub(super) doors: Arc<Doors>,
    pub(super) inbox: Inbox,
    pub(super) counters: Arc<Counters>,
    pub(super) step: u64,
    pub(super) start: Instant,
}

impl Core {
    /// Serves until told to stop. A backend that breaks down fails every request, and all that come after.
    pub(super) fn run(mut self, mut backend: Box<dyn Backend>) {
        self.doors.attend(std::thread::current());
        // A panic is a mistake of this project's; the callers must hear of it all the same.
        let served = catch_unwind(AssertUnwindSafe(|| self.serve(&mut *backend)));
        let panicked = |_| Err(Fault("the engine's thread panicked: see its message".into()));
        let outcome = served.unwrap_or_else(panicked);
        drop(backend);
        let reason = match outcome {
            Ok(()) => FinishReason::Shutdown,
            Err(fault) => {
                self.doors.fail(fault);
                FinishReason::Failed
            }
        };
        // What a panic left behind is not to be worked with: nobody is admitted any more.
        self.abandon(reason);
        loop {
            self.refuse(reason);
            if self.doors.is_stopping() {
                break;
            }
            std::thread::park();
        }
    }

    /// Steps while there is work, sleeps while there is none.
    fn serve(&mut self, backend: &mut dyn Backend) -> Result<(), Fault> {
        while !self.doors.is_stopping() {
            if self.step(backend)? {
                continue;
            }
            match self.scheduler.moving() {
                // A push between the last look and here leaves a wake-up token behind: no sleep.
                0 => std::thread::park(),
                _ => std::thread::park_timeout(TRANSFER_LOOK),
            }
        }
        Ok(())
    }

    /// One iteration: take the predictions in, then what came through the doors, plan, launch, and land the step before (a step
    /// that is done when launched lands itself). False if there was nothing to do.
    fn step(&mut self, backend: &mut dyn Backend) -> Result<bool, Fault> {
        if self.under_way {
            self.foresee();
        }
        let taken = self.take();
        self.retire();
        let arrived = self.settle(backend)?;
        // Everybody waits for a transfer: planning again would tell the same, and count as a step that somebody was passed over.
        if self.waits && !(taken || arrived) {
            return Ok(false);
        }
        self.schedule();
        self.transfer(backend)?;
        let launched = !self.batch.segments.is_empty();
        self.waits = !launched && !self.under_way && self.scheduler.moving() > 0;
        if launched {
            self.launch(backend)?;
        }
        if backend.ahead() == 0 {
            if launched {
                self.land(backend, self.step)?;
            }
            return Ok(launched);
        }
        let landing = std::mem::replace(&mut self.under_way, launched);
        if landing {
            self.land(backend, self.step - u64::from(launched))?;
        }
        Ok(launched || landing)
    }

    fn flight(&mut self, step: u64) -> &mut Flight {
        &mut self.flights[(step % 2) as usize]
    }

    /// Lets the scheduler forget those whose last token the step under way brings: they must not be planned again. Their slots stay
    /// theirs until it lands, as nobody is admitted before.
    fn retire(&mut self) {
        if !self.under_way {
            return;
        }
        let Core { scheduler, flights, slots, step, .. } = self;
        for &(slot, id) in &flights[(*step % 2) as usize].sampled {
            let live = slots[slot.index()].as_ref().is_some_and(|active| active.id == id);
            let state = scheduler.state(slot);
            if live && state.generated >= state.max_tokens {
                scheduler.finish(slot);
            }
        }
    }

    /// Plans a step and fills the batch with it; an empty one if there is nothing to run.
    fn schedule(&mut self) {
        let now_s = self.start.elapsed().as_secs_f64();
        self.scheduler.plan(self.step + 1, now_s);
        let plan = self.scheduler.last_plan();
        for &slot in &plan.evicted {
            tell(&self.slots, slot, Event::Preempted { evicted: true });
        }
        for &slot in plan.preempted.iter().filter(|slot| !plan.evicted.contains(slot)) {
            tell(&self.slots, slot, Event::Preempted { evicted: false });
        }
        self.batch.clear();
        for row in &plan.rows {
            let active = self.slots[row.slot.index()].as_ref().expect("planned rows are live");
            let (first, last) = (row.start as usize, (row.start + row.len) as usize);
            let blocks = self.scheduler.blocks(row.slot);
            match active.tokens.get(first..last) {
                Some(tokens) => self.batch.push(row.slot.0, row.start, tokens, blocks, row.sample),
                // Known to the device alone, until the step under way lands.
                None => self.batch.push_pending(row.slot.0, row.start, blocks),
            }
        }
        let counters = &self.counters;
        add(&counters.preemptions, plan.preempted.len() as u64);
        add(&counters.evictions, plan.evicted.len() as u64);
        add(&counters.swaps_out, plan.swap_out.len() as u64);
        add(&counters.swaps_in, plan.swap_in.len() as u64);
        add(&counters.recomputed_tokens, u64::from(plan.recomputed_tokens));
        set(&counters.running, plan.rows.len() as u64);
        set(&counters.waiting, u64::from(self.doors.live()).saturating_sub(plan.rows.len() as u64));
        set(&counters.blocks_used, u64::from(self.scheduler.blocks_used()));
        set(&counters.host_blocks_used, u64::from(self.scheduler.host_blocks_used()));
    }

    /// Hands the batch to the backend.
    fn launch(&mut self, backend: &mut dyn Backend) -> Result<(), Fault> {
        self.step += 1;
        let Core { scheduler, slots, batch, tap, forecast, .. } = self;
        if forecast.is_some() {
            tap.fill(batch, |slot| Tenant {
                generation: scheduler.generation(Slot(slot)),
                prompt_len: scheduler.state(Slot(slot)).prompt_tokens,
            });
        }
        let begin = Instant::now();
        backend.launch(&Step {
            number: self.step,
            batch,
            choices: &Table { slots, scheduler },
            tap: forecast.is_some().then_some(&*tap),
        })?;
        let flight = &mut self.flights[(self.step % 2) as usize];
        flight.begin = begin;
        flight.rows = batch.rows();
        flight.predicts = forecast.is_some() && !tap.rows.is_empty();
        flight.sampled.clear();
        for segment in batch.segments.iter().filter(|segment| segment.logits) {
            let active = slots[segment.slot as usize].as_ref().expect("planned rows are live");
            flight.sampled.push((Slot(segment.slot), active.id));
        }
        scheduler.advance();
        Ok(())
    }

    /// Waits for the tokens of `step`, sends them, and ends those that are complete.
    fn land(&mut self, backend: &mut dyn Backend, step: u64) -> Result<(), Fault> {
        self.sampled.clear();
        backend.collect(&mut self.sampled)?;
        let now = Instant::now();
        let flight = std::mem::take(self.flight(step));
        self.send(&flight);
        if let Some(ready) = self.forecast.as_ref().and_then(|forecast| forecast.ready(step)) {
            self.counters.count_slack(now.saturating_duration_since(ready).as_micros() as u32);
        }
        *self.flight(step) = flight;
        if backend.ahead() == 0 {
            self.observe(step);
        }
        self.dismiss();
        let took = now - self.flight(step).begin;
        let rows = self.flight(step).rows;
        self.pace.learn(rows, took);
        // The step behind it, if there is one, begins now.
        let behind = self.flight(step + 1);
        behind.begin = behind.begin.max(now);
        add(&self.counters.steps, 1);
        add(&self.counters.step_ns, took.as_nanos() as u64);
        Ok(())
    }

    /// Sends the tokens of a step. Whoever has ended since it was launched gets none.
    fn send(&mut self, flight: &Flight) {
        let mut generated = 0;
        for (&(slot, id), chosen) in flight.sampled.iter().zip(&self.sampled) {
            let active = self.slots[slot.index()].as_mut().filter(|active| active.id == id);
            let Some(active) = active else { continue };
            for &(id, logprob) in &chosen.top[..usize::from(chosen.num_top)] {
                active.send(Event::Alternative { id, logprob });
            }
            active.tokens.push(chosen.id);
            active.send(Event::Token { id: chosen.id, logprob: chosen.logprob });
            generated += 1;
            let cancelled = active.ticket.is_cancelled().then_some(FinishReason::Cancelled);
            if let Some(reason) = active.ends_with(chosen.id, &self.eos_tokens).or(cancelled) {
                self.ended.push((slot, reason));
            }
        }
        add(&self.counters.generated_tokens, generated);
    }
}

/// The requests, as a backend looks them up.
struct Table<'a> {
    slots: &'a [Option<Box<Active>>],
    scheduler: &'a Scheduler,
}

impl Choices for Table<'_> {
    fn choice(&self, slot: u32) -> Choice<'_> {
        let active = self.slots[slot as usize].as_ref().expect("planned rows are live");
        let (prompt, generated) = active.tokens.split_at(active.prompt_len);
        let position = self.scheduler.state(Slot(slot)).tokens();
        Choice { sampling: &active.request.sampling, prompt, generated, position }
    }
}

fn tell(slots: &[Option<Box<Active>>], slot: Slot, event: Event) {
    if let Some(active) = &slots[slot.index()] {
        active.send(event);
    }
}

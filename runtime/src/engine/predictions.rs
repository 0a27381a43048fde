//! Length predictions on their way from the probe to the scheduler and the callers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use trail_probe::Reading;
use trail_scheduler::{LoggedScheduler, Prediction, RequestIdx, RequestState, Scheduler};

use super::active::ActiveRequest;
use super::clock::Clock;
use super::in_flight::{InFlightStep, Sampling};
use super::length_probe::LengthProbe;
use super::lifecycle::Lifecycle;
use super::stats::{Counters, add};
use crate::backend::{Batch, Fault, RequestKey, TapPlan};

/// Duration of a wait that spins before it yields to other threads.
const SPIN: Duration = Duration::from_micros(50);

/// A preempted request whose last prediction was not there when it was preempted.
struct Overdue {
    idx: RequestIdx,
    id: u64,
    /// The last step in which it ran.
    step: u64,
}

/// The probe of one engine, if it has one, and the rows it is given.
pub(super) struct Predictions {
    probe: Option<Arc<LengthProbe>>,
    tap: TapPlan,
    overdue: Vec<Overdue>,
    counters: Arc<Counters>,
}

impl Predictions {
    /// For `max_requests` requests, and batches of up to `segments` segments.
    pub(super) fn new(
        probe: Option<Arc<LengthProbe>>,
        max_requests: usize,
        segments: usize,
        counters: Arc<Counters>,
    ) -> Predictions {
        let (tap, overdue) = (TapPlan::with_capacity(segments), Vec::with_capacity(max_requests));
        Predictions { probe, tap, overdue, counters }
    }

    pub(super) fn probe(&self) -> Option<&LengthProbe> {
        self.probe.as_deref()
    }

    /// The rows of `batch` to tap; `None` without a probe.
    pub(super) fn plan_tap(&mut self, batch: &Batch, scheduler: &Scheduler) -> Option<&TapPlan> {
        self.probe.as_ref()?;
        self.tap.fill(batch, |idx| RequestKey {
            generation: scheduler.generation(RequestIdx(idx)),
            prompt_len: scheduler.state(RequestIdx(idx)).prompt_tokens,
        });
        Some(&self.tap)
    }

    /// Fails if a thread of the probe has panicked: no predictions come any more.
    pub(super) fn check(&self) -> Result<(), Fault> {
        match self.probe.as_ref().is_some_and(|probe| probe.is_broken()) {
            true => Err(Fault("a thread of the length probe panicked: see its message".into())),
            false => Ok(()),
        }
    }

    /// Waits for the predictions of step `number`, in flight: until `deadline_ns` after its start
    /// by the wall clock, without limit by a simulated one.
    pub(super) fn wait(
        &self,
        number: u64,
        step: &InFlightStep,
        deadline_ns: u64,
        clock: &dyn Clock,
    ) {
        let Some(probe) = self.probe.as_ref().filter(|_| step.predicts) else { return };
        let simulated = clock.simulated().is_some();
        while !probe.is_done(number) && !probe.is_broken() {
            let elapsed_ns = clock.now_ns().saturating_sub(step.begin_ns);
            if !simulated && elapsed_ns >= deadline_ns {
                return;
            }
            match elapsed_ns > SPIN.as_nanos() as u64 || simulated {
                true => std::thread::yield_now(),
                false => std::hint::spin_loop(),
            }
        }
    }

    /// Lets the probe publish the predictions of a step with draft tokens: `scheduler` has those
    /// that were accepted.
    pub(super) fn verify(&self, number: u64, step: &InFlightStep, scheduler: &Scheduler) {
        let Some(probe) = self.probe.as_ref().filter(|_| step.predicts && step.drafts() > 0) else {
            return;
        };
        // A row's token is the last but one of those that the request has now, or an earlier one.
        probe.verify(number, |row| {
            row.generated < scheduler.state(RequestIdx(row.request)).generated
        });
    }

    /// Passes the predictions that are there on to the scheduler and to the callers; waits for
    /// none. One from a step before `number` is late: it is passed on too, and the scheduler counts
    /// it down. Returns the numbers of fresh and late ones.
    pub(super) fn observe(
        &self,
        number: u64,
        step: &InFlightStep,
        requests: &mut Lifecycle,
        scheduler: &mut LoggedScheduler,
    ) -> (u64, u64) {
        let (mut fresh, mut late) = (0, 0);
        for &Sampling { idx, id, .. } in &step.sampled {
            let Some(active) = requests.get_mut(idx, id) else { continue };
            let generation = scheduler.generation(idx);
            active.tapped_step = number;
            let reading = match (&active.request.predictions, &self.probe) {
                (Some(replayed), _) => replay(replayed, scheduler.state(idx), number, generation),
                (None, Some(probe)) => probe.read(idx.0).map(to_prediction),
                (None, None) => continue,
            };
            let known = active.predicted_step;
            let reading = reading.filter(|(_, p)| p.generation == generation && p.step > known);
            let on_time = reading.as_ref().is_some_and(|(_, p)| p.step == number);
            (fresh, late) = (fresh + u64::from(on_time), late + u64::from(!on_time));
            if let Some((generated, prediction)) = reading {
                active.predict(generated, prediction.remaining, prediction.step);
                scheduler.predict(idx, prediction);
            }
        }
        add(&self.counters.predictions_fresh, fresh);
        add(&self.counters.predictions_late, late);
        if let Some(probe) = &self.probe {
            self.counters.prediction_surprises.store(probe.surprises(), Ordering::Relaxed);
        }
        (fresh, late)
    }

    /// Looks again for the prediction of a request that is preempted now, if it was late: it is the
    /// one by which the request is ranked until it runs again.
    pub(super) fn await_preempted(&mut self, idx: RequestIdx, active: &ActiveRequest) {
        let (id, step) = (active.id, active.tapped_step);
        if self.probe.is_some()
            && active.request.predictions.is_none()
            && active.predicted_step < step
            && self.overdue.len() < self.overdue.capacity()
        {
            self.overdue.push(Overdue { idx, id, step });
        }
    }

    /// Passes on late predictions of preempted requests. They were counted as late before.
    pub(super) fn observe_preempted(
        &mut self,
        requests: &mut Lifecycle,
        scheduler: &mut LoggedScheduler,
    ) {
        let Some(probe) = &self.probe else { return };
        self.overdue.retain(|&Overdue { idx, id, step }| {
            let Some(active) = requests.get_mut(idx, id) else { return false };
            // Read before the cell: what is not there now will not come.
            let is_done = probe.is_done(step);
            let known = active.predicted_step;
            let generation = scheduler.generation(idx);
            let reading = probe.read(idx.0).map(to_prediction);
            let newer = |p: &Prediction| p.generation == generation && p.step > known;
            if let Some((generated, prediction)) = reading.filter(|(_, p)| newer(p)) {
                active.predict(generated, prediction.remaining, prediction.step);
                scheduler.predict(idx, prediction);
            }
            active.predicted_step < step && !is_done
        });
    }
}

/// The probe's reading in the scheduler's terms, with the number of tokens generated at that point.
fn to_prediction(reading: Reading) -> (u32, Prediction) {
    let Reading { step, estimate } = reading;
    let [p10, p50, p90] = estimate.quantiles;
    let (remaining, generation) = (estimate.remaining, estimate.generation);
    (estimate.generated, Prediction { remaining, p10, p50, p90, step, generation })
}

/// The replayed prediction of a request in `step`. `state` counts the step's token already.
fn replay(
    replayed: &[f32],
    state: &RequestState,
    step: u64,
    generation: u32,
) -> Option<(u32, Prediction)> {
    let generated = state.generated.saturating_sub(1);
    let &remaining = replayed.get(generated as usize)?;
    let (p10, p50, p90) = (remaining, remaining, remaining);
    Some((generated, Prediction { remaining, p10, p50, p90, step, generation }))
}

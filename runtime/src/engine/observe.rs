//! Predictions on their way to the scheduler and to the callers.

use std::time::{Duration, Instant};

use trail_probe::Reading;
use trail_scheduler::{Prediction, RequestState};

use super::core::Core;
use super::stats::add;

/// How long a wait spins before it lets others run.
const SPIN: Duration = Duration::from_micros(50);

impl Core {
    /// Waits for the predictions of the step under way, or until the next one must be planned; then takes in what is there.
    pub(super) fn foresee(&mut self) {
        let step = self.step;
        let flight = &self.flights[(step % 2) as usize];
        if let Some(forecast) = self.forecast.as_ref().filter(|_| flight.predicts) {
            let until = flight.begin + self.pace.cut_off(flight.rows);
            while !forecast.is_done(step) {
                let now = Instant::now();
                if now >= until {
                    break;
                }
                if now > flight.begin + SPIN {
                    std::thread::yield_now()
                } else {
                    std::hint::spin_loop()
                }
            }
        }
        self.observe(step);
    }

    /// Hands the predictions that are there to the scheduler and to the callers; waits for none. A late one, of a step before
    /// `step`, is handed on too: the scheduler counts it down.
    pub(super) fn observe(&mut self, step: u64) {
        let forecast = self.forecast.as_ref();
        let (mut fresh, mut late) = (0, 0);
        for &(slot, id) in &self.flights[(step % 2) as usize].sampled {
            let active = self.slots[slot.index()].as_mut().filter(|active| active.id == id);
            let Some(active) = active else { continue };
            let generation = self.scheduler.generation(slot);
            let reading = match (&active.request.predictions, forecast) {
                (Some(replayed), _) => {
                    replay(replayed, self.scheduler.state(slot), step, generation)
                }
                (None, Some(forecast)) => forecast.read(slot.0).map(predicted),
                (None, None) => continue,
            };
            let known = active.predicted_step;
            let reading = reading.filter(|(_, p)| p.generation == generation && p.step > known);
            let on_time = reading.as_ref().is_some_and(|(_, p)| p.step == step);
            (fresh, late) = (fresh + u64::from(on_time), late + u64::from(!on_time));
            if let Some((generated, prediction)) = reading {
                active.predict(generated, prediction.remaining, prediction.step);
                self.scheduler.predict(slot, prediction);
            }
        }
        add(&self.counters.predictions_fresh, fresh);
        add(&self.counters.predictions_late, late);
    }
}

/// The probe's reading in the scheduler's terms, and how many tokens were generated then.
fn predicted(reading: Reading) -> (u32, Prediction) {
    let Reading { step, estimate } = reading;
    let [p10, p50, p90] = estimate.quantiles;
    let (remaining, generation) = (estimate.remaining, estimate.generation);
    (estimate.generated, Prediction { remaining, p10, p50, p90, step, generation })
}

/// The replayed prediction of a request in `step`, whose token is counted in `state` already where the step was advanced over.
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

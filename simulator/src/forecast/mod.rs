//! Times at which live requests will have their first and last token, with intervals.
//!
//! Some futures of the present queue are drawn (`sample`): remaining lengths from the posteriors,
//! arrivals like the recent ones (`history`). The median of the samples is the estimate; what came
//! of earlier estimates corrects it and its interval (`calibration`), so that the intervals hold as
//! often as they say, whatever the samples leave out. Coarse events instead of the scheduler's own
//! steps, as a second of queue is a hundred steps or more: a sample of 500 requests takes less than
//! a millisecond.

mod arrival;
mod calibration;
mod class;
mod history;
mod queue;
mod sample;
mod task;
#[cfg(test)]
mod tests;
mod watched;

use trail_platform::rng::Rng;
use trail_scheduler::Phase;

pub use arrival::{ArrivalForecast, ArrivalForecaster};
pub use calibration::Interval;
pub use history::Answer;
pub use queue::{Queue, QueueOrder};

use class::{Stage, Token};
use history::History;
use sample::{Sample, Times};
use watched::Watched;

/// Futures drawn for an estimate.
const SAMPLES: usize = 16;

/// The estimate of a request, from the time of the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// Number of the request.
    pub id: u64,
    /// Seconds to its first token; `None` for a request that has it.
    pub first: Option<Interval>,
    /// Seconds to its last token.
    pub last: Interval,
}

/// Estimates for the requests of one engine.
pub struct Forecaster {
    history: History,
    rng: Rng,
    watched: Watched,
    /// The last ones, and their time.
    forecasts: Vec<Forecast>,
    made_s: f64,
    /// Seconds to the next last token of any request.
    next_end_s: f64,
}

impl Forecaster {
    /// A forecaster that has seen nothing.
    pub fn new(seed: u64) -> Forecaster {
        Forecaster {
            history: History::default(),
            rng: Rng::new(seed),
            watched: Watched::new(seed),
            forecasts: Vec::new(),
            made_s: 0.0,
            next_end_s: 0.0,
        }
    }

    /// Records the arrival of request `id`, and what was estimated then, if it was.
    pub fn arrived(&mut self, id: u64, at_s: f64, estimate: Option<&ArrivalForecast>) {
        self.history.arrived(at_s);
        self.watched.begin(id);
        let Some(estimate) = estimate else { return };
        let tokens = [(Token::First, estimate.first), (Token::Last, estimate.last)];
        for ((token, corrected), (class, raw)) in tokens.into_iter().zip(estimate.raw) {
            self.watched.add(id, (token, class), (raw, corrected), at_s);
        }
    }

    /// Records the first token of request `id`.
    pub fn began(&mut self, id: u64, at_s: f64) {
        self.watched.came(id, Token::First, at_s);
    }

    /// Records the last token of request `id`; `answer` is `None` for one that was cut off.
    pub fn ended(&mut self, id: u64, at_s: f64, answer: Option<Answer>) {
        if let Some(answer) = answer {
            self.history.answered(answer);
            self.watched.came(id, Token::Last, at_s);
        }
        self.watched.forget(id);
    }

    /// Share of the last times that were within the intervals of 80 % that were given before;
    /// `None` before the first.
    pub fn coverage(&self) -> Option<f64> {
        self.watched.coverage()
    }

    /// Estimates for all requests of `queue`, in its order.
    pub fn estimate(&mut self, queue: &Queue) -> &[Forecast] {
        let rows = queue.requests.iter().filter(|of| of.phase == Phase::Running).count();
        let step_s = queue.pace.step_s(rows.max(1));
        self.watched.update(queue.now_s, step_s, &self.forecasts, self.made_s);
        self.made_s = queue.now_s;
        let contended = rows < queue.requests.len();
        let raw = self.samples(queue);
        self.forecasts.clear();
        for (request, [first, last]) in queue.requests.iter().zip(raw) {
            let (id, stage) = (request.id.0, Stage::of(request, contended));
            let mut corrected = |token, raw| {
                let class = self.watched.corrections.class(stage, raw);
                let corrected = self.watched.corrections.correct(token, class, raw);
                self.watched.add(id, (token, class), (raw, corrected), queue.now_s);
                corrected
            };
            let last = corrected(Token::Last, last);
            let first = (request.generated == 0).then(|| corrected(Token::First, first).min(last));
            self.forecasts.push(Forecast { id, first, last });
        }
        &self.forecasts
    }

    /// Estimator of the times of arrivals, by the last queue.
    pub fn arrivals(&self, queue: &Queue) -> ArrivalForecaster {
        ArrivalForecaster::new(queue, self)
    }

    /// The quantiles of the samples of each request's first and last token.
    fn samples(&mut self, queue: &Queue) -> Vec<[Interval; 2]> {
        let samples: Vec<_> =
            (0..SAMPLES).map(|_| Sample::draw(queue, &self.history, &mut self.rng)).collect();
        let next_end = |sample: &Times| sample.iter().map(|of| of[1]).fold(f64::INFINITY, f64::min);
        let mut times = [0.0; SAMPLES];
        times.iter_mut().zip(&samples).for_each(|(to, sample)| *to = next_end(sample));
        self.next_end_s =
            if queue.requests.is_empty() { 0.0 } else { Interval::of(&mut times).median };
        let mut quantiles = |at: usize, which: usize| {
            times.iter_mut().zip(&samples).for_each(|(to, sample)| *to = sample[at][which]);
            Interval::of(&mut times)
        };
        (0..queue.requests.len()).map(|at| [0, 1].map(|which| quantiles(at, which))).collect()
    }
}

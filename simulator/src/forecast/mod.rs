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
mod history;
mod queue;
mod sample;
mod task;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use trail_platform::rng::Rng;
use trail_scheduler::{LiveRequest, Phase};

pub use arrival::{ArrivalForecast, ArrivalForecaster};
pub use calibration::Interval;
pub use history::Answer;
pub use queue::{Queue, QueueOrder};

use calibration::Calibration;
use history::History;
use sample::Sample;

/// Futures drawn for an estimate.
const SAMPLES: usize = 16;

/// Times that came over which [`Forecaster::coverage`] is counted.
const WINDOW: usize = 256;

/// Classes of requests whose estimates are corrected alike: by their age, and without a place in
/// the batch.
const CLASSES: usize = 8;

/// The classes without a place: of arrivals, of those that began, and of those that did not.
const ARRIVAL: usize = CLASSES - 1;
const BEGUN: usize = CLASSES - 2;
const NEW: usize = CLASSES - 3;

/// Bounds of the ages of those with a place, tokens.
const AGES: [u32; 4] = [1, 16, 64, 256];

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

/// An estimate that waits for what comes.
#[derive(Clone, Copy, Debug)]
struct Pending {
    id: u64,
    class: usize,
    made_s: f64,
    raw: Interval,
    corrected: Interval,
    /// False once it was compared.
    is_open: bool,
    /// Number of estimates that it was chosen from; 0 for the first, which stays.
    chosen_from: u64,
}

/// The estimates of a live request that will be compared with what comes.
#[derive(Clone, Debug, Default)]
struct Watched {
    /// Of the first token: on arrival, and of the first sample.
    first: Vec<Pending>,
    /// By class: one that was chosen, and the first.
    last: Vec<Pending>,
}

/// Estimates for the requests of one engine.
pub struct Forecaster {
    history: History,
    rng: Rng,
    /// For first tokens, and for last ones by class.
    first: [Calibration; CLASSES],
    last: [Calibration; CLASSES],
    watched: HashMap<u64, Watched>,
    /// True for each of the last times that came within its interval.
    held: VecDeque<bool>,
    forecasts: Vec<Forecast>,
}

impl Forecaster {
    /// A forecaster that has seen nothing.
    pub fn new(seed: u64) -> Forecaster {
        Forecaster {
            history: History::default(),
            rng: Rng::new(seed),
            first: Default::default(),
            last: Default::default(),
            watched: HashMap::new(),
            held: VecDeque::new(),
            forecasts: Vec::new(),
        }
    }

    /// Records the arrival of request `id`, and what was estimated then, if it was.
    pub fn arrived(&mut self, id: u64, at_s: f64, estimate: Option<&ArrivalForecast>) {
        self.history.arrived(at_s);
        let Some(estimate) = estimate else { return };
        let pending = |raw, corrected| Pending {
            id,
            class: ARRIVAL,
            made_s: at_s,
            raw,
            corrected,
            is_open: true,
            chosen_from: 0,
        };
        let watched = self.watched.entry(id).or_default();
        watched.first.push(pending(estimate.raw[0], estimate.first));
        watched.last.push(pending(estimate.raw[1], estimate.last));
    }

    /// Records the first token of request `id`.
    pub fn began(&mut self, id: u64, at_s: f64) {
        let Some(watched) = self.watched.get_mut(&id) else { return };
        let open = watched.first.clone();
        watched.first.iter_mut().for_each(|of| of.is_open = false);
        open.into_iter().for_each(|of| self.record(of, true, at_s - of.made_s));
    }

    /// Records the last token of request `id`; `answer` is `None` for one that was cut off.
    pub fn ended(&mut self, id: u64, at_s: f64, answer: Option<Answer>) {
        let watched = self.watched.remove(&id);
        let Some(answer) = answer else { return };
        self.history.answered(answer);
        for pending in watched.into_iter().flat_map(|of| of.last) {
            self.record(pending, false, at_s - pending.made_s);
        }
    }

    /// Share of the last times that were within the intervals of 80 % that were given before;
    /// `None` before the first.
    pub fn coverage(&self) -> Option<f64> {
        let held = self.held.iter().filter(|&&held| held).count();
        (!self.held.is_empty()).then(|| held as f64 / self.held.len() as f64)
    }

    /// Estimates for all requests of `queue`, in its order.
    pub fn estimate(&mut self, queue: &Queue) -> &[Forecast] {
        self.count_late(queue.now_s);
        let raw = self.samples(queue);
        self.forecasts.clear();
        for (request, raw) in queue.requests.iter().zip(raw) {
            let forecast = self.correct(request, raw);
            self.watch(request, raw, &forecast, queue.now_s);
            self.forecasts.push(forecast);
        }
        &self.forecasts
    }

    /// Records the estimates whose interval has passed: their times are above it, whatever they
    /// will be. Those that take longest would be heard of last.
    fn count_late(&mut self, now_s: f64) {
        let (mut late, classes) = (Vec::new(), [&self.first, &self.last]);
        for Watched { first, last } in self.watched.values_mut() {
            let first = first.iter_mut().map(|of| (true, of));
            for (is_first, of) in first.chain(last.iter_mut().map(|of| (false, of))) {
                let now = classes[usize::from(!is_first)][of.class].correct(of.raw);
                if of.is_open && now_s - of.made_s > now.high {
                    late.push((is_first, *of));
                    of.is_open = false;
                }
            }
        }
        // The order of a map is another one in each process.
        late.sort_by(|(_, a), (_, b)| a.id.cmp(&b.id).then(a.made_s.total_cmp(&b.made_s)));
        late.into_iter().for_each(|(is_first, of)| self.record(of, is_first, f64::INFINITY));
    }

    /// Takes in that the time of `pending` came after `seconds`.
    fn record(&mut self, pending: Pending, is_first: bool, seconds: f64) {
        let Pending { class, raw, corrected, .. } = pending;
        if !pending.is_open {
            return;
        }
        let classes = if is_first { &mut self.first } else { &mut self.last };
        classes[class].record(raw, seconds);
        if self.held.len() == WINDOW {
            self.held.pop_front();
        }
        self.held.push_back(corrected.contains(seconds));
    }

    /// Estimator of the times of arrivals, by the last queue.
    pub fn arrivals(&self, queue: &Queue) -> ArrivalForecaster {
        let corrections = [self.first[ARRIVAL], self.last[ARRIVAL]];
        ArrivalForecaster::new(queue, &self.forecasts, &self.history, corrections)
    }

    /// The quantiles of the samples of each request's first and last token.
    fn samples(&mut self, queue: &Queue) -> Vec<[Interval; 2]> {
        let samples: Vec<_> =
            (0..SAMPLES).map(|_| Sample::draw(queue, &self.history, &mut self.rng)).collect();
        let mut times = [0.0; SAMPLES];
        let mut quantiles = |at: usize, which: usize| {
            times.iter_mut().zip(&samples).for_each(|(to, sample)| *to = sample[at][which]);
            Interval::of(&mut times)
        };
        (0..queue.requests.len()).map(|at| [0, 1].map(|which| quantiles(at, which))).collect()
    }

    fn correct(&self, request: &LiveRequest, [first, last]: [Interval; 2]) -> Forecast {
        let class = class(request);
        Forecast {
            id: request.id.0,
            first: (request.generated == 0).then(|| self.first[class].correct(first)),
            last: self.last[class].correct(last),
        }
    }

    /// Keeps some of a request's estimates: in each class that it passes through the first one, and
    /// any of those made there, with equal chance.
    fn watch(
        &mut self,
        request: &LiveRequest,
        [first, last]: [Interval; 2],
        forecast: &Forecast,
        made_s: f64,
    ) {
        let (id, class) = (request.id.0, class(request));
        let watched = self.watched.entry(id).or_default();
        let pending = |raw, corrected, chosen_from| Pending {
            id,
            class,
            made_s,
            raw,
            corrected,
            is_open: true,
            chosen_from,
        };
        if let Some(corrected) = forecast.first
            && watched.first.iter().all(|of| of.class == ARRIVAL)
        {
            watched.first.push(pending(first, corrected, 0));
        }
        let of_class = |of: &&mut Pending| of.class == class && of.chosen_from > 0;
        match watched.last.iter_mut().find(of_class) {
            None => watched.last.extend([0, 1].map(|from| pending(last, forecast.last, from))),
            Some(of) => {
                let from = of.chosen_from + 1;
                match of.is_open && self.rng.below(from) == 0 {
                    true => *of = pending(last, forecast.last, from),
                    false => of.chosen_from = from,
                }
            }
        }
    }
}

/// The class of a request's estimates.
fn class(request: &LiveRequest) -> usize {
    match request.phase {
        Phase::Running => AGES.partition_point(|&age| age <= request.generated),
        _ if request.started => BEGUN,
        _ => NEW,
    }
}

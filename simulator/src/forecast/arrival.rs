//! The times of a request that would arrive now, by the estimates of those before it.
//!
//! A look at the order instead of a separate sample, as each arrival asks: it is served after the
//! request ranked before it, or when the next place comes free.

use trail_scheduler::policies::UNKNOWN_LENGTH_TOKENS;
use trail_scheduler::{Key, LiveRequest, Phase, StepPace};

use super::calibration::Interval;
use super::class::{Class, Corrections, Stage, Token};
use super::queue::{Queue, QueueOrder};
use super::sample::PRIORITY;
use super::{Forecast, Forecaster};

/// State of the queue that an arrival meets.
#[derive(Clone, Debug, Default)]
pub struct ArrivalForecaster {
    /// False where the order is that of arrival, but for priorities.
    by_length: bool,
    /// Rank of those that wait, and seconds to their next token, in the order.
    waiting: Vec<(f64, Interval)>,
    /// Seconds to the next free place; zero where there is one.
    place: Interval,
    /// The last rank in the batch whose place one before it takes.
    longest: f64,
    next_end_s: f64,
    pace: StepPace,
    rows: usize,
    /// Quantiles of the length over the predicted one, and of the length.
    ratios: Interval,
    lengths: Interval,
    corrections: Corrections,
}

/// The estimate for an arrival.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArrivalForecast {
    /// Number of requests that wait before it.
    pub place: usize,
    /// Seconds to its first token.
    pub first: Interval,
    /// Seconds to its last token.
    pub last: Interval,
    /// The two times before they were corrected, with their classes.
    pub(super) raw: [(Class, Interval); 2],
}

impl ArrivalForecaster {
    pub(super) fn new(queue: &Queue, forecaster: &Forecaster) -> ArrivalForecaster {
        let rows = queue.requests.iter().filter(|of| of.phase == Phase::Running).count();
        let both = || queue.requests.iter().zip(&forecaster.forecasts);
        let running = || both().filter(|(request, _)| request.phase == Phase::Running);
        let step_s = queue.pace.step_s(rows.max(1));
        let rank = |request: &LiveRequest| {
            let of_class = match request.key.class() {
                // Before all priorities.
                ..Key::EXPRESS => return f64::NEG_INFINITY,
                Key::OPEN => request.remaining.map_or(UNKNOWN, f64::from),
                _ => -OVERDUE,
            };
            PRIORITY * f64::from(request.priority) + of_class
        };
        let until = |request: &LiveRequest, forecast: &Forecast| {
            let left = f64::from(request.remaining.unwrap_or(0.0));
            forecast.first.unwrap_or(forecast.last.after(left * step_s))
        };
        let waiting = both().filter(|(request, _)| request.phase != Phase::Running);
        let ends = running().map(|(_, forecast)| forecast.last);
        let soonest = ends.min_by(|a, b| a.median.total_cmp(&b.median));
        let lengths = running().filter(|(of, _)| of.preemptable).map(|(of, _)| rank(of));
        let preempts = queue.order == QueueOrder::Length { preempts: true };
        let [ratios, lengths_known] = forecaster.history.lengths();
        ArrivalForecaster {
            by_length: queue.order != QueueOrder::Arrival,
            waiting: waiting.map(|(request, of)| (rank(request), until(request, of))).collect(),
            place: match rows < queue.max_running {
                true => Interval::default(),
                false => soonest.unwrap_or_default(),
            },
            longest: lengths.filter(|_| preempts).fold(f64::NEG_INFINITY, f64::max),
            next_end_s: forecaster.next_end_s,
            pace: queue.pace,
            rows,
            ratios,
            lengths: lengths_known,
            corrections: forecaster.watched.corrections.clone(),
        }
    }

    /// The output tokens of a request with the length that a predictor expects, and at most
    /// `max_tokens`, by the lengths of past answers.
    pub fn length(&self, max_tokens: u32, predicted: Option<f32>) -> Interval {
        let length = match predicted {
            Some(tokens) => self.ratios.map(|ratio| ratio * f64::from(tokens)),
            None => self.lengths,
        };
        length.map(|tokens| tokens.clamp(1.0, f64::from(max_tokens.max(1))))
    }

    /// The estimate for a request of `prompt_tokens` to compute, with the output length that a
    /// predictor expects, at most `max_tokens` and this priority; `None` before a step was timed.
    pub fn estimate(
        &self,
        prompt_tokens: u32,
        max_tokens: u32,
        predicted: Option<f32>,
        priority: i32,
    ) -> Option<ArrivalForecast> {
        if !self.pace.is_known() {
            return None;
        }
        let length = self.length(max_tokens, predicted);
        let predicted = predicted.map_or(UNKNOWN, f64::from);
        let of_class = if self.by_length { predicted } else { OVERDUE };
        let rank = PRIORITY * f64::from(priority) + of_class;
        let place = self.waiting.partition_point(|&(of, _)| of <= rank);
        let at_once = PRIORITY * f64::from(priority) + predicted < self.longest;
        let wait = match place.checked_sub(1) {
            Some(before) => self.waiting[before].1,
            None if at_once => Interval::default(),
            None => self.place,
        };
        let step_s = self.pace.step_s(self.rows + 1);
        let begin_s = self.pace.prefill_token_s * f64::from(prompt_tokens) + step_s;
        let first = wait.map(|at| at + begin_s);
        let decode = length.map(|tokens| (tokens - 1.0) * step_s);
        let last = Interval {
            low: first.low + decode.low,
            median: first.median + decode.median,
            high: first.high + decode.high,
        };
        let stage = Stage::Arrival { waits: !self.waiting.is_empty() };
        let raw = [first, last].map(|raw| (self.corrections.class(stage, raw), raw));
        let [first, last] = [(Token::First, raw[0]), (Token::Last, raw[1])]
            .map(|(token, (class, raw))| self.corrections.correct(token, class, raw));
        Some(ArrivalForecast { place, first: first.min(last), last, raw })
    }

    /// Seconds until the next request ends: after which a refused one may try again.
    pub fn next_end_s(&self) -> f64 {
        self.next_end_s
    }
}

/// Ranks of the overdue are less than that by length, and those by arrival not.
const OVERDUE: f64 = 1e9;

/// Rank of a request without a prediction.
const UNKNOWN: f64 = UNKNOWN_LENGTH_TOKENS as f64;

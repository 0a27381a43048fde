//! The live answers of a model at one moment.

use std::collections::HashMap;
use std::sync::Arc;

use trail_runtime::engine::Stats;
use trail_scheduler::{Decision, LiveRequest, Phase};
use trail_simulator::forecast::{ArrivalForecaster, Forecast, Interval};

use super::Owner;
use super::history::History;
use super::reason::reason;

/// The live answers, in the scheduler's order.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveFrame {
    /// Number of the frame.
    pub number: u64,
    /// Time on the engine's clock, seconds.
    pub now_s: f64,
    pub rows: Vec<LiveRow>,
    /// Place in `rows` by the engine's number.
    pub places: HashMap<u64, usize>,
    pub arrivals: Arc<ArrivalForecaster>,
    /// Share of the last times that were within their intervals.
    pub coverage: Option<f64>,
    /// Requests in the batch, and the most that it has places for.
    pub batch: (usize, usize),
    /// KV blocks in use, and all.
    pub blocks: (u64, u64),
    pub history: Arc<History>,
    pub stats: Stats,
}

/// A live answer.
#[derive(Clone, Debug)]
pub(crate) struct LiveRow {
    pub request: LiveRequest,
    /// `None` for one that did not come by HTTP.
    pub owner: Option<Arc<Owner>>,
    /// 0 in the batch, else its place among those that wait, from 1.
    pub place: usize,
    /// Median of the remaining tokens, or what was expected on arrival.
    pub remaining: Option<f32>,
    /// Interval of 80 % of the remaining tokens.
    pub interval: Option<[f32; 2]>,
    /// Seconds of a step.
    pub step_s: f64,
    /// Times from the frame's.
    pub forecast: Option<Forecast>,
    /// The last ones, oldest first.
    pub decisions: Arc<Vec<Decision>>,
}

impl LiveFrame {
    /// The row of the engine's request `id`.
    pub(crate) fn row(&self, id: u64) -> Option<&LiveRow> {
        self.places.get(&id).map(|&at| &self.rows[at])
    }

    /// The reason for which `row` waits, in words.
    pub(crate) fn reason(&self, row: &LiveRow) -> Option<String> {
        reason(self, row)
    }
}

impl LiveRow {
    /// The state as clients see it.
    pub(crate) fn state(&self) -> &'static str {
        match self.request.phase {
            Phase::Free | Phase::Waiting => "waiting",
            Phase::Running if self.request.generated == 0 => "prefill",
            Phase::Running => "running",
            Phase::Paused => "paused",
            Phase::SwappingOut | Phase::Swapped | Phase::SwappingIn => "swapped",
        }
    }

    /// Tokens left, when there are `since` fewer.
    fn left(&self, since: u32) -> Option<Interval> {
        let ([low, high], median) = (self.interval?.map(f64::from), f64::from(self.remaining?));
        Some(Interval { low, median, high }.left(since.into()))
    }

    /// Seconds to the last token, `elapsed_s` after the frame, when there are `since` tokens more.
    pub(super) fn last(&self, elapsed_s: f64, since: u32) -> Option<Interval> {
        let (last, left) = (self.forecast?.last, self.left(since)?);
        Some(last.counted_down(elapsed_s, left, self.step_s))
    }

    /// Seconds to the first and to the last token, `elapsed_s` after the frame.
    pub(crate) fn times(&self, elapsed_s: f64) -> (Option<Interval>, Option<Interval>) {
        let first = self.forecast.and_then(|of| of.first);
        let last = self.forecast.map(|of| of.last);
        (first.map(|of| of.after(elapsed_s)), last.map(|of| of.after(elapsed_s)))
    }

    /// The same in milliseconds: low, median and high.
    pub(crate) fn times_ms(&self, elapsed_s: f64) -> [Option<[u64; 3]>; 2] {
        let (first, last) = self.times(elapsed_s);
        [first.map(milliseconds), last.map(milliseconds)]
    }
}

/// The low end, the median and the high end of an interval in milliseconds.
pub(super) fn milliseconds(Interval { low, median, high }: Interval) -> [u64; 3] {
    [low, median, high].map(|at| (at * 1e3).round() as u64)
}

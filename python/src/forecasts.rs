//! Times of live answers: estimates from snapshots of the engine, at most ten a second, made when a
//! part of an answer is taken.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trail_runtime::engine::{Clock, Engine, LiveBoard, LiveSnapshot, RequestHandle};
use trail_scheduler::{LiveRequest, Phase, SchedulerConfig};
use trail_simulator::forecast::{Answer, ArrivalForecaster, Forecast, Forecaster, Interval, Queue};

/// Least time between two snapshots.
const PERIOD: Duration = Duration::from_millis(100);

/// Time that passes for a time of estimating.
const ESTIMATE_SHARE: u32 = 100;

/// Expectation of the rest of an answer; intervals are of 80 %.
#[derive(Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Median of the remaining tokens.
    pub(crate) remaining: Option<f32>,
    pub(crate) interval: Option<(f32, f32)>,
    /// Seconds until the last token.
    pub(crate) eta: Option<f64>,
    pub(crate) eta_interval: Option<(f64, f64)>,
}

/// A live request in the last snapshot.
struct Row {
    request: LiveRequest,
    /// Time to the last token, from that of the estimate.
    last: Interval,
    /// Seconds of a step then.
    step_s: f64,
}

struct State {
    forecaster: Forecaster,
    queue: Queue,
    snapshot: LiveSnapshot,
    arrivals: ArrivalForecaster,
    rows: HashMap<u64, Row>,
    next_look: Instant,
}

/// The estimates of one engine.
pub(crate) struct Forecasts {
    board: Arc<LiveBoard>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

impl Forecasts {
    pub(crate) fn new(engine: &Engine) -> Forecasts {
        let (max_running, num_blocks) = (engine.max_running() as u32, engine.kv_blocks() as u32);
        let sizes = SchedulerConfig { max_running, num_blocks, ..SchedulerConfig::default() };
        let (queue, forecaster) = (Queue::new(&sizes, engine.policy()), Forecaster::new(0));
        let state = State {
            arrivals: forecaster.arrivals(&queue),
            forecaster,
            queue,
            snapshot: LiveSnapshot::default(),
            rows: HashMap::new(),
            next_look: Instant::now(),
        };
        let (board, clock) = (engine.live_board().clone(), engine.clock().clone());
        Forecasts { board, clock, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a request of these tokens of the prompt, at most these of the answer, and this
    /// priority.
    pub(crate) fn enter(
        self: &Arc<Self>,
        handle: &RequestHandle,
        (prompt_tokens, max_tokens, priority): (u32, u32, i32),
    ) -> Watched {
        let (id, predicted) = (handle.id(), handle.initial_prediction());
        let (all, arrival_s) = (self.clone(), self.clock.now_s());
        let mut state = self.lock();
        let estimate = state.arrivals.estimate(prompt_tokens, max_tokens, predicted, priority);
        state.forecaster.arrived(id, arrival_s, estimate.as_ref());
        let answer = Answer { prompt_tokens, length: 0, predicted, priority };
        let on_arrival = estimate.map(|of| of.last);
        Watched { all, id, arrival_s, on_arrival, max_tokens, answer, has_ended: false }
    }

    /// Estimates again, if the last time is long enough ago and a snapshot is there.
    fn look(&self, state: &mut State) {
        let begin = Instant::now();
        if begin < state.next_look {
            return;
        }
        state.next_look = begin + PERIOD;
        if self.board.take(&mut state.snapshot) && state.snapshot.pace.is_known() {
            state.estimate();
            state.next_look += ESTIMATE_SHARE * begin.elapsed();
        }
        self.board.ask();
    }
}

impl State {
    fn estimate(&mut self) {
        let LiveSnapshot { now_s, pace, overdue_after_s, policy, requests, .. } =
            &mut self.snapshot;
        requests.sort_unstable_by_key(|request| request.key);
        let queue = &mut self.queue;
        queue.set_policy(*policy);
        (queue.now_s, queue.pace, queue.overdue_after_s) = (*now_s, *pace, *overdue_after_s);
        queue.requests.clone_from(requests);
        let forecasts = self.forecaster.estimate(queue);
        let batch = queue.requests.iter().filter(|request| request.phase == Phase::Running);
        let step_s = pace.step_s(batch.count());
        let rows = queue.requests.iter().zip(forecasts);
        let row = |(&request, of): (_, &Forecast)| (of.id, Row { request, last: of.last, step_s });
        self.rows = rows.map(row).collect();
        self.arrivals = self.forecaster.arrivals(&self.queue);
    }

    /// By the last estimate, or by that on arrival, when the answer has `tokens`.
    fn progress(&self, of: &Watched, tokens: u32, now_s: f64) -> Progress {
        let row = self.rows.get(&of.id);
        let quantiles = row.and_then(|row| row.request.quantiles);
        let (length, generated) = match (row, quantiles) {
            (Some(row), Some([low, median, high])) => {
                let [low, median, high] = [low, median, high].map(f64::from);
                (Interval { low, median, high }, row.request.generated)
            }
            _ => (self.arrivals.length(of.max_tokens, of.answer.predicted), 0),
        };
        let left = length.left(tokens.saturating_sub(generated).into());
        let last = match row {
            Some(row) => Some((row.last, self.queue.now_s, row.step_s)),
            // The last estimate was before it.
            None => of.on_arrival.map(|last| (last, of.arrival_s, self.queue.pace.step_s(1))),
        };
        let last =
            last.map(|(last, from_s, step_s)| last.counted_down(now_s - from_s, left, step_s));
        Progress {
            remaining: Some(left.median as f32),
            interval: Some((left.low as f32, left.high as f32)),
            eta: last.map(|at| at.median),
            eta_interval: last.map(|at| (at.low, at.high)),
        }
    }
}

/// An answer in progress. One that is dropped before its end was cut off.
pub(crate) struct Watched {
    all: Arc<Forecasts>,
    id: u64,
    arrival_s: f64,
    /// Time to the last token, as it was estimated on arrival.
    on_arrival: Option<Interval>,
    max_tokens: u32,
    answer: Answer,
    has_ended: bool,
}

impl Watched {
    /// Records the first token.
    pub(crate) fn begin(&self) {
        self.all.lock().forecaster.began(self.id, self.all.clock.now_s());
    }

    /// Records the end, of an answer that is whole or was cut off, after `length` tokens.
    pub(crate) fn end(&mut self, is_whole: bool, length: u32) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let answer = Answer { length, ..self.answer };
        let mut state = self.all.lock();
        state.rows.remove(&self.id);
        let at_s = self.all.clock.now_s();
        state.forecaster.ended(self.id, at_s, is_whole.then_some(answer));
    }

    /// Expectation of the rest when there are `tokens`.
    pub(crate) fn progress(&self, tokens: u32) -> Progress {
        let mut state = self.all.lock();
        self.all.look(&mut state);
        state.progress(self, tokens, self.all.clock.now_s())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.end(false, 0);
    }
}

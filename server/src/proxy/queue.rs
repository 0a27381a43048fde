//! The places of the upstream, and the requests that wait for one.
//!
//! A scheduler with as many places as the upstream has decides who is next. It knows nothing of the
//! upstream's steps: a step is made here for each token that a place takes on average, by the
//! clock, and whenever a place becomes free or a request arrives at a free one. So backlog, rates
//! and the bound on waits are in tokens, as in an engine; an answer's length is there the time in
//! its place over the mean time of a token.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use trail_scheduler::limits::{BLOCK_TOKENS, blocks_for};
use trail_scheduler::policies::PolicyKind;
use trail_scheduler::{
    ConfigError, LogHeader, LogSink, LoggedScheduler, NewRequest, Refusal, RequestId, RequestIdx,
    SchedulerConfig,
};

/// Longest prompt and answer that the scheduler counts, tokens: more than a model's context.
const MAX_PROMPT: u32 = 1 << 17;
const MAX_ANSWER: u32 = 1 << 17;

/// KV blocks for each place. The upstream has its own; these must only be enough that the scheduler
/// takes none from a running request.
const BLOCKS_PER_PLACE: u32 = 2048;

/// Seconds a token before the first answer, and the bounds of what is measured.
const FIRST_PACE_S: f64 = 0.03;
const PACE_S: std::ops::RangeInclusive<f64> = 0.0005..=10.0;
/// Share of the measured times and tokens that an answer leaves to the next one.
const MEMORY: f64 = 0.98;

/// Shortest time between two looks at the clock.
const TICK: Duration = Duration::from_millis(20);
/// Most steps that are made up for at once.
const MAX_STEPS: u32 = 4096;

/// The queue before the upstream's places.
pub(crate) struct Queue {
    state: Mutex<State>,
    /// Wakes the clock when a place is taken.
    taken: Notify,
}

struct State {
    scheduler: LoggedScheduler,
    places: u32,
    /// By index of the scheduler.
    entries: Vec<Option<Entry>>,
    /// Requests that hold a place.
    running: u32,
    ids: u64,
    step: u64,
    begin: Instant,
    /// Time of the next step.
    next_s: f64,
    /// Seconds in a place, and tokens, of the last answers.
    measured: (f64, f64),
    /// False while the upstream is down: no token comes.
    is_up: bool,
}

/// A request of the scheduler.
enum Entry {
    /// To be told that it has a place.
    Waits(oneshot::Sender<()>),
    /// It has one since then.
    Holds(Instant),
}

/// A request's place in the queue, then a place; given back when dropped.
pub(super) struct Place {
    queue: Arc<Queue>,
    idx: RequestIdx,
    generation: u32,
    admitted: Option<oneshot::Receiver<()>>,
    /// Output tokens of the answer, once they are known.
    tokens: Option<u32>,
}

impl Queue {
    /// `places` places and at most `max_requests` requests, in the order of `policy`.
    pub(super) fn new(
        places: u32,
        max_requests: u32,
        policy: PolicyKind,
        sink: Option<Box<dyn LogSink>>,
    ) -> Result<Arc<Queue>, ConfigError> {
        let config = SchedulerConfig {
            max_running: places,
            max_requests: max_requests.max(places),
            token_budget: u32::MAX,
            num_blocks: (places * BLOCKS_PER_PLACE).max(blocks_for(MAX_PROMPT + MAX_ANSWER)),
            max_context: MAX_PROMPT + MAX_ANSWER,
            watermark: 0.0,
            ..SchedulerConfig::default()
        };
        let header = LogHeader { config, policy, max_gap_s: 0.0 };
        let state = State {
            scheduler: LoggedScheduler::new(&header, sink)?,
            places,
            entries: (0..config.max_requests).map(|_| None).collect(),
            running: 0,
            ids: 0,
            step: 0,
            begin: Instant::now(),
            next_s: 0.0,
            measured: (FIRST_PACE_S, 1.0),
            is_up: true,
        };
        Ok(Arc::new(Queue { state: Mutex::new(state), taken: Notify::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a request into the queue, and completes its [`Place::admitted`] when it has a place.
    pub(super) fn submit(
        self: &Arc<Self>,
        prompt_tokens: usize,
        predicted: Option<f32>,
        priority: i32,
        deadline: Option<Duration>,
    ) -> Result<Place, Refusal> {
        let mut state = self.state();
        state.catch_up();
        let now_s = state.now_s();
        let request = NewRequest {
            id: RequestId(state.ids),
            prompt_tokens: prompt_tokens.clamp(1, MAX_PROMPT as usize) as u32,
            max_tokens: MAX_ANSWER,
            arrival_s: now_s,
            initial_prediction: predicted.map(|tokens| tokens.min(MAX_ANSWER as f32)),
            priority,
            deadline_s: deadline.map(|limit| now_s + limit.as_secs_f64()),
            ..NewRequest::default()
        };
        let idx = state.scheduler.submit(request)?;
        state.ids += 1;
        let generation = state.scheduler.generation(idx);
        let (sender, admitted) = oneshot::channel();
        state.entries[idx.index()] = Some(Entry::Waits(sender));
        if state.running < state.places {
            state.step_now();
            self.taken.notify_one();
        }
        drop(state);
        let admitted = Some(admitted);
        Ok(Place { queue: self.clone(), idx, generation, admitted, tokens: None })
    }

    /// Makes the steps that are due. Never completes.
    pub(super) async fn keep_time(self: Arc<Self>) {
        loop {
            let pace = {
                let mut state = self.state();
                state.catch_up();
                (state.running > 0).then(|| state.pace_s())
            };
            match pace {
                Some(pace_s) => tokio::time::sleep(TICK.max(Duration::from_secs_f64(pace_s))).await,
                None => self.taken.notified().await,
            }
        }
    }

    /// Records whether the upstream answers.
    pub(super) fn set_up(&self, is_up: bool) {
        let mut state = self.state();
        if state.is_up != is_up {
            state.is_up = is_up;
            state.next_s = state.now_s();
        }
    }

    /// True unless the upstream is known to be down.
    pub(super) fn is_up(&self) -> bool {
        self.state().is_up
    }

    /// Orders requests by predictions if `trusted`, else by arrival.
    pub(super) fn trust_predictions(&self, trusted: bool) {
        self.state().scheduler.trust_predictions(trusted);
    }

    /// Requests that have a place or wait for one.
    pub(crate) fn live(&self) -> u32 {
        self.state().scheduler.live() as u32
    }

    /// Requests that have a place, that wait, and output tokens that are predicted to come.
    pub(super) fn load(&self) -> (u32, usize, f64) {
        let state = self.state();
        let waiting = state.scheduler.live() - state.running as usize;
        (state.running, waiting, state.scheduler.outstanding().tokens)
    }

    fn end(&self, place: &Place) {
        let mut state = self.state();
        state.catch_up();
        let idx = place.idx;
        if state.scheduler.generation(idx) != place.generation {
            // Its answer was longer than all that is counted.
            return;
        }
        let held = state.entries[idx.index()].take();
        let frees = matches!(held, Some(Entry::Holds(_)));
        if let (Some(Entry::Holds(since)), Some(tokens)) = (held, place.tokens) {
            state.measure(since.elapsed().as_secs_f64(), f64::from(tokens.max(1)));
        }
        state.scheduler.finish(idx);
        if frees {
            state.running -= 1;
            state.step_now();
        }
    }
}

impl State {
    fn now_s(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Seconds that a token takes in a place, its share of the prompt's time included.
    fn pace_s(&self) -> f64 {
        (self.measured.0 / self.measured.1).clamp(*PACE_S.start(), *PACE_S.end())
    }

    fn measure(&mut self, seconds: f64, tokens: f64) {
        let (time, count) = self.measured;
        self.measured = (MEMORY * time + seconds, MEMORY * count + tokens);
    }

    /// Makes the steps that are due by the clock. A step that came early, as a place was free, has
    /// taken the place of one.
    fn catch_up(&mut self) {
        let now_s = self.now_s();
        if self.running == 0 || !self.is_up {
            self.next_s = self.next_s.max(now_s);
            return;
        }
        for _ in 0..MAX_STEPS {
            if self.next_s > now_s {
                return;
            }
            self.step(self.next_s);
        }
        self.next_s = now_s;
    }

    /// A step before its time, as a place is free. Later steps make up for it.
    fn step_now(&mut self) {
        let now_s = self.now_s();
        self.step(now_s);
    }

    /// A step at `now_s`: the first in the order takes a free place, and each that has one a token.
    fn step(&mut self, now_s: f64) {
        let pace_s = self.pace_s();
        self.next_s += pace_s;
        self.step += 1;
        let begun = Instant::now();
        let (mut too_long, entries) = (None, &mut self.entries);
        let plan = self.scheduler.plan(self.step, now_s);
        for row in &plan.rows {
            if row.start + row.len >= MAX_PROMPT + MAX_ANSWER - BLOCK_TOKENS {
                too_long = Some(row.idx);
            }
            let place = &mut entries[row.idx.index()];
            if let Some(Entry::Waits(_)) = place
                && let Some(Entry::Waits(waiter)) = place.replace(Entry::Holds(begun))
            {
                self.running += 1;
                // A request that leaves now gives its place back by its place.
                let _ = waiter.send(());
            }
        }
        self.scheduler.advance();
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        self.scheduler.collected(self.step, ns(now_s), ns(pace_s));
        if let Some(idx) = too_long {
            self.scheduler.finish(idx);
            self.entries[idx.index()] = None;
            self.running -= 1;
        }
    }
}

impl Place {
    /// Completes when the request has a place.
    pub(super) async fn admitted(&mut self) {
        if let Some(admitted) = &mut self.admitted {
            // The sender sends before it is dropped: the place, which ends the request, is here.
            let _ = admitted.await;
            self.admitted = None;
        }
    }

    /// Records the output tokens of the whole answer.
    pub(super) fn set_tokens(&mut self, tokens: u32) {
        self.tokens = Some(tokens);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.queue.end(self);
    }
}

#[cfg(test)]
mod tests;

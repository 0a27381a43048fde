//! The slots of the upstream, and the requests that wait for one.
//!
//! A scheduler for as many requests at once as the upstream has slots decides who is next. It knows
//! nothing of the upstream's steps: a step is made here for each token that a slot takes on
//! average, by the clock, and whenever a slot becomes free or a request arrives at a free one. So
//! backlog, rates and the bound on waits are in tokens, as in an engine; an answer's length is
//! there the time in its slot over the mean time of a token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use trail_scheduler::limits::blocks_for;
use trail_scheduler::policies::PolicyKind;
use trail_scheduler::{
    ConfigError, LogHeader, LogSink, LoggedScheduler, NewRequest, Refusal, RequestId, RequestIdx,
    SchedulerConfig,
};

use super::pace::Pace;
use super::slot::Slot;

/// Tokens of a prompt that count in the order: those of a longer one count as so many.
const MAX_PROMPT: u32 = 1 << 13;
/// Tokens of an answer after which its request is submitted again to the scheduler.
const MAX_ANSWER: u32 = 1 << 15;
/// Priority of such a request: before all others, so that it keeps its slot.
const RENEWED: i32 = -127;

/// Shortest time between two looks at the clock.
const TICK: Duration = Duration::from_millis(20);
/// Most steps that are made up for at once.
const MAX_STEPS: u32 = 4096;

/// The queue before the upstream's slots.
pub(crate) struct Queue {
    state: Mutex<State>,
    /// Wakes the clock when a slot is taken.
    taken: Notify,
}

struct State {
    scheduler: LoggedScheduler,
    slots: u32,
    /// By index of the scheduler.
    entries: Vec<Option<Entry>>,
    /// Indices of the scheduler, by the number of a [`Slot`].
    indices: HashMap<u64, RequestIdx>,
    /// Requests that hold a slot.
    running: u32,
    /// Requests that the scheduler was given.
    ids: u64,
    step: u64,
    begin: Instant,
    /// Time of the next step.
    next_s: f64,
    pace: Pace,
    /// False while the upstream is down: no token comes.
    is_up: bool,
}

/// A request of the scheduler.
struct Entry {
    /// Number of its [`Slot`]: the id under which the scheduler was first given it.
    number: u64,
    /// To be told that it has a slot; `None` since then.
    waiter: Option<oneshot::Sender<()>>,
}

impl Queue {
    /// `slots` slots and at most `max_requests` requests, in the order of `policy`.
    pub(super) fn new(
        slots: u32,
        max_requests: u32,
        policy: PolicyKind,
        sink: Option<Box<dyn LogSink>>,
    ) -> Result<Arc<Queue>, ConfigError> {
        let max_context = MAX_PROMPT + MAX_ANSWER;
        let config = SchedulerConfig {
            max_running: slots,
            max_requests: max_requests.max(slots),
            token_budget: u32::MAX,
            // The KV is the upstream's: here every request with a slot has all that it may need, so
            // that a free slot is taken and none is taken away.
            num_blocks: slots.saturating_mul(blocks_for(max_context)),
            max_context,
            watermark: 0.0,
            ..SchedulerConfig::default()
        };
        let header = LogHeader { config, policy, max_gap_s: 0.0 };
        let state = State {
            scheduler: LoggedScheduler::new(&header, sink)?,
            slots,
            entries: (0..config.max_requests).map(|_| None).collect(),
            indices: HashMap::new(),
            running: 0,
            ids: 0,
            step: 0,
            begin: Instant::now(),
            next_s: 0.0,
            pace: Pace::default(),
            is_up: true,
        };
        Ok(Arc::new(Queue { state: Mutex::new(state), taken: Notify::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a request into the queue, and completes its [`Slot::admitted`] when it has a slot.
    pub(super) fn submit(
        self: &Arc<Self>,
        prompt_tokens: usize,
        predicted: Option<f32>,
        priority: i32,
        deadline: Option<Duration>,
    ) -> Result<Slot, Refusal> {
        let mut state = self.state();
        state.catch_up();
        let now_s = state.now_s();
        let request = NewRequest {
            prompt_tokens: prompt_tokens.clamp(1, MAX_PROMPT as usize) as u32,
            arrival_s: now_s,
            initial_prediction: predicted.map(|tokens| tokens.min(MAX_ANSWER as f32)),
            priority: priority.max(RENEWED + 1),
            deadline_s: deadline.map(|limit| now_s + limit.as_secs_f64()),
            ..NewRequest::default()
        };
        let (number, (sender, admitted)) = (state.ids, oneshot::channel());
        state.give(request, Entry { number, waiter: Some(sender) })?;
        if state.running < state.slots {
            state.step_now();
            self.taken.notify_one();
        }
        drop(state);
        Ok(Slot::new(self.clone(), number, admitted))
    }

    /// Makes the steps that are due. Never completes.
    pub(super) async fn keep_time(self: Arc<Self>) {
        loop {
            let pace = {
                let mut state = self.state();
                state.catch_up();
                (state.running > 0).then(|| state.pace.token_s())
            };
            match pace {
                Some(pace_s) => tokio::time::sleep(TICK.max(Duration::from_secs_f64(pace_s))).await,
                None => self.taken.notified().await,
            }
        }
    }

    /// Records whether the upstream answers. Returns true if that is new.
    pub(super) fn set_up(&self, is_up: bool) -> bool {
        let mut state = self.state();
        let is_new = state.is_up != is_up;
        if is_new {
            state.is_up = is_up;
            state.next_s = state.now_s();
        }
        is_new
    }

    /// True unless the upstream is known to be down.
    pub(super) fn is_up(&self) -> bool {
        self.state().is_up
    }

    /// Orders requests by predictions if `trusted` says so, else by arrival. Of two calls at once
    /// the later one asks later.
    pub(super) fn trust_predictions(&self, trusted: impl FnOnce() -> bool) {
        let mut state = self.state();
        state.scheduler.trust_predictions(trusted());
    }

    /// Requests that have a slot or wait for one.
    pub(crate) fn live(&self) -> u32 {
        self.state().scheduler.live() as u32
    }

    /// Requests that have a slot, that wait, and output tokens that are predicted to come.
    pub(super) fn load(&self) -> (u32, usize, f64) {
        let state = self.state();
        let waiting = state.scheduler.live() - state.running as usize;
        (state.running, waiting, state.scheduler.outstanding().tokens)
    }

    /// Ends the request of slot `number`, whose answer took `answer`, if that is known: a time and
    /// tokens.
    pub(super) fn end(&self, number: u64, answer: Option<(Duration, u32)>) {
        let mut state = self.state();
        state.catch_up();
        let Some(idx) = state.indices.remove(&number) else { return };
        let entry = state.entries[idx.index()].take();
        state.scheduler.finish(idx);
        if entry.is_some_and(|entry| entry.waiter.is_none()) {
            if let Some((time, tokens)) = answer {
                state.pace.add(time, tokens);
            }
            state.running -= 1;
            state.step_now();
        }
    }
}

impl State {
    fn now_s(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Gives the scheduler a request.
    fn give(&mut self, request: NewRequest, entry: Entry) -> Result<(), Refusal> {
        let id = RequestId(self.ids);
        let idx = self.scheduler.submit(NewRequest { id, max_tokens: MAX_ANSWER, ..request })?;
        self.ids += 1;
        self.indices.insert(entry.number, idx);
        self.entries[idx.index()] = Some(entry);
        Ok(())
    }

    /// Makes the steps that are due by the clock. A step that came early, as a slot was free, has
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

    /// A step before its time, as a slot is free. Later steps make up for it.
    fn step_now(&mut self) {
        let now_s = self.now_s();
        self.step(now_s);
    }

    /// A step at `now_s`: the first in the order takes a free slot, and each that has one a token.
    fn step(&mut self, now_s: f64) {
        let pace_s = self.pace.token_s();
        self.next_s += pace_s;
        self.step += 1;
        let plan = self.scheduler.plan(self.step, now_s);
        debug_assert!(plan.preempted.is_empty(), "a slot cannot be taken away: {plan}");
        for row in &plan.rows {
            let entry = self.entries[row.idx.index()].as_mut();
            if let Some(waiter) = entry.and_then(|entry| entry.waiter.take()) {
                self.running += 1;
                // A request that leaves now gives its slot back when it is dropped.
                let _ = waiter.send(());
            }
        }
        debug_assert!(self.running <= self.slots, "{} requests have a slot", self.running);
        self.scheduler.advance();
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        self.scheduler.collected(self.step, ns(now_s), ns(pace_s));
        self.renew(now_s);
    }

    /// Submits requests again that have all the tokens that the scheduler counts. The next step,
    /// before which no other request can take their slots, puts them back.
    fn renew(&mut self, now_s: f64) {
        let is_spent = |idx: &RequestIdx| self.scheduler.state(*idx).generated >= MAX_ANSWER;
        let rows = self.scheduler.last_plan().rows.iter().map(|row| row.idx);
        let spent: Vec<RequestIdx> = rows.filter(is_spent).collect();
        for idx in spent {
            self.scheduler.finish(idx);
            if let Some(entry) = self.entries[idx.index()].take() {
                let (arrival_s, priority) = (now_s, RENEWED);
                let request =
                    NewRequest { prompt_tokens: 1, arrival_s, priority, ..NewRequest::default() };
                self.give(request, entry).expect("its index is free");
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! The live answers of a model: who waits for what, and when it will be there.
//!
//! A dedicated thread takes snapshots of the engine, at most ten a second, hears of first and last
//! tokens, and estimates times (`trail_simulator::forecast`). What it finds is a [`LiveFrame`],
//! which handlers read without waiting. Estimates take at most a hundredth of the thread's time; in
//! between they are counted down.

mod frame;
mod history;
mod progress;
mod reason;
mod watcher;
mod what_if;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use tokio::sync::watch;
use trail_cli::Error;
use trail_runtime::engine::{Clock, Engine, RequestHandle};
use trail_simulator::forecast::{Answer, ArrivalForecast, Interval};
use trail_simulator::{Job, Refined};

use crate::access::Access;
use crate::policy_defaults::PolicyDefaults;
pub(crate) use frame::{LiveFrame, LiveRow};
pub(crate) use history::{COLUMNS, EVERY_S};
pub(crate) use progress::Progress;
use watcher::Watcher;
use what_if::Answered;
pub(crate) use what_if::WhatIf;

/// Request and key of an answer.
#[derive(Debug)]
pub(crate) struct Owner {
    /// Id of the HTTP request.
    pub id: String,
    /// Index of the answer in the response.
    pub index: usize,
    /// Name of the key that the request presented.
    pub key: Option<String>,
    /// Gone once the response has ended.
    pub access: Weak<Access>,
}

impl Owner {
    /// The owner of answer `index` to the request of `access`.
    pub(crate) fn new(access: &Arc<Access>, index: usize) -> Owner {
        let key = access.key().map(|key| key.name.clone());
        Owner { id: access.id.clone(), index, key, access: Arc::downgrade(access) }
    }
}

/// An event of an answer, for the thread.
enum LiveEvent {
    Arrived { id: u64, at_s: f64, owner: Box<Owner>, estimate: Option<Box<ArrivalForecast>> },
    Began { id: u64, at_s: f64 },
    Ended { id: u64, at_s: f64, answer: Option<Answer>, job: Option<Box<Answered>> },
    Stop,
}

/// The live answers of one engine.
pub(crate) struct LiveModel {
    events: Sender<LiveEvent>,
    frames: watch::Receiver<Arc<LiveFrame>>,
    what_if: Arc<WhatIf>,
    clock: Arc<dyn Clock>,
    thread: Option<JoinHandle<()>>,
}

impl LiveModel {
    /// Starts the thread.
    pub(crate) fn start(engine: &Engine, policies: PolicyDefaults) -> Result<LiveModel, Error> {
        let (events, inbox): (Sender<LiveEvent>, Receiver<LiveEvent>) = channel();
        let (sender, frames) = watch::channel(Arc::new(LiveFrame::default()));
        let what_if = Arc::<WhatIf>::default();
        let watcher = Watcher::new(engine, policies, inbox, sender, what_if.clone());
        let thread = std::thread::Builder::new().name("trail-live".into());
        let thread = thread
            .spawn(move || watcher.run())
            .map_err(|error| Error::failed(format!("cannot start a thread: {error}")))?;
        let clock = engine.clock().clone();
        Ok(LiveModel { events, frames, what_if, clock, thread: Some(thread) })
    }

    /// The last frame.
    pub(crate) fn frame(&self) -> Arc<LiveFrame> {
        self.frames.borrow().clone()
    }

    /// Comparison with other policies.
    pub(crate) fn what_if(&self) -> &Arc<WhatIf> {
        &self.what_if
    }

    /// Takes in an answer that was submitted.
    pub(crate) fn enter(
        &self,
        handle: &RequestHandle,
        owner: Owner,
        (prompt_tokens, max_tokens, priority): (u32, u32, i32),
        estimate: Option<ArrivalForecast>,
    ) -> LiveAnswer {
        let (id, predicted) = (handle.id(), handle.initial_prediction());
        let at_s = self.clock.now_s();
        // Without the thread there is nothing to tell.
        let _ = self.events.send(LiveEvent::Arrived {
            id,
            at_s,
            owner: Box::new(owner),
            estimate: estimate.map(Box::new),
        });
        LiveAnswer {
            id,
            arrival_s: at_s,
            prompt_tokens,
            max_tokens,
            priority,
            predicted,
            estimate,
            predictions: Vec::new(),
            events: self.events.clone(),
            frames: self.frames.clone(),
            clock: self.clock.clone(),
            has_ended: false,
        }
    }
}

impl Drop for LiveModel {
    fn drop(&mut self) {
        let _ = self.events.send(LiveEvent::Stop);
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic.
            let _ = thread.join();
        }
    }
}

/// An answer in progress. One that is dropped before its end was cut off.
pub(crate) struct LiveAnswer {
    id: u64,
    arrival_s: f64,
    prompt_tokens: u32,
    max_tokens: u32,
    priority: i32,
    predicted: Option<f32>,
    /// Made on arrival.
    estimate: Option<ArrivalForecast>,
    /// Of the remaining tokens, by the tokens that there were.
    predictions: Vec<f32>,
    events: Sender<LiveEvent>,
    frames: watch::Receiver<Arc<LiveFrame>>,
    clock: Arc<dyn Clock>,
    has_ended: bool,
}

impl LiveAnswer {
    /// Records the first token.
    pub(crate) fn begin(&self) {
        let at_s = self.clock.now_s();
        let _ = self.events.send(LiveEvent::Began { id: self.id, at_s });
    }

    /// Records what was expected when there were `generated` tokens.
    pub(crate) fn predict(&mut self, generated: u32, remaining: f32) {
        // Where one was late, the one before counts down.
        while self.predictions.len() < generated as usize {
            let last = self.predictions.last().or(self.predicted.as_ref());
            let next = last.map_or(1.0, |tokens| (tokens - 1.0).max(1.0));
            self.predictions.push(next);
        }
        if self.predictions.len() == generated as usize {
            self.predictions.push(remaining);
        }
    }

    /// Records the end of a whole answer of `tokens`.
    pub(crate) fn end(&mut self, tokens: u32) {
        let LiveAnswer { prompt_tokens, predicted, max_tokens, priority, .. } = *self;
        let predictions = std::mem::take(&mut self.predictions);
        let job = Job {
            id: self.id,
            arrival_ns: (self.arrival_s * 1e9) as u64,
            prompt_tokens,
            output_tokens: tokens.max(1),
            max_tokens: max_tokens.max(tokens),
            priority,
            r: predicted,
            refined: match predictions.is_empty() {
                true => Refined::None,
                false => Refined::Recorded(predictions.into()),
            },
            block_hashes: [].into(),
        };
        let answer = Answer { prompt_tokens, length: tokens, predicted, priority };
        let latency_s = self.clock.now_s() - self.arrival_s;
        self.finish(Some(answer), Some(Box::new(Answered { job, latency_s })));
    }

    /// The progress of an answer of `tokens` so far.
    pub(crate) fn progress(&self, tokens: u32) -> Progress {
        if let Some((row, elapsed_s)) = self.row() {
            return Progress::of_row(&row, elapsed_s, tokens).or_last(self.on_arrival());
        }
        let arrivals = self.frames.borrow().arrivals.clone();
        let length = arrivals.length(self.max_tokens, self.predicted);
        Progress::of_arrival(length, tokens).or_last(self.on_arrival())
    }

    /// Seconds to the last token, by the estimate on arrival.
    fn on_arrival(&self) -> Option<Interval> {
        let elapsed_s = self.clock.now_s() - self.arrival_s;
        self.estimate.map(|of| of.last.after(elapsed_s))
    }

    /// The row of the last frame, with the time since.
    pub(crate) fn row(&self) -> Option<(LiveRow, f64)> {
        let frame = self.frames.borrow().clone();
        let row = frame.row(self.id)?.clone();
        Some((row, self.clock.now_s() - frame.now_s))
    }

    fn finish(&mut self, answer: Option<Answer>, job: Option<Box<Answered>>) {
        if !std::mem::replace(&mut self.has_ended, true) {
            let at_s = self.clock.now_s();
            let _ = self.events.send(LiveEvent::Ended { id: self.id, at_s, answer, job });
        }
    }
}

impl Drop for LiveAnswer {
    fn drop(&mut self) {
        self.finish(None, None);
    }
}

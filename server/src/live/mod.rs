//! The live answers of a model: who waits for what, and when it will be there.
//!
//! A thread of its own takes snapshots of the engine, at most ten a second, hears of first and last
//! tokens, and estimates times (`trail_simulator::forecast`). What it finds is a [`LiveFrame`],
//! which handlers read without waiting. Estimates take at most a hundredth of the thread's time; in
//! between they are counted down.

mod frame;
mod history;
mod progress;
mod reason;
mod watcher;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use tokio::sync::watch;
use trail_cli::Error;
use trail_runtime::engine::{Clock, Engine, RequestHandle};
use trail_simulator::forecast::{Answer, ArrivalForecast};

use crate::access::Access;
pub(crate) use frame::{LiveFrame, LiveRow};
pub(crate) use history::{COLUMNS, EVERY_S};
pub(crate) use progress::Progress;
use watcher::Watcher;

/// Whose answer it is.
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

/// What the thread hears of an answer.
enum LiveEvent {
    Arrived { id: u64, at_s: f64, owner: Box<Owner>, estimate: Option<Box<ArrivalForecast>> },
    Began { id: u64, at_s: f64 },
    Ended { id: u64, at_s: f64, answer: Option<Answer> },
    Stop,
}

/// The live answers of one engine.
pub(crate) struct LiveModel {
    events: Sender<LiveEvent>,
    frames: watch::Receiver<Arc<LiveFrame>>,
    clock: Arc<dyn Clock>,
    thread: Option<JoinHandle<()>>,
}

impl LiveModel {
    /// Starts the thread.
    pub(crate) fn start(engine: &Engine) -> Result<LiveModel, Error> {
        let (events, inbox): (Sender<LiveEvent>, Receiver<LiveEvent>) = channel();
        let (sender, frames) = watch::channel(Arc::new(LiveFrame::default()));
        let watcher = Watcher::new(engine, inbox, sender);
        let thread = std::thread::Builder::new().name("trail-live".into());
        let thread = thread
            .spawn(move || watcher.run())
            .map_err(|error| Error::failed(format!("cannot start a thread: {error}")))?;
        Ok(LiveModel { events, frames, clock: engine.clock().clone(), thread: Some(thread) })
    }

    /// The last frame.
    pub(crate) fn frame(&self) -> Arc<LiveFrame> {
        self.frames.borrow().clone()
    }

    /// Takes in an answer that was submitted.
    pub(crate) fn enter(
        &self,
        handle: &RequestHandle,
        owner: Owner,
        prompt_tokens: u32,
        estimate: Option<ArrivalForecast>,
    ) -> LiveAnswer {
        let (id, predicted) = (handle.id(), handle.initial_prediction());
        let (owner, estimate) = (Box::new(owner), estimate.map(Box::new));
        let at_s = self.clock.now_s();
        // Without the thread there is nothing to tell.
        let _ = self.events.send(LiveEvent::Arrived { id, at_s, owner, estimate });
        LiveAnswer {
            id,
            prompt_tokens,
            predicted,
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
    prompt_tokens: u32,
    predicted: Option<f32>,
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

    /// Records the end of a whole answer of `tokens`.
    pub(crate) fn end(&mut self, tokens: u32) {
        let LiveAnswer { prompt_tokens, predicted, .. } = *self;
        self.finish(Some(Answer { prompt_tokens, length: tokens, predicted }));
    }

    /// The progress of an answer of `tokens` so far.
    pub(crate) fn progress(&self, tokens: u32) -> Progress {
        let row = self.row();
        row.map(|(row, elapsed_s)| Progress::new(&row, elapsed_s, tokens)).unwrap_or_default()
    }

    /// The row of the last frame, with the time since.
    pub(crate) fn row(&self) -> Option<(LiveRow, f64)> {
        let frame = self.frames.borrow().clone();
        let row = frame.row(self.id)?.clone();
        Some((row, self.clock.now_s() - frame.now_s))
    }

    fn finish(&mut self, answer: Option<Answer>) {
        if !std::mem::replace(&mut self.has_ended, true) {
            let at_s = self.clock.now_s();
            let _ = self.events.send(LiveEvent::Ended { id: self.id, at_s, answer });
        }
    }
}

impl Drop for LiveAnswer {
    fn drop(&mut self) {
        self.finish(None);
    }
}

//! The caller's end of a request.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::event::{Event, FinishReason};
use super::event_channel::EventReceiver;
use super::submit_queue::SubmitQueue;

/// [`Ticket::idx`] before admission.
const NO_INDEX: u32 = u32::MAX;

/// State of one request that caller and engine share.
#[derive(Debug)]
pub(super) struct Ticket {
    /// Index of the request after admission; `NO_INDEX` before.
    idx: AtomicU32,
    /// The caller no longer wants the answer.
    cancelled: AtomicBool,
    /// Set when the engine ends the request.
    finished: OnceLock<FinishReason>,
}

impl Ticket {
    pub(super) fn new() -> Self {
        Ticket {
            idx: AtomicU32::new(NO_INDEX),
            cancelled: AtomicBool::new(false),
            finished: OnceLock::new(),
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub(super) fn admit(&self, idx: u32) {
        self.idx.store(idx, Ordering::Release);
    }

    /// Records the end of the request. Returns false if it has ended before.
    pub(super) fn finish(&self, reason: FinishReason) -> bool {
        self.finished.set(reason).is_ok()
    }

    pub(super) fn finish_reason(&self) -> Option<FinishReason> {
        self.finished.get().copied()
    }

    /// Index of the request if it is admitted and not finished.
    pub(super) fn live_idx(&self) -> Option<u32> {
        let idx = self.idx.load(Ordering::Acquire);
        (idx != NO_INDEX && self.finish_reason().is_none()).then_some(idx)
    }
}

/// The events of one request. Every event arrives, however late it is read, and
/// [`Event::Finished`] is always the last one. Dropping the handle cancels the request.
///
/// One thread receives at a time: a second one waits until the first has its event.
pub struct RequestHandle {
    pub(super) id: u64,
    pub(super) initial_prediction: Option<f32>,
    pub(super) events: Mutex<EventReceiver>,
    pub(super) ticket: Arc<Ticket>,
    pub(super) queue: Arc<SubmitQueue>,
}

impl RequestHandle {
    /// Number of the request in the engine, in order of submission.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Output tokens that were expected on submission; `None` without a prompt-only predictor.
    pub fn initial_prediction(&self) -> Option<f32> {
        self.initial_prediction
    }

    /// Waits for the next event. After [`Event::Finished`] it returns `None`.
    pub fn recv(&self) -> Option<Event> {
        self.events().next(None)
    }

    /// Waits at most `timeout` for the next event; `None` if none came.
    pub fn recv_timeout(&self, timeout: Duration) -> Option<Event> {
        // A time beyond the clock's range is no limit.
        let deadline = Instant::now().checked_add(timeout);
        self.events().next(deadline)
    }

    /// The next event if it is there already.
    pub fn try_recv(&self) -> Option<Event> {
        match self.events.try_lock() {
            Ok(mut events) => events.try_next(),
            Err(TryLockError::Poisoned(events)) => events.into_inner().try_next(),
            // Another thread receives: the next event is its own.
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Asks the engine to stop. The events generated so far still arrive, then
    /// `Finished { reason: Cancelled }`, unless the answer was complete already.
    pub fn cancel(&self) {
        let first = !self.ticket.cancelled.swap(true, Ordering::AcqRel);
        if first && self.ticket.finish_reason().is_none() {
            self.queue.cancel(self.ticket.clone());
        }
    }

    fn events(&self) -> MutexGuard<'_, EventReceiver> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Iterator for RequestHandle {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.recv()
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        self.cancel();
    }
}

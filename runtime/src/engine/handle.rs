//! The caller's end of a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};

use super::event::{Event, FinishReason};
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
    /// The engine has sent the last event.
    finished: AtomicBool,
}

impl Ticket {
    pub(super) fn new() -> Self {
        Ticket {
            idx: AtomicU32::new(NO_INDEX),
            cancelled: AtomicBool::new(false),
            finished: AtomicBool::new(false),
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub(super) fn admit(&self, idx: u32) {
        self.idx.store(idx, Ordering::Release);
    }

    pub(super) fn finish(&self) {
        self.finished.store(true, Ordering::Release);
    }

    /// Index of the request if it is admitted and not finished.
    pub(super) fn live_idx(&self) -> Option<u32> {
        let idx = self.idx.load(Ordering::Acquire);
        (idx != NO_INDEX && !self.finished.load(Ordering::Acquire)).then_some(idx)
    }
}

/// The events of one request. Dropping it cancels the request.
pub struct RequestHandle {
    pub(super) id: u64,
    pub(super) events: Receiver<Event>,
    pub(super) ticket: Arc<Ticket>,
    pub(super) queue: Arc<SubmitQueue>,
}

impl RequestHandle {
    /// Number of the request in the engine, in order of submission.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits for the next event. After [`Event::Finished`] it returns `None`.
    pub fn recv(&self) -> Option<Event> {
        match self.events.recv() {
            Ok(event) => Some(event),
            Err(_) => self.closed(),
        }
    }

    /// Waits at most `timeout` for the next event; `None` if none came.
    pub fn recv_timeout(&self, timeout: Duration) -> Option<Event> {
        match self.events.recv_timeout(timeout) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => self.closed(),
        }
    }

    /// The next event if it is there already.
    pub fn try_recv(&self) -> Option<Event> {
        match self.events.try_recv() {
            Ok(event) => Some(event),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => self.closed(),
        }
    }

    /// Asks the engine to stop. The events generated so far still arrive, then
    /// `Finished { reason: Cancelled }`, unless the answer was complete already.
    pub fn cancel(&self) {
        let first = !self.ticket.cancelled.swap(true, Ordering::AcqRel);
        if first && !self.ticket.finished.load(Ordering::Acquire) {
            self.queue.cancel(self.ticket.clone());
        }
    }

    /// The event after the channel was closed: none after `Finished`, and one `Finished` where the
    /// engine's thread ended without it.
    fn closed(&self) -> Option<Event> {
        let first = !self.ticket.finished.swap(true, Ordering::AcqRel);
        first.then_some(Event::Finished { reason: FinishReason::Shutdown })
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

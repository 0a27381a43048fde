//! The caller's end of a request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::constraint::{ConstrainedAnswer, ConstraintFault};
use super::event::Event;
use super::event_channel::EventReceiver;
use super::request_status::RequestStatus;
use super::submit_queue::SubmitQueue;

/// The events of one request. Every event arrives, however late it is read, and
/// [`Event::Finished`] is always the last one. Dropping the handle cancels the request.
///
/// One thread receives at a time: a second one waits until the first has its event.
pub struct RequestHandle {
    pub(super) id: u64,
    pub(super) initial_prediction: Option<f32>,
    pub(super) events: Mutex<EventReceiver>,
    pub(super) status: Arc<RequestStatus>,
    pub(super) queue: Arc<SubmitQueue>,
    pub(super) constrained: Option<Arc<ConstrainedAnswer>>,
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

    /// Time of the first step that computed a part of the request: known with the first token.
    pub fn started(&self) -> Option<Instant> {
        self.status.started()
    }

    /// Tokens of the prompt whose KV was shared instead of computed: known with the first token.
    pub fn cached_tokens(&self) -> u32 {
        self.status.cached_tokens()
    }

    /// Draft tokens that were accepted: part of the answer so far.
    pub fn accepted_tokens(&self) -> u32 {
        self.status.accepted_tokens()
    }

    /// The reason of [`FinishReason::Constraint`](super::FinishReason::Constraint).
    pub fn constraint_fault(&self) -> Option<ConstraintFault> {
        self.constrained.as_ref()?.fault()
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
        if self.status.cancel() && self.status.finish_reason().is_none() {
            self.queue.cancel(self.status.clone());
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

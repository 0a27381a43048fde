//! Submissions and cancellations from other threads: lock-free, bounded, drained once per step.
//! Modelled in `loom/`.

use std::sync::OnceLock;

use super::active::ActiveRequest;
use super::handle::Ticket;
use crate::backend::Fault;
use crate::mpsc_ring::{CAPACITY_MIN, Consumer, Producer, mpsc_ring};
use crate::sync::{Arc, AtomicBool, AtomicU32, Ordering, Thread};

/// The engine's end of the queues.
pub(super) struct EngineInbox {
    submissions: Consumer<Box<ActiveRequest>>,
    cancels: Consumer<Arc<Ticket>>,
}

impl EngineInbox {
    pub(super) fn next_submission(&mut self) -> Option<Box<ActiveRequest>> {
        self.submissions.pop()
    }

    pub(super) fn next_cancel(&mut self) -> Option<Arc<Ticket>> {
        self.cancels.pop()
    }
}

/// The callers' end of the queues, and the state of the engine that they see.
pub(super) struct SubmitQueue {
    submissions: Producer<Box<ActiveRequest>>,
    cancels: Producer<Arc<Ticket>>,
    /// Requests submitted and not yet finished. Bounds both queues and the scheduler's requests.
    live: AtomicU32,
    max_requests: u32,
    stopping: AtomicBool,
    /// Cause of the breakdown, once there is one.
    fault: OnceLock<Fault>,
    /// The thread to wake after a push; none where the caller steps the engine.
    engine: OnceLock<Thread>,
}

impl SubmitQueue {
    pub(super) fn new(max_requests: u32) -> (Arc<SubmitQueue>, EngineInbox) {
        let capacity = (max_requests as usize).next_power_of_two().max(CAPACITY_MIN);
        let (submit, submissions) = mpsc_ring(capacity);
        // A request is cancelled at most once, and its ticket may outlive its idx by one step.
        let (cancel, cancels) = mpsc_ring(2 * capacity);
        let queue = SubmitQueue {
            submissions: submit,
            cancels: cancel,
            live: AtomicU32::new(0),
            max_requests,
            stopping: AtomicBool::new(false),
            fault: OnceLock::new(),
            engine: OnceLock::new(),
        };
        (Arc::new(queue), EngineInbox { submissions, cancels })
    }

    /// Names the engine's thread, to be woken by pushes. Called before the first submission: a push
    /// that finds no thread to wake would be lost on a sleeping engine.
    pub(super) fn set_thread(&self, engine: Thread) {
        // Called once; a second thread on the same queue would be a defect, and the first one
        // stays.
        let _ = self.engine.set(engine);
    }

    fn wake(&self) {
        if let Some(engine) = self.engine.get() {
            engine.unpark();
        }
    }

    /// Pushes a request; returns it if `max_requests` are live.
    pub(super) fn submit(&self, request: Box<ActiveRequest>) -> Result<(), Box<ActiveRequest>> {
        if self.live.fetch_add(1, Ordering::AcqRel) >= self.max_requests {
            self.live.fetch_sub(1, Ordering::AcqRel);
            return Err(request);
        }
        let pushed = self.submissions.try_push(request);
        match pushed {
            Ok(()) => {
                self.wake();
                Ok(())
            }
            Err(request) => {
                self.live.fetch_sub(1, Ordering::AcqRel);
                Err(request)
            }
        }
    }

    /// Pushes a cancellation. A full queue loses nothing: the ticket's flag is also checked after
    /// every token.
    pub(super) fn cancel(&self, ticket: Arc<Ticket>) {
        let _ = self.cancels.try_push(ticket);
        self.wake();
    }

    /// Counts a finished request.
    pub(super) fn leave(&self) {
        self.live.fetch_sub(1, Ordering::AcqRel);
    }

    /// Requests submitted and not finished.
    pub(super) fn live(&self) -> u32 {
        self.live.load(Ordering::Acquire)
    }

    pub(super) fn max_requests(&self) -> u32 {
        self.max_requests
    }

    /// Records the breakdown: submissions are refused with `fault` from now on.
    pub(super) fn fail(&self, fault: Fault) {
        // An engine breaks down once.
        let _ = self.fault.set(fault);
    }

    pub(super) fn fault(&self) -> Option<&Fault> {
        self.fault.get()
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

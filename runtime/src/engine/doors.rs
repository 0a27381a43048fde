//! The ways into the engine from other threads: lock-free, bounded, checked once a step.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use super::backend::Fault;
use super::handle::Ticket;
use super::slot::Active;
use crate::mpsc_ring::{CAPACITY_MIN, Consumer, Producer, mpsc_ring};

/// The engine's side of its doors.
pub(super) struct Inbox {
    submissions: Consumer<Box<Active>>,
    cancels: Consumer<Arc<Ticket>>,
}

impl Inbox {
    pub(super) fn next_submission(&mut self) -> Option<Box<Active>> {
        self.submissions.pop()
    }

    pub(super) fn next_cancel(&mut self) -> Option<Arc<Ticket>> {
        self.cancels.pop()
    }
}

/// The callers' side.
pub(super) struct Doors {
    submissions: Producer<Box<Active>>,
    cancels: Producer<Arc<Ticket>>,
    /// Requests submitted and not yet finished: bounds both doors and the scheduler's slots.
    live: AtomicU32,
    max_requests: u32,
    stopping: AtomicBool,
    /// What broke the engine.
    fault: OnceLock<Fault>,
    /// Whom to wake after a push.
    engine: OnceLock<Thread>,
}

impl Doors {
    pub(super) fn new(max_requests: u32) -> (Arc<Doors>, Inbox) {
        let capacity = (max_requests as usize).next_power_of_two().max(CAPACITY_MIN);
        let (submit, submissions) = mpsc_ring(capacity);
        // A request is cancelled at most once, and its ticket may outlive its slot by one step.
        let (cancel, cancels) = mpsc_ring(2 * capacity);
        let doors = Doors {
            submissions: submit,
            cancels: cancel,
            live: AtomicU32::new(0),
            max_requests,
            stopping: AtomicBool::new(false),
            fault: OnceLock::new(),
            engine: OnceLock::new(),
        };
        (Arc::new(doors), Inbox { submissions, cancels })
    }

    pub(super) fn attend(&self, engine: Thread) {
        // A second call would be a second engine on the same doors; the first one stays.
        let _ = self.engine.set(engine);
    }

    fn wake(&self) {
        if let Some(engine) = self.engine.get() {
            engine.unpark();
        }
    }

    /// Hands a request in; gives it back if the engine has its fill.
    pub(super) fn submit(&self, request: Box<Active>) -> Result<(), Box<Active>> {
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

    /// A full door loses nothing: the ticket's flag is also looked at after every token.
    pub(super) fn cancel(&self, ticket: Arc<Ticket>) {
        let _ = self.cancels.try_push(ticket);
        self.wake();
    }

    /// A request has left the engine.
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

    /// The engine broke down: whoever submits from now on is told so.
    pub(super) fn fail(&self, fault: Fault) {
        // There is one engine, and it breaks down once.
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

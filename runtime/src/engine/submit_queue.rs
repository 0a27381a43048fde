//! Submissions and cancellations from other threads: lock-free, bounded, drained once per step.
//! Modelled in `tests/loom/`.

use std::sync::OnceLock;

use super::active::ActiveRequest;
use super::admission::SubmitError;
use super::handle::Ticket;
use crate::backend::Fault;
use crate::mpsc_ring::{CAPACITY_MIN, Consumer, Producer, mpsc_ring};
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Ordering, Thread};

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

/// Bounds of the requests in the engine, running and waiting.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueLimits {
    pub(super) requests: u32,
    /// Bytes of the requests as they were submitted: [`ActiveRequest::bytes`].
    pub(super) bytes: u64,
}

/// The share of one request in [`QueueLimits`], given back on drop.
pub(super) struct QueuePlace {
    queue: Arc<SubmitQueue>,
    bytes: u64,
}

impl QueuePlace {
    /// Takes a place for a request of `bytes`, unless a limit is reached.
    pub(super) fn take(queue: &Arc<SubmitQueue>, bytes: u64) -> Result<QueuePlace, SubmitError> {
        let QueueLimits { requests, bytes: max_bytes } = queue.limits;
        if bytes > max_bytes {
            return Err(SubmitError::TooLarge { bytes, max_bytes });
        }
        // Compared before it is added, so that a refused request refuses no other one.
        let (order, load) = (Ordering::AcqRel, Ordering::Acquire);
        let more = |live| (live < requests).then(|| live + 1);
        if queue.live.fetch_update(order, load, more).is_err() {
            return Err(SubmitError::Full { max_requests: requests });
        }
        let more = |held| (held + bytes <= max_bytes).then(|| held + bytes);
        if queue.bytes.fetch_update(order, load, more).is_err() {
            queue.live.fetch_sub(1, order);
            return Err(SubmitError::FullBytes { max_bytes });
        }
        Ok(QueuePlace { queue: queue.clone(), bytes })
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.queue.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        self.queue.live.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The callers' end of the queues, and the state of the engine that they see.
pub(super) struct SubmitQueue {
    submissions: Producer<Box<ActiveRequest>>,
    cancels: Producer<Arc<Ticket>>,
    /// Requests submitted and not yet finished. Bounds both queues and the scheduler's requests.
    live: AtomicU32,
    /// Bytes of those requests.
    bytes: AtomicU64,
    limits: QueueLimits,
    stopping: AtomicBool,
    /// Cause of the breakdown, once there is one.
    fault: OnceLock<Fault>,
    /// The thread to wake after a push; none where the caller steps the engine.
    engine: OnceLock<Thread>,
}

impl SubmitQueue {
    pub(super) fn new(limits: QueueLimits) -> (Arc<SubmitQueue>, EngineInbox) {
        let capacity = (limits.requests as usize).next_power_of_two().max(CAPACITY_MIN);
        let (submit, submissions) = mpsc_ring(capacity);
        // A request is cancelled at most once, and its ticket may outlive its idx by one step.
        let (cancel, cancels) = mpsc_ring(2 * capacity);
        let queue = SubmitQueue {
            submissions: submit,
            cancels: cancel,
            live: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            limits,
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

    /// Pushes a request.
    pub(super) fn submit(&self, request: Box<ActiveRequest>) -> Result<(), SubmitError> {
        // There is a cell for each place.
        let full = SubmitError::Full { max_requests: self.limits.requests };
        self.submissions.try_push(request).map_err(|_| full)?;
        self.wake();
        Ok(())
    }

    /// Pushes a cancellation. A full queue loses nothing: the ticket's flag is also checked after
    /// every token.
    pub(super) fn cancel(&self, ticket: Arc<Ticket>) {
        let _ = self.cancels.try_push(ticket);
        self.wake();
    }

    /// Requests submitted and not finished.
    pub(super) fn live(&self) -> u32 {
        self.live.load(Ordering::Acquire)
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

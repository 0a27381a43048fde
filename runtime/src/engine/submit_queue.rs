//! Submissions and cancellations from other threads: lock-free, bounded, drained once per step.
//! Modelled in `tests/loom/`.

use std::sync::OnceLock;

use super::active::ActiveRequest;
use super::admission::SubmitError;
use super::queue_permit::{QueueLimits, QueueUsage};
use super::request_status::RequestStatus;
use crate::backend::Fault;
use crate::mpsc_ring::{CAPACITY_MIN, Consumer, Producer, mpsc_ring};
use crate::sync::{Arc, AtomicBool, Ordering, Thread};

/// The engine's end of the queues.
pub(super) struct EngineInbox {
    submissions: Consumer<Box<ActiveRequest>>,
    cancels: Consumer<Arc<RequestStatus>>,
}

impl EngineInbox {
    pub(super) fn next_submission(&mut self) -> Option<Box<ActiveRequest>> {
        self.submissions.pop()
    }

    pub(super) fn next_cancel(&mut self) -> Option<Arc<RequestStatus>> {
        self.cancels.pop()
    }
}

/// The callers' end of the queues, and the state of the engine that they see.
pub(super) struct SubmitQueue {
    submissions: Producer<Box<ActiveRequest>>,
    cancels: Producer<Arc<RequestStatus>>,
    /// Of requests submitted and not yet finished. Bounds both queues and the scheduler's requests.
    usage: Arc<QueueUsage>,
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
        // A request is cancelled at most once, and its status may outlive its idx by one step.
        let (cancel, cancels) = mpsc_ring(2 * capacity);
        let queue = SubmitQueue {
            submissions: submit,
            cancels: cancel,
            usage: Arc::new(QueueUsage::new(limits)),
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
        // There is a cell for each permit.
        let full = SubmitError::Full { max_requests: self.usage.limits().requests };
        self.submissions.try_push(request).map_err(|_| full)?;
        self.wake();
        Ok(())
    }

    /// Pushes a cancellation. A full queue loses nothing: the status's flag is also checked after
    /// every token.
    pub(super) fn cancel(&self, status: Arc<RequestStatus>) {
        let _ = self.cancels.try_push(status);
        self.wake();
    }

    /// Requests submitted and not finished.
    pub(super) fn live(&self) -> u32 {
        self.usage.live()
    }

    /// The counters that [`QueuePermit::acquire`] takes a share of.
    ///
    /// [`QueuePermit::acquire`]: super::queue_permit::QueuePermit::acquire
    pub(super) fn usage(&self) -> &Arc<QueueUsage> {
        &self.usage
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

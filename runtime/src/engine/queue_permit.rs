//! Bounds on the requests in the engine: each holds a permit from submission to its end. Modelled
//! in `tests/loom/`.

use super::admission::SubmitError;
use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering};

/// Bounds of the requests in the engine, running and waiting.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueLimits {
    pub(super) requests: u32,
    /// Bytes of the requests as they were submitted.
    pub(super) bytes: u64,
}

/// Requests that hold a permit, and their bytes.
pub(super) struct QueueUsage {
    limits: QueueLimits,
    live: AtomicU32,
    bytes: AtomicU64,
}

impl QueueUsage {
    pub(super) fn new(limits: QueueLimits) -> QueueUsage {
        QueueUsage { limits, live: AtomicU32::new(0), bytes: AtomicU64::new(0) }
    }

    pub(super) fn limits(&self) -> QueueLimits {
        self.limits
    }

    /// Requests that hold a permit.
    pub(super) fn live(&self) -> u32 {
        self.live.load(Ordering::Acquire)
    }
}

/// The share of one request in [`QueueLimits`], released on drop.
pub(super) struct QueuePermit {
    usage: Arc<QueueUsage>,
    bytes: u64,
}

impl QueuePermit {
    /// A permit for a request of `bytes`, unless a limit is reached.
    pub(super) fn acquire(usage: &Arc<QueueUsage>, bytes: u64) -> Result<QueuePermit, SubmitError> {
        let QueueLimits { requests, bytes: max_bytes } = usage.limits;
        if bytes > max_bytes {
            return Err(SubmitError::TooLarge { bytes, max_bytes });
        }
        // Compared before it is added, so that a refused request refuses no other one.
        let (order, load) = (Ordering::AcqRel, Ordering::Acquire);
        let more = |live| (live < requests).then(|| live + 1);
        if usage.live.fetch_update(order, load, more).is_err() {
            return Err(SubmitError::Full { max_requests: requests });
        }
        let more = |held| (held + bytes <= max_bytes).then(|| held + bytes);
        if usage.bytes.fetch_update(order, load, more).is_err() {
            usage.live.fetch_sub(1, order);
            return Err(SubmitError::FullBytes { max_bytes });
        }
        Ok(QueuePermit { usage: usage.clone(), bytes })
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.usage.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        self.usage.live.fetch_sub(1, Ordering::AcqRel);
    }
}

//! The status of one request, which caller and engine share.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use super::event::FinishReason;

/// [`RequestStatus::idx`] before admission.
const NO_INDEX: u32 = u32::MAX;

/// Status of one request: admitted, cancelled, finished.
#[derive(Debug)]
pub(super) struct RequestStatus {
    /// Index of the request after admission; `NO_INDEX` before.
    idx: AtomicU32,
    /// The caller no longer wants the answer.
    cancelled: AtomicBool,
    /// Tokens of the prompt that were found in the prefix cache.
    cached_tokens: AtomicU32,
    /// Draft tokens that were the sampled ones.
    accepted_tokens: AtomicU32,
    /// Time of the first step that has rows of the request.
    started: OnceLock<Instant>,
    /// Set when the engine ends the request.
    finished: OnceLock<FinishReason>,
}

impl RequestStatus {
    pub(super) fn new() -> Self {
        RequestStatus {
            idx: AtomicU32::new(NO_INDEX),
            cancelled: AtomicBool::new(false),
            cached_tokens: AtomicU32::new(0),
            accepted_tokens: AtomicU32::new(0),
            started: OnceLock::new(),
            finished: OnceLock::new(),
        }
    }

    /// Asks for an end. Returns true at the first call.
    pub(super) fn cancel(&self) -> bool {
        !self.cancelled.swap(true, Ordering::AcqRel)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub(super) fn admit(&self, idx: u32) {
        self.idx.store(idx, Ordering::Release);
    }

    /// Records that the request's first step begins.
    pub(super) fn start(&self) {
        // It has one: this is called once.
        let _ = self.started.set(Instant::now());
    }

    pub(super) fn started(&self) -> Option<Instant> {
        self.started.get().copied()
    }

    /// Records that the request began after its first `tokens`.
    pub(super) fn set_cached(&self, tokens: u32) {
        self.cached_tokens.store(tokens, Ordering::Release);
    }

    pub(super) fn cached_tokens(&self) -> u32 {
        self.cached_tokens.load(Ordering::Acquire)
    }

    /// Counts accepted tokens.
    pub(super) fn add_accepted(&self, tokens: u32) {
        self.accepted_tokens.fetch_add(tokens, Ordering::AcqRel);
    }

    pub(super) fn accepted_tokens(&self) -> u32 {
        self.accepted_tokens.load(Ordering::Acquire)
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

//! Claims of a step's prediction tasks: one thread offers them, any thread runs them, and the one
//! that finishes the last learns so. Lock-free; modelled in `tests/loom/`.

use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// Tasks of the current step that are unclaimed and unfinished.
pub(super) struct TaskClaims {
    /// Number of tasks, and the next one to claim: `tasks << 32 | next`.
    claims: AtomicU64,
    unfinished: AtomicUsize,
}

impl TaskClaims {
    /// Nothing to claim.
    pub(super) fn new() -> Self {
        TaskClaims { claims: AtomicU64::new(0), unfinished: AtomicUsize::new(0) }
    }

    /// Makes `tasks` tasks claimable, which see all that this thread wrote before. All tasks of the
    /// step before are finished.
    pub(super) fn offer(&self, tasks: usize) {
        // First: a task may be finished as soon as `claims` is stored.
        self.unfinished.store(tasks, Ordering::Relaxed);
        self.claims.store((tasks as u64) << 32, Ordering::Release);
    }

    /// Claims a task of the current step.
    pub(super) fn claim(&self) -> Option<usize> {
        // Checked first, so that idle threads do not drive the counter on.
        let claimable = |word: u64| (word & 0xffff_ffff) < word >> 32;
        if !claimable(self.claims.load(Ordering::Relaxed)) {
            return None;
        }
        let word = self.claims.fetch_add(1, Ordering::Acquire);
        claimable(word).then_some((word & 0xffff_ffff) as usize)
    }

    /// Counts a claimed task as finished. Returns true for the step's last one: its thread then
    /// sees what all tasks wrote.
    pub(super) fn finish(&self) -> bool {
        self.unfinished.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

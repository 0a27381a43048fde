//! A step that was launched and has not landed.

use std::time::Instant;

use trail_scheduler::Slot;

/// What must be remembered of a step until its tokens are there.
pub(super) struct Flight {
    /// Who samples in it, in order, and the number of the request that the slot had then.
    pub(super) sampled: Vec<(Slot, u64)>,
    /// Rows of its batch.
    pub(super) rows: usize,
    /// Whether it brings predictions.
    pub(super) predicts: bool,
    /// When it was launched, or the step before it landed if that was later.
    pub(super) begin: Instant,
}

impl Flight {
    /// Room for a step of `segments` runs.
    pub(super) fn with_capacity(segments: usize) -> Flight {
        Flight { sampled: Vec::with_capacity(segments), ..Flight::default() }
    }
}

impl Default for Flight {
    fn default() -> Self {
        Flight { sampled: Vec::new(), rows: 0, predicts: false, begin: Instant::now() }
    }
}

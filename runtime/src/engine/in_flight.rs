//! A step that was launched and not yet collected.

use trail_scheduler::{PrefillWork, RequestIdx, StepWork};

/// State of a step between its launch and its tokens.
#[derive(Default)]
pub(super) struct InFlightStep {
    /// Requests that sample in it, in segment order: index, and the engine's number of the request
    /// that had the index at launch.
    pub(super) sampled: Vec<(RequestIdx, u64)>,
    /// Rows of its batch.
    pub(super) rows: usize,
    /// Its work, the measure of its simulated time.
    pub(super) work: StepWork,
    /// Its prefill chunks.
    pub(super) prefill: PrefillWork,
    /// True if rows are tapped, so that predictions will come.
    pub(super) predicts: bool,
    /// Time of its launch, or of the end of the previous step if that was later, on the engine's
    /// clock.
    pub(super) begin_ns: u64,
}

impl InFlightStep {
    /// Room for a step of `segments` segments.
    pub(super) fn with_capacity(segments: usize) -> InFlightStep {
        InFlightStep { sampled: Vec::with_capacity(segments), ..InFlightStep::default() }
    }
}

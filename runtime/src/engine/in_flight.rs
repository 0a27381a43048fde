//! A step that was launched and not yet collected.

use trail_scheduler::{PrefillWork, RequestIdx, StepWork};

use super::lifecycle::Lifecycle;
use crate::backend::Batch;

/// A request that samples in a step.
#[derive(Clone, Copy)]
pub(super) struct Sampling {
    pub(super) idx: RequestIdx,
    /// The engine's number of the request that had the index at launch.
    pub(super) id: u64,
    /// Its draft tokens.
    pub(super) drafts: u32,
    /// True if the request has a constraint.
    pub(super) is_constrained: bool,
}

/// A request whose prompt's tokens a step scores.
#[derive(Clone, Copy)]
pub(super) struct Scoring {
    pub(super) idx: RequestIdx,
    /// The engine's number of the request that had the index at launch.
    pub(super) id: u64,
    pub(super) tokens: u32,
}

/// State of a step between its launch and its tokens.
#[derive(Default)]
pub(super) struct InFlightStep {
    /// Requests that sample in it, in segment order.
    pub(super) sampled: Vec<Sampling>,
    /// Requests whose prompts it scores, in segment order.
    pub(super) scored: Vec<Scoring>,
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
    /// Records what the segments of its batch are to yield.
    pub(super) fn expect(&mut self, batch: &Batch, requests: &Lifecycle) {
        self.sampled.clear();
        self.scored.clear();
        for segment in &batch.segments {
            let (idx, drafts, tokens) =
                (RequestIdx(segment.request), segment.drafts, segment.scored);
            let active = requests.planned(idx);
            if segment.logits {
                let is_constrained = active.constrained.is_some();
                self.sampled.push(Sampling { idx, id: active.id, drafts, is_constrained });
            }
            if tokens > 0 {
                self.scored.push(Scoring { idx, id: active.id, tokens });
            }
        }
    }

    /// Draft tokens in it.
    pub(super) fn drafts(&self) -> u32 {
        self.sampled.iter().map(|sampling| sampling.drafts).sum()
    }

    /// True if a request in it has a constraint.
    pub(super) fn is_constrained(&self) -> bool {
        self.sampled.iter().any(|sampling| sampling.is_constrained)
    }

    /// Room for a step of `segments` segments.
    pub(super) fn with_capacity(segments: usize) -> InFlightStep {
        let (sampled, scored) = (Vec::with_capacity(segments), Vec::with_capacity(segments));
        InFlightStep { sampled, scored, ..InFlightStep::default() }
    }
}

//! The contract between the engine and the backends that compute: what a step is, what it returns,
//! and how KV blocks are moved.
//!
//! `engine` drives a [`Backend`] and knows no other detail of it; `cpu` and `cuda` implement one
//! and know no engine. The values that cross this border: [`Batch`] (rows and block tables),
//! [`Step`], [`SamplingParams`], [`TapPlan`] going down; [`Sampled`] and [`Scored`] tokens, and
//! tapped activations ([`HiddenSink`], [`RowSink`]), going up.

mod allowed;
mod batch;
mod block_sums;
mod draft;
mod fault;
mod progress;
mod recurrent;
mod sampled_token;
mod sampling_params;
mod step;
mod tap;
mod tap_stage;
mod transfers;

pub use allowed::{Allowed, AllowedTokens, TokenMask};
pub use batch::{BLOCK_TOKENS, Batch, MAX_DRAFT_TOKENS, MAX_STATE_DRAFTS, PENDING, Segment};
pub use draft::DraftModel;
pub use fault::Fault;
pub use progress::Progress;
pub use recurrent::{SegmentState, StateCopy};
pub use sampled_token::{
    MAX_TOP_LOGPROBS, NonFiniteLogits, Sampled, SampledToken, Scored, ScoredToken,
};
pub use sampling_params::{MAX_LOGIT_BIAS, SamplingParams};
pub use step::{SamplingInput, SamplingInputs, Step};
pub use tap::{HiddenSink, PromptRun, RequestKey, RowSink, TapPlan, TapRow};
pub use tap_stage::TapStage;
pub use transfers::Transfers;

/// Runs the steps of one model over one paged KV cache.
///
/// All methods are called from the thread that drives the engine. After a [`Fault`] the backend is
/// only dropped.
pub trait Backend: Send {
    /// Steps that may be in flight while the next one is planned and launched: 0 where
    /// [`Backend::launch`] returns with its step complete, 1 where a device runs asynchronously.
    fn ahead(&self) -> usize;

    /// Starts a step. At most [`Backend::ahead`] launched steps are uncollected at this call.
    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault>;

    /// Waits for the oldest uncollected step and appends the result of each sampled row
    /// ([`Segment::sampled_rows`]), in row order. That of a draft token stands if the token is
    /// the result of the row before it. Logits that are not finite concern their request alone; the
    /// backend goes on.
    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault>;

    /// The result of each scored row ([`Segment::scored_rows`]) of the step that was collected
    /// last, in row order; `None` where segments may have no such rows.
    fn scores(&self) -> Option<&[Scored]> {
        None
    }

    /// True if segments may have draft tokens ([`Segment::drafts`]). A step with some is collected
    /// before the next one is launched, which is planned with its tokens.
    fn takes_drafts(&self) -> bool {
        false
    }

    /// True if the sampler keeps to [`SamplingInput::allowed`].
    fn takes_masks(&self) -> bool {
        false
    }

    /// True if the sampler adds [`SamplingParams::logit_bias`].
    fn takes_bias(&self) -> bool {
        false
    }

    /// True if segments may have adapters ([`Segment::adapter`]).
    fn takes_adapters(&self) -> bool {
        false
    }

    /// Recurrent states in its pool ([`SegmentState`]); 0 for a model without gated delta nets.
    fn num_states(&self) -> usize {
        0
    }

    /// The draft model; `None` where there is none. Needs [`Backend::takes_drafts`].
    fn draft_model(&mut self) -> Option<&mut dyn DraftModel> {
        None
    }

    /// Copies of KV blocks to and from a host pool; `None` where the backend has no such pool.
    fn transfers(&mut self) -> Option<&mut dyn Transfers> {
        None
    }
}

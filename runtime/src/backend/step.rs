//! One step as a backend receives it.

use super::{AllowedTokens, Batch, SamplingParams, TapPlan};

/// Inputs of the sampler for one request, besides its logits.
#[derive(Clone, Copy)]
pub struct SamplingInput<'a> {
    /// The request's parameters; they passed [`crate::sampling::validate()`].
    pub params: &'a SamplingParams,
    /// Prompt token ids, for penalties, and for scores.
    pub prompt: &'a [u32],
    /// Output token ids that the host knows, for penalties: all but the token of a step in flight,
    /// and the draft tokens of this step.
    pub generated: &'a [u32],
    /// Tokens that the request may continue with; `None`: all.
    pub allowed: Option<&'a dyn AllowedTokens>,
}

/// Access to the sampling inputs of the requests in a batch.
///
/// Not part of [`Batch`]: token histories are long, and a device needs one only in the step in
/// which it first meets a request.
pub trait SamplingInputs: Sync {
    /// The inputs of the request with index `request`.
    fn of(&self, request: u32) -> SamplingInput<'_>;
}

/// The same parameters for every request, without history: for measurements and tests.
impl SamplingInputs for SamplingParams {
    fn of(&self, _request: u32) -> SamplingInput<'_> {
        SamplingInput { params: self, prompt: &[], generated: &[], allowed: None }
    }
}

/// One step of the engine.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    /// Step number: 1, 2, 3, ... without gaps.
    pub number: u64,
    /// The rows. Request indices are below the engine's `max_requests`; tokens may be
    /// [`super::PENDING`] where [`super::Backend::ahead`] is 1.
    pub batch: &'a Batch,
    /// Sampling inputs of the segments with `logits`.
    pub sampling: &'a dyn SamplingInputs,
    /// Rows to tap; `None` where no probe is loaded.
    pub tap: Option<&'a TapPlan>,
}

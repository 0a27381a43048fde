//! A request as the scheduler sees it: counts of tokens, a phase, and predictions of its length.

#[cfg(feature = "log")]
use serde::{Deserialize, Serialize};

use crate::limits::{BLOCK_TOKENS, LATE_STEPS_MAX};

/// The caller's name for a request; the scheduler only carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "log", derive(Serialize, Deserialize))]
pub struct RequestId(pub u64);

/// Index of a request in the scheduler, fixed from submission to finish and then reused. Running,
/// paused and waiting requests have one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestIdx(pub u32);

impl RequestIdx {
    /// The index as `usize`, for arrays with one entry per request.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A request to submit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "log", derive(Serialize, Deserialize), serde(deny_unknown_fields))]
pub struct NewRequest {
    /// The caller's name for it.
    pub id: RequestId,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Largest number of tokens to generate, at least 1.
    pub max_tokens: u32,
    /// Output tokens that another scheduler's engine generated before the request moved here: its
    /// age on arrival. Fewer than `max_tokens`, which counts them.
    #[cfg_attr(feature = "log", serde(default, skip_serializing_if = "is_zero"))]
    pub generated: u32,
    /// Time of arrival, seconds on the caller's clock. The order of arrival is that of submission.
    pub arrival_s: f64,
    /// Output tokens expected by a prompt-only predictor, if any.
    pub initial_prediction: Option<f32>,
    /// True number of output tokens, known in replays and simulations.
    pub true_length: Option<u32>,
    /// Prompt tokens whose KV a prefix cache holds: they cost no prefill in a rank.
    pub cached_tokens: u32,
    /// The caller's priority, -127 to 127, lower first: requests of one priority precede those of
    /// the next, and are ranked by the policy among themselves.
    pub priority: i32,
    /// Time by which the caller wants the whole answer, seconds on its clock. No built-in policy
    /// ranks by it.
    pub deadline_s: Option<f64>,
    /// The caller's name for the tenant whose request it is. No built-in policy ranks by it.
    pub tenant: u32,
}

/// Logs leave out what most requests have: they began here.
#[cfg(feature = "log")]
fn is_zero(tokens: &u32) -> bool {
    *tokens == 0
}

/// A prediction of the probe from one step's activation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Output tokens expected when `step` began, including the one that `step` samples.
    pub remaining: f32,
    /// The 10 % quantile, tokens. `gittins` ranks by the quantiles, and [`crate::Reserve::P90`]
    /// keeps blocks free by the last one; a policy reads them in [`RequestState::prediction`].
    pub p10: f32,
    /// The median, tokens.
    pub p50: f32,
    /// The 90 % quantile, tokens.
    pub p90: f32,
    /// The step whose activation the prediction comes from.
    pub step: u64,
    /// Generation of the request's index at that step. A mismatch means that the request has
    /// finished and its index was reused.
    pub generation: u32,
}

/// Phase of a request: whether it runs, and where its KV is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// The index is unused.
    #[default]
    Free,
    /// In the queue without KV: never started, or evicted.
    Waiting,
    /// In the current plan.
    Running,
    /// Preempted, but still holding its KV.
    Paused,
    /// Its KV is being copied to the host; until the transfer ends it holds its blocks.
    SwappingOut,
    /// Its KV is on the host; it holds no block.
    Swapped,
    /// Its KV is being copied back into blocks it holds.
    SwappingIn,
}

/// The state of a request that a policy may rank by. Tests of policies use [`RequestState::new`].
///
/// Three cache lines: what each step reads of a running request, what a prediction changes, and the
/// rest.
#[derive(Clone, Debug, Default, PartialEq)]
#[repr(C, align(64))]
pub struct RequestState {
    /// Its phase.
    pub phase: Phase,
    /// True once it was in a plan.
    pub started: bool,
    /// True from a plan that contains it to the next `advance`.
    pub planned: bool,
    /// Finished during a transfer: the index stays taken until the transfer ends.
    pub ended: bool,
    /// Output tokens generated: its age. Survives preemption and eviction.
    pub generated: u32,
    /// Tokens whose KV is in the cache.
    pub computed: u32,
    /// Largest value that `computed` has had: tokens below it are recomputed.
    pub computed_max: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Largest number of tokens to generate.
    pub max_tokens: u32,
    /// Output tokens since it last entered the batch, for policies with time slices.
    pub slice_tokens: u32,
    /// Steps in which it was skipped for want of blocks since it last entered the batch; see
    /// [`crate::SchedulerConfig::max_skipped_steps`].
    pub skipped_steps: u32,
    /// r of TRAIL: the first prediction of the whole output's tokens, fixed for life.
    pub first_prediction: Option<f32>,
    /// Expected remaining tokens, counted down by one per token since the prediction.
    countdown: Option<f32>,
    /// Order of arrival: unique and increasing over the scheduler's life.
    pub seq: u64,
    /// Its index in the scheduler.
    pub idx: RequestIdx,
    /// Number of requests that had the index before.
    pub generation: u32,
    /// `generated` at the step of the last accepted prediction.
    predicted_age: Option<u32>,
    /// Bit i: a token was sampled in step `sampled_step - i`.
    sampled: u64,
    sampled_step: u64,
    /// The last accepted prediction, not counted down.
    pub prediction: Option<Prediction>,
    /// The caller's name for it.
    pub id: RequestId,
    /// Time of arrival, seconds on the caller's clock.
    pub arrival_s: f64,
    /// Time by which the caller wants the whole answer, seconds on its clock.
    pub deadline_s: Option<f64>,
    /// True number of output tokens, where known.
    pub true_length: Option<u32>,
    /// Number of times it left the batch unfinished.
    pub preemptions: u32,
    /// Number of times it lost its KV.
    pub evictions: u32,
    /// Number of times its KV was swapped out.
    pub swaps: u32,
    /// Prompt tokens whose KV a prefix cache holds.
    pub cached_tokens: u32,
    /// The caller's priority, -127 to 127, lower first.
    pub priority: i32,
    /// The caller's name for the tenant whose request it is.
    pub tenant: u32,
}

const _: () = assert!(size_of::<RequestState>() == 192);

impl RequestState {
    /// A new request: waiting, not started.
    pub fn new(idx: RequestIdx, generation: u32, seq: u64, request: &NewRequest) -> RequestState {
        let initial = request.initial_prediction.filter(|tokens| tokens.is_finite());
        RequestState {
            id: request.id,
            idx,
            generation,
            seq,
            arrival_s: request.arrival_s,
            prompt_tokens: request.prompt_tokens,
            max_tokens: request.max_tokens,
            true_length: request.true_length,
            cached_tokens: request.cached_tokens,
            priority: request.priority,
            deadline_s: request.deadline_s,
            tenant: request.tenant,
            phase: Phase::Waiting,
            generated: request.generated,
            first_prediction: initial,
            countdown: initial.map(|tokens| tokens - request.generated as f32),
            ..RequestState::default()
        }
    }

    /// Tokens of the prompt and of the output so far.
    pub fn tokens(&self) -> u32 {
        self.prompt_tokens + self.generated
    }

    /// Tokens to compute before the next one can be sampled; 1 for a decode.
    #[inline]
    pub fn uncomputed(&self) -> u32 {
        self.tokens() - self.computed
    }

    /// Most blocks that it can begin with instead of computing them. Not that of its last token:
    /// the token after it is sampled from its logits. Nor, where it has computed nothing yet, that
    /// of its prompt's last token, with which its first prediction comes.
    pub(crate) fn max_cached_blocks(&self) -> u32 {
        let in_prompt = self.computed_max < self.prompt_tokens;
        let known = if in_prompt { self.prompt_tokens } else { self.tokens() };
        (known - 1) / BLOCK_TOKENS
    }

    /// True if it is running or paused: it holds KV that a step can use, or is about to.
    pub fn resident(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Paused)
    }

    /// True while its KV is in transfer to the host or back.
    pub fn moving(&self) -> bool {
        matches!(self.phase, Phase::SwappingOut | Phase::SwappingIn)
    }

    /// Expected remaining output tokens; None without a prediction. Clamped to at least 1 and to at
    /// most what `max_tokens` leaves.
    #[inline]
    pub fn remaining(&self) -> Option<f32> {
        self.countdown.map(|tokens| self.clamp(tokens))
    }

    /// The 10 % quantile, the median and the 90 % quantile of the remaining output tokens, counted
    /// down like [`RequestState::remaining`]; `None` where no accepted prediction has quantiles:
    /// before the probe's first one.
    pub fn remaining_quantiles(&self) -> Option<[f32; 3]> {
        let Prediction { p10, p50, p90, .. } = self.prediction.filter(|of| of.p90 > 0.0)?;
        let since = (self.generated - self.predicted_age?) as f32;
        Some([p10, p50, p90].map(|tokens| self.clamp(tokens - since)))
    }

    /// The last of [`RequestState::remaining_quantiles`], or [`RequestState::remaining`] where
    /// there are none.
    pub fn remaining_p90(&self) -> Option<f32> {
        self.remaining_quantiles().map(|[.., p90]| p90).or(self.remaining())
    }

    /// Remaining output tokens within 1 and what `max_tokens` leaves.
    #[inline]
    fn clamp(&self, tokens: f32) -> f32 {
        let max = self.max_tokens.saturating_sub(self.generated).max(1);
        tokens.clamp(1.0, max as f32)
    }

    /// Records a prediction. Returns true if it was accepted: `refresh` or more output tokens after
    /// the last accepted one.
    ///
    /// At most one prediction per output token is accepted, in order of age. That bounds the
    /// changes of a request's rank between two of its tokens, without which requests could evict
    /// each other in a cycle (see `fill`).
    #[inline]
    pub(crate) fn predict(&mut self, prediction: &Prediction, refresh: u32) -> bool {
        debug_assert!(refresh > 0);
        let Some(late) = self.sampled_since(prediction.step) else { return false };
        let age = self.generated - late;
        let fresh = self.predicted_age.is_none_or(|last| age >= last + refresh);
        if !fresh || !prediction.remaining.is_finite() {
            return false;
        }
        self.predicted_age = Some(age);
        self.prediction = Some(*prediction);
        self.countdown = Some(prediction.remaining - late as f32);
        self.first_prediction.get_or_insert(prediction.remaining + age as f32);
        true
    }

    /// Records that step `step` computed `len` tokens, and sampled one more if `sample`.
    pub(crate) fn advance(&mut self, step: u64, len: u32, sample: bool) {
        self.planned = false;
        self.computed += len;
        self.computed_max = self.computed_max.max(self.computed);
        if !sample {
            return;
        }
        self.generated += 1;
        self.slice_tokens += 1;
        self.countdown = self.countdown.map(|tokens| tokens - 1.0);
        let shift = step.saturating_sub(self.sampled_step);
        self.sampled = if shift < LATE_STEPS_MAX { self.sampled << shift } else { 0 } | 1;
        self.sampled_step = step;
    }

    /// Tokens sampled in `step` and after it; None if `step` is more than the recorded steps ago.
    pub(crate) fn sampled_since(&self, step: u64) -> Option<u32> {
        match self.sampled_step.checked_sub(step) {
            None => Some(0),
            Some(late) if late < LATE_STEPS_MAX => {
                Some((self.sampled & u64::MAX >> (LATE_STEPS_MAX - 1 - late)).count_ones())
            }
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;

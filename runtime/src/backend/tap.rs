//! The tap: which rows of a step get a length prediction, and the interfaces that receive their
//! activations.
//!
//! [`TapPlan::fill`] decides once, for every backend. Source: TRAIL, section 3.1.

use half::bf16;

use super::{Batch, MAX_DRAFT_TOKENS};

/// Identity of a staged row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapRow {
    /// Index of the request.
    pub request: u32,
    /// Generation of the index: tells the request from a later one with the same index.
    pub generation: u32,
    /// Output tokens fed so far; 0 for the mean over the prompt.
    pub generated: u32,
    /// Prompt length, tokens.
    pub prompt_len: u32,
    /// True for the row of a draft token: no prediction of the step is published before it is known
    /// whether the token is right.
    pub is_draft: bool,
}

/// A run of prompt rows whose activations add to the mean over the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptRun {
    /// First row in the batch.
    pub first_row: u32,
    /// Rows that belong to the prompt, at least 1.
    pub rows: u32,
    /// Index of the request, which owns a running sum; a run at position 0 resets it.
    pub request: u32,
    /// Position of the first row.
    pub first_position: u32,
    /// Prompt length, tokens.
    pub prompt_len: u32,
    /// Staged row of the mean, where this run completes the prompt.
    pub stage_row: Option<u32>,
}

/// The tapped rows of one step.
#[derive(Clone, Debug, Default)]
pub struct TapPlan {
    /// The staged rows, in order.
    pub rows: Vec<TapRow>,
    /// Runs of prompt rows; each names the staged row of its mean.
    pub means: Vec<PromptRun>,
    /// Batch rows that are staged unchanged: (batch row, staged row).
    pub singles: Vec<(u32, u32)>,
    /// `[segments of the batch]`.
    pub keys: Vec<RequestKey>,
}

/// Properties of a request that [`TapPlan::fill`] needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestKey {
    /// Generation of the request's index.
    pub generation: u32,
    /// Prompt length, tokens.
    pub prompt_len: u32,
}

impl TapPlan {
    /// A plan for batches of up to `segments` segments, which never allocates again. A segment can
    /// stage two rows: the mean over the prompt, and the last row of a recompute.
    pub fn with_capacity(segments: usize) -> Self {
        TapPlan {
            rows: Vec::with_capacity(2 * segments + MAX_DRAFT_TOKENS),
            means: Vec::with_capacity(segments),
            singles: Vec::with_capacity(segments + MAX_DRAFT_TOKENS),
            keys: Vec::with_capacity(segments),
        }
    }

    /// Plans the taps of `batch`: the mean over the original prompt where a segment completes it,
    /// and the sampled rows of a segment that ends in an output token.
    pub fn fill(&mut self, batch: &Batch, key: impl Fn(u32) -> RequestKey) {
        self.rows.clear();
        self.means.clear();
        self.singles.clear();
        self.keys.clear();
        for segment in &batch.segments {
            let key = key(segment.request);
            self.keys.push(key);
            let RequestKey { generation, prompt_len } = key;
            let end = segment.start + segment.len;
            let staged = |generated, is_draft| {
                let request = segment.request;
                TapRow { request, generation, generated, prompt_len, is_draft }
            };
            if segment.start < prompt_len {
                let complete = end >= prompt_len;
                self.means.push(PromptRun {
                    first_row: segment.first_row,
                    rows: end.min(prompt_len) - segment.start,
                    request: segment.request,
                    first_position: segment.start,
                    prompt_len,
                    stage_row: complete.then_some(self.rows.len() as u32),
                });
                if complete {
                    self.rows.push(staged(0, false));
                }
            }
            if end > prompt_len {
                let rows = segment.sampled_rows();
                for (after, row) in (0..rows.len() as u32).rev().zip(rows) {
                    self.singles.push((row, self.rows.len() as u32));
                    self.rows.push(staged(end - prompt_len - after, after < segment.drafts));
                }
            }
        }
    }

    /// Returns true if the step has nothing to tap.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.means.is_empty()
    }
}

/// Takes tapped activations out of a forward pass on the CPU, and predicts from them.
pub trait HiddenSink: Send + Sync {
    /// Takes the rows of `batch` that `plan` names out of `hidden` `[rows, hidden]`, the residual
    /// stream after tapped layer number `at`, which are published in order; after the last one
    /// makes their prediction tasks available to [`HiddenSink::assist`]. Returns before they have
    /// run. One thread publishes.
    fn publish_hidden(&self, step: u64, at: usize, plan: &TapPlan, batch: &Batch, hidden: &[f32]);

    /// Runs one small task of a prediction (a few microseconds); false if there is none.
    ///
    /// A pool thread that has finished its share of a parallel region calls this while others have
    /// not; in the last region all threads call it until it returns false.
    fn assist(&self) -> bool;
}

/// Takes the tapped rows of a device, and predicts from them.
///
/// Per step, one thread of the backend hands the rows over: by [`RowSink::stage`] and
/// [`RowSink::predict`], or by [`RowSink::publish_probabilities`] where the device ran the probe.
pub trait RowSink: Send + Sync {
    /// Copies the staged `activations` `[rows.len(), hidden]` of `step`, of the only tapped layer.
    /// No prediction starts yet: the caller first checks that the device has not overwritten its
    /// staging buffer during the copy.
    fn stage(&self, step: u64, rows: &[TapRow], activations: &[bf16]);

    /// Predicts from the rows staged last; returns when all predictions are published.
    fn predict(&self);

    /// Publishes predictions from `probabilities` `[rows.len(), bins]` that a device computed for
    /// `step`.
    fn publish_probabilities(&self, step: u64, rows: &[TapRow], probabilities: &[f32]);

    /// Runs one small task of a prediction (a few microseconds) on another thread than that of
    /// [`RowSink::predict`]; false if there is none.
    fn assist(&self) -> bool;

    /// Records that a thread which hands rows over has panicked: no more will come. A caller that
    /// waits for predictions must see it.
    fn fail(&self);
}

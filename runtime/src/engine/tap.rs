//! Which rows of a step are worth a prediction: decided once, for every backend.

use half::bf16;

use crate::batch::Batch;

/// Which request a staged row is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapRow {
    /// The request's slot.
    pub slot: u32,
    /// The slot's generation: the row is about this request and not about its successor.
    pub generation: u32,
    /// Output tokens fed so far; 0 for the prompt's mean.
    pub generated: u32,
}

/// A run of prompt rows whose activations go into the prompt's mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeanRun {
    /// First row in the batch.
    pub first_row: u32,
    /// Rows that belong to the prompt, at least 1.
    pub rows: u32,
    /// The request's slot, which has a running sum; a run at position 0 begins it anew.
    pub slot: u32,
    /// Position of the first row.
    pub first_position: u32,
    /// Tokens of the whole prompt.
    pub prompt_len: u32,
    /// Staged row of the mean, where this run completes the prompt.
    pub stage_row: Option<u32>,
}

/// What is tapped of one step.
#[derive(Clone, Debug, Default)]
pub struct TapPlan {
    /// The staged rows, in order.
    pub rows: Vec<TapRow>,
    /// Runs of prompt rows; their means are staged as the runs say.
    pub means: Vec<MeanRun>,
    /// Rows of the batch that are staged as they are: (row of the batch, staged row).
    pub singles: Vec<(u32, u32)>,
}

/// What must be known of the request in a slot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tenant {
    /// The slot's generation.
    pub generation: u32,
    /// Tokens of the prompt.
    pub prompt_len: u32,
}

impl TapPlan {
    /// A plan for batches of up to `segments` runs, which never allocates again. A run can bring two rows: the prompt's mean, and
    /// the last row of a recompute.
    pub fn with_capacity(segments: usize) -> Self {
        TapPlan {
            rows: Vec::with_capacity(2 * segments),
            means: Vec::with_capacity(segments),
            singles: Vec::with_capacity(segments),
        }
    }

    /// Plans what `batch` is worth: the mean over the original prompt's rows where a run completes the prompt, and the last row of
    /// a run that ends in an output token and samples another. Source: TRAIL, section 3.1.
    pub fn fill(&mut self, batch: &Batch, tenant: impl Fn(u32) -> Tenant) {
        self.rows.clear();
        self.means.clear();
        self.singles.clear();
        for segment in &batch.segments {
            let Tenant { generation, prompt_len } = tenant(segment.slot);
            let end = segment.start + segment.len;
            let staged = |generated| TapRow { slot: segment.slot, generation, generated };
            if segment.start < prompt_len {
                let complete = end >= prompt_len;
                self.means.push(MeanRun {
                    first_row: segment.first_row,
                    rows: end.min(prompt_len) - segment.start,
                    slot: segment.slot,
                    first_position: segment.start,
                    prompt_len,
                    stage_row: complete.then_some(self.rows.len() as u32),
                });
                if complete {
                    self.rows.push(staged(0));
                }
            }
            if end > prompt_len && segment.logits {
                self.singles.push((segment.first_row + segment.len - 1, self.rows.len() as u32));
                self.rows.push(staged(end - prompt_len));
            }
        }
    }
}

/// Receives rows that a device staged, on threads of the backend's own. One thread calls [`TapReceiver::stage`] and
/// [`TapReceiver::open`]; any may call [`TapReceiver::assist`].
pub trait TapReceiver: Send + Sync {
    /// Takes a copy of the staged `activations` `[rows.len(), hidden]` of `step`. Nothing is made of them yet: the caller looks first
    /// whether the device has overwritten them meanwhile.
    fn stage(&self, step: u64, rows: &[TapRow], activations: &[bf16]);

    /// Predicts from what was staged last; returns when all its predictions are published.
    fn open(&self);

    /// Runs one small piece of a prediction; false when there is none.
    fn assist(&self) -> bool;

    /// Publishes predictions from `probabilities` `[rows.len(), bins]` that a device computed for `step`.
    fn publish_probabilities(&self, step: u64, rows: &[TapRow], probabilities: &[f32]);
}

//! The stage: tapped rows copied out of the residual stream.

use std::sync::{Mutex, PoisonError};

use super::block_sums::BlockSums;
use super::{BLOCK_TOKENS, Batch, HiddenSink, MAX_DRAFT_TOKENS, TapPlan, TapRow};

/// The tapped rows of one step, and running sums over the prompts.
#[derive(Clone, Debug)]
pub struct TapStage {
    hidden: usize,
    /// Width of a row: of all tapped layers together.
    width: usize,
    /// Tapped layers.
    layers: usize,
    step: u64,
    rows: Vec<TapRow>,
    /// `[rows, width]`.
    activations: Vec<f32>,
    sums: BlockSums,
    drafts: Vec<DraftRow>,
}

/// Place of the row of a draft token.
#[derive(Clone, Copy, Debug)]
struct DraftRow {
    staged: u32,
    position: u32,
    block: u32,
}

impl TapStage {
    /// A stage for `requests` request indices and at most `max_rows` rows per step, of `layers`
    /// tapped layers `hidden` wide, side by side.
    pub fn new(hidden: usize, layers: usize, requests: usize, max_rows: usize) -> TapStage {
        let width = hidden * layers;
        TapStage {
            hidden,
            width,
            layers,
            step: 0,
            rows: Vec::with_capacity(max_rows),
            activations: Vec::with_capacity(max_rows * width),
            sums: BlockSums::new(width, requests),
            drafts: Vec::with_capacity(MAX_DRAFT_TOKENS),
        }
    }

    /// Keeps the sums of full KV blocks, of `num_blocks`, for requests that share them: `width`
    /// floats a block.
    pub fn keep_blocks(&mut self, num_blocks: usize) {
        self.sums.keep_blocks(num_blocks);
    }

    /// Number of the step.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The staged rows.
    pub fn rows(&self) -> &[TapRow] {
        &self.rows
    }

    /// Their activations, `[rows, width]`.
    pub fn activations(&self) -> &[f32] {
        &self.activations
    }

    /// Replaces the stage by `rows` with their `activations` `[rows, width]`.
    pub fn fill(&mut self, step: u64, rows: &[TapRow], activations: impl Iterator<Item = f32>) {
        self.begin(step, rows);
        self.activations.extend(activations);
    }

    /// Replaces the stage by the rows of `batch` that `plan` names, out of `stream` `[rows of the
    /// batch, hidden]` of tapped layer number `at`: the first begins the step, the others go on
    /// with it.
    pub fn take(&mut self, step: u64, at: usize, plan: &TapPlan, batch: &Batch, stream: &[f32]) {
        let (hidden, width) = (self.hidden, self.width);
        if at == 0 {
            self.begin(step, &plan.rows);
            self.activations.resize(plan.rows.len() * width, 0.0);
        }
        let columns = at * hidden..(at + 1) * hidden;
        let mut means = plan.means.iter();
        for (segment, key) in batch.segments.iter().zip(&plan.keys) {
            let in_prompt = segment.start < key.prompt_len;
            let run = if in_prompt { means.next() } else { None };
            let staged = run.and_then(|run| run.stage_row);
            let rows =
                &stream[segment.first_row as usize * hidden..][..segment.len as usize * hidden];
            let blocks = batch.blocks(segment);
            let mean = self.sums.add(segment, key, blocks, columns.clone(), rows);
            if let (Some(staged), Some(mean)) = (staged, mean) {
                let to = &mut self.activations[staged as usize * width..][columns.clone()];
                to.copy_from_slice(mean);
            }
        }
        if at + 1 == self.layers {
            self.sums.advance(batch, plan);
            self.stage_drafts(batch, plan);
        }
        for &(row, staged) in &plan.singles {
            let (row, staged) = (row as usize * hidden, staged as usize * width + at * hidden);
            self.activations[staged..staged + hidden].copy_from_slice(&stream[row..row + hidden]);
        }
    }

    /// Records where the rows of draft tokens are, in the order of the staged rows.
    fn stage_drafts(&mut self, batch: &Batch, plan: &TapPlan) {
        let mut singles = plan.singles.iter().peekable();
        for segment in batch.segments.iter().filter(|segment| segment.drafts > 0) {
            for row in segment.sampled_rows().skip(1) {
                while singles.next_if(|single| single.0 < row).is_some() {}
                let (_, staged) = singles.peek().expect("sampled rows of an output are staged");
                let position = segment.start + row - segment.first_row;
                let block = batch.blocks(segment)[position as usize / BLOCK_TOKENS];
                self.drafts.push(DraftRow { staged: *staged, position, block });
            }
        }
    }

    /// True if predictions from the step's rows must wait for [`TapStage::verify`].
    pub fn has_drafts(&self) -> bool {
        self.rows.iter().any(|row| row.is_draft)
    }

    /// Drops the draft rows that `is_accepted` rejects; once, after the step's tokens are
    /// sampled.
    pub fn verify(&mut self, is_accepted: impl Fn(&TapRow) -> bool) {
        let TapStage { drafts, rows, activations, sums, width, .. } = self;
        for DraftRow { staged, position, block } in drafts.drain(..) {
            let row = &rows[staged as usize];
            if is_accepted(row) {
                let activation = &activations[staged as usize * *width..][..*width];
                sums.accept(row.request, position, block, activation);
            }
        }
    }

    fn begin(&mut self, step: u64, rows: &[TapRow]) {
        self.step = step;
        self.rows.clear();
        self.rows.extend_from_slice(rows);
        self.activations.clear();
        self.drafts.clear();
    }
}

/// A stage alone keeps published rows, and predicts nothing.
impl HiddenSink for Mutex<TapStage> {
    fn publish_hidden(&self, step: u64, at: usize, plan: &TapPlan, batch: &Batch, hidden: &[f32]) {
        let mut stage = self.lock().unwrap_or_else(PoisonError::into_inner);
        stage.take(step, at, plan, batch, hidden);
    }

    fn assist(&self) -> bool {
        false
    }
}

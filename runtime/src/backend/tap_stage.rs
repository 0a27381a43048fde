//! The stage: tapped rows copied out of the residual stream.

use std::sync::{Mutex, PoisonError};

use super::{HiddenSink, PromptRun, TapPlan, TapRow};

/// The tapped rows of one step, and running sums over the prompts.
#[derive(Clone, Debug)]
pub struct TapStage {
    hidden: usize,
    /// Width of a row: of all tapped layers together.
    width: usize,
    step: u64,
    rows: Vec<TapRow>,
    /// `[rows, width]`.
    activations: Vec<f32>,
    /// Running sums over each request's prompt rows: `[requests, width]`. A device keeps its own;
    /// memory that is never written takes no page.
    prompt_sums: Vec<f32>,
}

impl TapStage {
    /// A stage for `requests` request indices and at most `max_rows` rows per step, of `layers`
    /// tapped layers `hidden` wide, side by side.
    pub fn new(hidden: usize, layers: usize, requests: usize, max_rows: usize) -> TapStage {
        let width = hidden * layers;
        TapStage {
            hidden,
            width,
            step: 0,
            rows: Vec::with_capacity(max_rows),
            activations: Vec::with_capacity(max_rows * width),
            prompt_sums: vec![0.0; requests * width],
        }
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

    /// Replaces the stage by the rows of `plan`, out of `stream` `[rows of the batch, hidden]` of
    /// tapped layer number `at`: the first begins the step, the others go on with it.
    pub fn take(&mut self, step: u64, at: usize, plan: &TapPlan, stream: &[f32]) {
        let (hidden, width) = (self.hidden, self.width);
        if at == 0 {
            self.begin(step, &plan.rows);
            self.activations.resize(plan.rows.len() * width, 0.0);
        }
        for run in &plan.means {
            self.add_prompt_rows(run, at, stream);
        }
        for &(row, staged) in &plan.singles {
            let (row, staged) = (row as usize * hidden, staged as usize * width + at * hidden);
            self.activations[staged..staged + hidden].copy_from_slice(&stream[row..row + hidden]);
        }
    }

    fn begin(&mut self, step: u64, rows: &[TapRow]) {
        self.step = step;
        self.rows.clear();
        self.rows.extend_from_slice(rows);
        self.activations.clear();
    }

    /// Adds a run's rows to its request's sum, and stages the mean where the prompt is complete.
    fn add_prompt_rows(&mut self, run: &PromptRun, at: usize, stream: &[f32]) {
        let (hidden, width, idx) = (self.hidden, self.width, run.request as usize);
        let sum = &mut self.prompt_sums[idx * width + at * hidden..][..hidden];
        if run.first_position == 0 {
            sum.fill(0.0);
        }
        let first = run.first_row as usize;
        for row in stream[first * hidden..][..run.rows as usize * hidden].chunks_exact(hidden) {
            for (sum, value) in sum.iter_mut().zip(row) {
                *sum += value;
            }
        }
        let Some(staged) = run.stage_row else { return };
        let scale = 1.0 / run.prompt_len as f32;
        let mean = &mut self.activations[staged as usize * width + at * hidden..][..hidden];
        for (mean, sum) in mean.iter_mut().zip(sum) {
            *mean = *sum * scale;
        }
    }
}

/// A stage alone keeps published rows, and predicts nothing.
impl HiddenSink for Mutex<TapStage> {
    fn publish_hidden(&self, step: u64, at: usize, plan: &TapPlan, hidden: &[f32]) {
        self.lock().unwrap_or_else(PoisonError::into_inner).take(step, at, plan, hidden);
    }

    fn assist(&self) -> bool {
        false
    }
}

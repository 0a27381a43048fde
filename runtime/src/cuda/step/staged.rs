//! Which rows of a step are staged for the probe, and in which order.

use super::layout::{Layout, MEAN_WORDS, NONE};
use super::shape::StepShape;
use crate::backend::{TapPlan, TapRow};
use crate::cuda::plan::step::TapSegment;
use crate::cuda::step_metadata::StepMetadata;

/// The stage of one step.
pub(super) struct Staged {
    layout: Layout,
    /// By device row: its row of the stage.
    tap_row: Box<[u32]>,
    /// The staged rows, in order.
    rows: Vec<TapRow>,
}

impl Staged {
    pub(super) fn new(layout: Layout, rows: usize, max: usize) -> Staged {
        Staged { layout, tap_row: vec![NONE; rows].into(), rows: Vec::with_capacity(max) }
    }

    /// The staged rows, in order.
    pub(super) fn rows(&self) -> &[TapRow] {
        &self.rows
    }

    /// Writes `tap` over `rows` device rows; the first `alone` are single rows; `shape` gets
    /// what the launches need to know.
    pub(super) fn write(
        &mut self,
        tap: Option<&TapPlan>,
        device_row: &[u32],
        rows: usize,
        decode_rows: usize,
        shape: &mut StepShape,
        metadata: &mut StepMetadata,
    ) {
        self.rows.clear();
        self.tap_row[..rows].fill(NONE);
        if let Some(tap) = tap.filter(|tap| !tap.rows.is_empty() || !tap.means.is_empty()) {
            self.rows.extend_from_slice(&tap.rows);
            // A step of nothing but staged single rows stages them in their own order, which stays.
            let in_order =
                shape.is_plain && tap.means.is_empty() && tap.singles.len() == decode_rows;
            for &(row, stage) in &tap.singles {
                let row = device_row[row as usize];
                let place = if in_order { row } else { stage };
                self.tap_row[row as usize] = place;
                self.rows[place as usize] = tap.rows[stage as usize];
            }
            shape.is_plain &= in_order;
            shape.staged = self.rows.len();
            self.write_means(tap, device_row, shape, metadata);
        }
        metadata.set_all(self.layout.tap_row, &self.tap_row[..rows]);
    }

    fn write_means(
        &self,
        tap: &TapPlan,
        device_row: &[u32],
        shape: &mut StepShape,
        metadata: &mut StepMetadata,
    ) {
        for (index, mean) in tap.means.iter().enumerate() {
            let run = TapSegment {
                first_row: device_row[mean.first_row as usize] as usize,
                rows: mean.rows as usize,
                request: Some(mean.request as usize),
                first_position: mean.first_position as usize,
                prompt: mean.prompt_len as usize,
                stage_row: mean.stage_row.map(|row| row as usize),
            };
            shape.mean_rows += run.rows;
            let words = run.encode().map(|word| word as u32);
            metadata.set_all(self.layout.means + index * MEAN_WORDS, &words);
        }
        shape.means = tap.means.len();
    }
}

//! Which rows of a step are staged for the probe, in which order, and which are summed: rows of
//! draft tokens once they are known to be right.

use super::batch_slots::Assignment;
use super::drafts::Drafts;
use super::layout::{INPUT_WORDS, Layout, NONE, SUM_WORDS, StepLimits};
use super::plans::Plans;
use super::shape::StepShape;
use crate::backend::{Batch, Step, TapPlan, TapRow};
use crate::cuda::plan::step::TapSegment;
use crate::cuda::step_metadata::StepMetadata;
use trail_probe::{age_class, log_length};

/// The stage of one step.
pub(super) struct Staged {
    layout: Layout,
    /// True if the sums of all blocks are made, not of prompts alone.
    sums_outputs: bool,
    /// True if the probe runs on the device, which gets its inputs beside the activations.
    has_probe: bool,
    /// By device row: its row of the stage.
    tap_row: Box<[u32]>,
    /// The staged rows, in order.
    rows: Vec<TapRow>,
    /// Draft tokens whose rows are kept.
    pub(super) drafts: Drafts,
}

/// Most staged rows of a step, padding included. A segment can bring two rows: the prompt's mean,
/// and its last row.
pub(super) fn max_staged(limits: &StepLimits, plans: &Plans) -> usize {
    (2 * limits.segments + limits.drafts).max(plans.decode_sizes.last())
}

/// A tap that is written into metadata.
#[derive(Clone, Copy)]
pub(super) struct StagedTap {
    /// Requests share KV blocks: the sums of all blocks are made, not of prompts alone.
    pub(super) shares_blocks: bool,
    /// The probe runs on the device.
    pub(super) has_probe: bool,
}

/// Device rows of a step.
#[derive(Clone, Copy)]
pub(super) struct DeviceRows<'a> {
    /// By row of the batch: its row on the device.
    pub(super) of: &'a [u32],
    /// The first ones: single rows.
    pub(super) decode: usize,
    /// With their padding.
    pub(super) padded: usize,
    /// All, padding included.
    pub(super) all: usize,
}

impl Staged {
    /// For steps of up to `rows` device rows.
    pub(super) fn new(
        layout: Layout,
        tap: Option<StagedTap>,
        rows: usize,
        limits: &StepLimits,
        plans: &Plans,
    ) -> Staged {
        Staged {
            layout,
            sums_outputs: tap.is_some_and(|tap| tap.shares_blocks),
            has_probe: tap.is_some_and(|tap| tap.has_probe),
            tap_row: vec![NONE; rows].into(),
            rows: Vec::with_capacity(max_staged(limits, plans)),
            drafts: Drafts::new(limits.drafts),
        }
    }

    /// The staged rows, in order.
    pub(super) fn rows(&self) -> &[TapRow] {
        &self.rows
    }

    /// Segments of the sums of a step of nothing but `padded` single rows, padding included.
    pub(super) fn plain_sums(&self, padded: usize) -> usize {
        if self.sums_outputs { padded } else { 0 }
    }

    /// Writes the taps of `step`; `shape` gets what the launches need to know.
    pub(super) fn write(
        &mut self,
        step: &Step<'_>,
        assigned: &[Assignment],
        rows: DeviceRows<'_>,
        shape: &mut StepShape,
        metadata: &mut StepMetadata,
    ) {
        self.rows.clear();
        self.tap_row[..rows.all].fill(NONE);
        if let Some(tap) = step.tap.filter(|tap| !tap.rows.is_empty()) {
            self.rows.extend_from_slice(&tap.rows);
            // A step of nothing but staged single rows stages them in their own order, which stays.
            let in_order =
                shape.is_plain && tap.means.is_empty() && tap.singles.len() == rows.decode;
            for &(row, stage) in &tap.singles {
                let row = rows.of[row as usize];
                let place = if in_order { row } else { stage };
                self.tap_row[row as usize] = place;
                self.rows[place as usize] = tap.rows[stage as usize];
            }
            shape.is_plain &= in_order;
            shape.staged = self.rows.len();
            shape.has_means = self.rows.iter().any(|row| row.generated == 0);
        }
        metadata.set_all(self.layout.tap_row, &self.tap_row[..rows.all]);
        self.drafts.begin();
        let sums = step
            .tap
            .map_or(0, |tap| self.write_sums(tap, step.batch, assigned, rows, shape, metadata));
        // Graphs launch them in any case.
        let padding = if sums > 0 { rows.decode } else { 0 };
        for index in padding..rows.padded {
            let segment = TapSegment::default();
            self.write_sum(index, &segment, metadata);
        }
        shape.sums = if shape.is_plain { self.plain_sums(rows.padded) } else { sums };
        if shape.is_plain {
            shape.staged = rows.padded;
        }
        if self.has_probe {
            self.write_inputs(shape.staged, metadata);
        }
    }

    /// Writes what the probe reads of `staged` rows beside their activations; of padding, nothing.
    fn write_inputs(&self, staged: usize, metadata: &mut StepMetadata) {
        for place in 0..staged {
            let words = self.rows.get(place).map_or([NONE, 0, 0, 0], |row| {
                let log = if row.generated == 0 { log_length(row.prompt_len) } else { 0.0 };
                [row.request, age_class(row.generated) as u32, log.to_bits(), 0]
            });
            metadata.set_all(self.layout.probe_inputs + place * INPUT_WORDS, &words);
        }
    }

    /// Writes the segments of the sums: decode rows at their device rows, then the others. Returns
    /// their number, 0 if nothing is summed.
    fn write_sums(
        &mut self,
        tap: &TapPlan,
        batch: &Batch,
        assigned: &[Assignment],
        rows: DeviceRows<'_>,
        shape: &mut StepShape,
        metadata: &mut StepMetadata,
    ) -> usize {
        let (mut next, mut means) = (rows.padded, tap.means.iter());
        for ((segment, assigned), key) in batch.segments.iter().zip(assigned).zip(&tap.keys) {
            let first_row = rows.of[segment.first_row as usize] as usize;
            let index = if segment.len == 1 { first_row } else { next };
            next += usize::from(segment.len > 1);
            let in_prompt = segment.start < key.prompt_len;
            let mean = if in_prompt { means.next() } else { None };
            let end = segment.start + segment.len - segment.drafts;
            let end = if self.sums_outputs { end } else { end.min(key.prompt_len) };
            let count = end.saturating_sub(segment.start) as usize;
            let kept = if self.sums_outputs { segment.drafts as usize } else { 0 };
            let run = TapSegment {
                first_row,
                rows: count,
                batch_idx: (count > 0).then_some(assigned.batch_idx as usize),
                first_position: segment.start as usize,
                prompt: key.prompt_len as usize,
                stage_row: mean.and_then(|mean| mean.stage_row).map(|row| row as usize),
                kept,
                kept_row: self.drafts.kept(),
            };
            if kept > 0 {
                self.drafts.keep(batch, segment, &run);
            }
            shape.sum_rows += count;
            self.write_sum(index, &run, metadata);
        }
        if shape.sum_rows > 0 { next } else { 0 }
    }

    fn write_sum(&self, index: usize, segment: &TapSegment, metadata: &mut StepMetadata) {
        let words = segment.encode().map(|word| word as u32);
        metadata.set_all(self.layout.sums + index * SUM_WORDS, &words);
    }
}

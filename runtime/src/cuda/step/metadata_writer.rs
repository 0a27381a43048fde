//! Writes a batch into the step's metadata: device rows, and everything that the kernels look up by
//! row, by `batch_idx`, by segment. Decode rows come first, padded to a size that has plans; each
//! keeps its row from step to step while the row is in range, whatever the scheduler's order, so
//! that few words change. The prefill segments follow, then padding.

use super::batch_slots::{Assignment, BatchSlots};
use super::layout::{Layout, NONE, SEGMENT_WORDS, StepLimits, TILE_WORDS};
use super::plans::Plans;
use super::sampling_params::{RowSamplings, SampledRow};
use super::shape::StepShape;
use super::staged::{DeviceRows, Staged, StagedTap, max_staged};
use super::token_masks::TokenMasks;
use crate::backend::{BLOCK_TOKENS, Batch, Segment, Step};
use crate::cuda::plan::attention::{PrefillSegment, prefill_tiles};
use crate::cuda::step_metadata::StepMetadata;

/// Writes steps into the metadata, and remembers what was written.
pub(super) struct MetadataWriter {
    pub(super) layout: Layout,
    group: usize,
    /// Batch slots: the places of draft tokens follow them.
    num_slots: u32,
    /// True if a layer is tapped.
    taps: bool,
    slots: BatchSlots,
    /// By segment.
    assigned: Vec<Assignment>,
    /// By row of the batch: its row on the device.
    device_row: Box<[u32]>,
    /// By row on the device: the last step in which a decode row had it.
    claimed: Box<[u64]>,
    /// Decode segments without a row yet.
    unplaced: Vec<u32>,
    prefill: Vec<PrefillSegment>,
    tiles: Vec<[i32; 2]>,
    pub(super) samplings: RowSamplings,
    pub(super) staged: Staged,
}

impl MetadataWriter {
    /// Invalidates what was written for `request`, whose blocks were taken away.
    pub(super) fn invalidate(&mut self, request: u32) {
        self.slots.invalidate(request);
    }

    /// For steps within `limits`; `None` for `tap` without a tap.
    pub(super) fn new(
        limits: &StepLimits,
        plans: &Plans,
        tap: Option<StagedTap>,
    ) -> MetadataWriter {
        let (rows, sampled_rows) = (plans.rows.last(), plans.sampled_rows.last());
        let tiles = plans.max_tiles(limits);
        let staged = match tap {
            Some(StagedTap { has_probe: true, .. }) => max_staged(limits, plans),
            _ => 0,
        };
        let layout = Layout::new(limits, rows, sampled_rows, tiles, staged);
        MetadataWriter {
            layout,
            group: plans.heads.group,
            num_slots: limits.segments as u32,
            taps: tap.is_some(),
            slots: BatchSlots::new(limits.segments, limits.requests),
            assigned: Vec::with_capacity(limits.segments),
            device_row: vec![NONE; limits.rows.max(limits.segments)].into(),
            claimed: vec![0; rows].into(),
            unplaced: Vec::with_capacity(limits.segments),
            prefill: Vec::with_capacity(limits.segments),
            tiles: Vec::with_capacity(tiles),
            samplings: RowSamplings::new(layout, sampled_rows),
            staged: Staged::new(layout, tap, rows, limits, plans),
        }
    }

    /// Rows of token counts to write: those of requests that have just got their batch slot, and
    /// those of draft tokens. The request index, the row, and the last tokens that it leaves out.
    pub(super) fn fresh<'a>(
        &'a self,
        batch: &'a Batch,
    ) -> impl Iterator<Item = (u32, u32, usize)> + 'a {
        let both = batch.segments.iter().zip(&self.assigned);
        let mut next_draft = self.num_slots;
        both.flat_map(move |(segment, assigned)| {
            let (request, drafts) = (segment.request, segment.drafts);
            let first_draft = next_draft;
            next_draft += drafts;
            let own = assigned.is_new.then_some((request, assigned.batch_idx, drafts as usize));
            let of_draft = move |at| (request, first_draft + at, (drafts - 1 - at) as usize);
            own.into_iter().chain((0..drafts).map(of_draft))
        })
    }

    /// Writes `step` into `metadata`.
    pub(super) fn write(
        &mut self,
        step: &Step<'_>,
        plans: &Plans,
        masks: &mut TokenMasks,
        metadata: &mut StepMetadata,
    ) -> StepShape {
        let batch = step.batch;
        metadata.begin(step.number);
        masks.begin();
        metadata.set(self.layout.number, step.number as u32);
        self.slots.assign(step.number, &batch.segments, &mut self.assigned);
        self.write_tables(batch, metadata);
        let count = self.place(step.number, batch);
        let decode = (count > 0).then(|| plans.decode_sizes.index(count));
        let padded = decode.map_or(0, |index| plans.decode_sizes.at(index));
        self.write_decode(batch, metadata);
        let end = self.write_prefill(batch, padded, metadata);
        let rows = plans.rows.index(end);
        for row in (count..padded).chain(end..plans.rows.at(rows)) {
            metadata.set(self.layout.batch_idx + row, NONE);
        }
        let sampled_rows = self.write_sampled(step, (count, plans), masks, metadata);
        let mut shape = StepShape {
            parity: (step.number % 2) as usize,
            decode,
            sampled_rows,
            is_plain: self.prefill.is_empty()
                && self.samplings.sampled_rows().len() == batch.segments.len(),
            ..self.prefill_shape(rows, plans)
        };
        if self.taps {
            let all = plans.rows.at(rows);
            let rows = DeviceRows { of: &self.device_row, decode: count, padded, all };
            self.staged.write(step, &self.assigned, rows, &mut shape, metadata);
        }
        metadata.end();
        shape
    }

    /// Writes the blocks that the table does not have yet. A request's blocks do not change while
    /// it keeps its batch slot; it only gets more.
    fn write_tables(&mut self, batch: &Batch, metadata: &mut StepMetadata) {
        for (segment, assigned) in batch.segments.iter().zip(&self.assigned) {
            let blocks = batch.blocks(segment);
            assert!(blocks.len() <= self.layout.max_blocks, "more blocks than the longest context");
            let batch_idx = self.slots.get_mut(assigned.batch_idx);
            let first = self.layout.table + assigned.batch_idx as usize * self.layout.max_blocks;
            let written = (batch_idx.blocks as usize).min(blocks.len());
            debug_assert!((0..written).all(|at| metadata.get(first + at) == blocks[at]));
            metadata.set_all(first + written, &blocks[written..]);
            batch_idx.blocks = blocks.len() as u32;
        }
    }

    /// Assigns each decode segment a device row, keeping last step's row when it is still in range.
    /// Returns the number of decode rows.
    fn place(&mut self, number: u64, batch: &Batch) -> usize {
        let is_decode = |segment: &&Segment| segment.len == 1;
        let count = batch.segments.iter().filter(is_decode).count();
        self.unplaced.clear();
        for (index, segment) in batch.segments.iter().enumerate() {
            let batch_idx = self.slots.get_mut(self.assigned[index].batch_idx);
            if segment.len > 1 {
                batch_idx.row = NONE;
            } else if (batch_idx.row as usize) < count
                && self.claimed[batch_idx.row as usize] != number
            {
                self.claimed[batch_idx.row as usize] = number;
                self.device_row[segment.first_row as usize] = batch_idx.row;
            } else {
                self.unplaced.push(index as u32);
            }
        }
        let mut row = 0;
        for &index in &self.unplaced {
            while self.claimed[row] == number {
                row += 1;
            }
            self.claimed[row] = number;
            let segment = &batch.segments[index as usize];
            self.slots.get_mut(self.assigned[index as usize].batch_idx).row = row as u32;
            self.device_row[segment.first_row as usize] = row as u32;
        }
        count
    }

    fn write_decode(&self, batch: &Batch, metadata: &mut StepMetadata) {
        let layout = &self.layout;
        for (segment, assigned) in batch.segments.iter().zip(&self.assigned) {
            if segment.len == 1 {
                let from = segment.first_row as usize;
                let row = self.device_row[from] as usize;
                // A token that is not known yet has the same value here and in the kernel.
                metadata.set(layout.token + row, batch.tokens[from]);
                metadata.set(layout.position + row, batch.positions[from]);
                metadata.set(layout.batch_idx + row, assigned.batch_idx);
            }
        }
    }

    /// Writes the rows of the prefill segments from row `first` on; returns the row after the last.
    fn write_prefill(&mut self, batch: &Batch, first: usize, metadata: &mut StepMetadata) -> usize {
        let layout = self.layout;
        let mut next = first;
        self.prefill.clear();
        self.tiles.clear();
        for (segment, assigned) in batch.segments.iter().zip(&self.assigned) {
            if segment.len == 1 {
                continue;
            }
            let (from, rows) = (segment.first_row as usize, segment.len as usize);
            metadata.set_all(layout.token + next, &batch.tokens[from..from + rows]);
            metadata.set_all(layout.position + next, &batch.positions[from..from + rows]);
            for row in 0..rows {
                metadata.set(layout.batch_idx + next + row, assigned.batch_idx);
                self.device_row[from + row] = (next + row) as u32;
            }
            self.prefill.push(PrefillSegment {
                first_row: next,
                rows,
                batch_idx: Some(assigned.batch_idx as usize),
                context: segment.start as usize,
            });
            next += rows;
        }
        self.write_tiles(metadata);
        next
    }

    /// Writes the prefill segments, and their tiles of queries.
    fn write_tiles(&mut self, metadata: &mut StepMetadata) {
        for (index, segment) in self.prefill.iter().enumerate() {
            let words = segment.encode().map(|word| word as u32);
            metadata.set_all(self.layout.segments + index * SEGMENT_WORDS, &words);
        }
        prefill_tiles(&self.prefill, self.group, &mut self.tiles);
        for (index, tile) in self.tiles.iter().enumerate() {
            metadata.set_all(self.layout.tiles + index * TILE_WORDS, &tile.map(|word| word as u32));
        }
    }

    /// Writes a prompt of `tokens` zeros in batch slot 0 and the first blocks of the pool: work to
    /// be timed before the first step. No slot is assigned, so that the first request of the slot
    /// overwrites everything.
    pub(super) fn write_prompt(
        &mut self,
        tokens: usize,
        plans: &Plans,
        metadata: &mut StepMetadata,
    ) -> StepShape {
        let layout = self.layout;
        let rows = plans.rows.index(tokens);
        metadata.begin(0);
        for block in 0..tokens.div_ceil(BLOCK_TOKENS) {
            metadata.set(layout.table + block, block as u32);
        }
        for row in 0..plans.rows.at(rows) {
            metadata.set(layout.token + row, 0);
            metadata.set(layout.position + row, row as u32);
            metadata.set(layout.batch_idx + row, if row < tokens { 0 } else { NONE });
        }
        let segment = PrefillSegment { first_row: 0, rows: tokens, batch_idx: Some(0), context: 0 };
        self.prefill.clear();
        self.prefill.push(segment);
        self.write_tiles(metadata);
        metadata.end();
        self.prefill_shape(rows, plans)
    }

    /// The shape of the prefill segments, as part of a step padded to size `rows`.
    fn prefill_shape(&self, rows: usize, plans: &Plans) -> StepShape {
        let pairs = |segment: &PrefillSegment| segment.rows * (segment.context + segment.rows);
        StepShape {
            rows,
            tiles: self.tiles.len(),
            prompt_rows: self.prefill.iter().map(|segment| segment.rows).sum(),
            prompt_pairs: self.prefill.iter().map(pairs).sum(),
            split: plans.split(&self.prefill, &self.tiles),
            ..StepShape::default()
        }
    }

    /// Writes the sampling parameters of each row that needs logits. A decode row has the same
    /// index among the rows of logits.
    fn write_sampled(
        &mut self,
        step: &Step<'_>,
        (decode_rows, plans): (usize, &Plans),
        masks: &mut TokenMasks,
        metadata: &mut StepMetadata,
    ) -> Option<usize> {
        let batch = step.batch;
        self.samplings.begin();
        let (mut next, mut next_draft) = (decode_rows, self.num_slots);
        for (segment, assigned) in batch.segments.iter().zip(&self.assigned) {
            if segment.len == 1 && !segment.logits {
                let row = self.device_row[segment.first_row as usize];
                self.samplings.skip(row as usize, metadata);
            }
            for from in segment.sampled_rows() {
                let is_draft = from + segment.drafts >= segment.first_row + segment.len;
                let row = self.device_row[from as usize];
                let index = if segment.len == 1 { row as usize } else { next };
                next += usize::from(segment.len > 1);
                let generation = self.slots.get_mut(assigned.batch_idx).generation;
                let sampled = SampledRow {
                    index,
                    row,
                    request: segment.request,
                    position: batch.positions[from as usize] + 1,
                    place: if is_draft { next_draft } else { assigned.batch_idx },
                    generation: (!is_draft).then_some(generation),
                };
                next_draft += u32::from(is_draft);
                self.samplings.write(sampled, step.sampling, masks, metadata);
            }
        }
        if self.samplings.sampled_rows().is_empty() {
            return None;
        }
        let size = plans.sampled_rows.index(next);
        for index in next..plans.sampled_rows.at(size) {
            self.samplings.skip(index, metadata);
        }
        Some(size)
    }
}

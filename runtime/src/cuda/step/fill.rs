//! A batch into the mirror: which device row each row has, and everything that the kernels look up by row, by seat, by run.
//!
//! Rows that stand alone come first, padded to a size that has plans; each keeps its row from step to step as long as there are so many,
//! whatever order the scheduler has them in, so that little changes. Behind them come the runs of prompt rows, then padding.

use super::how::Hows;
use super::layout::{Layout, Limits, NONE, RUN_WORDS, TILE_WORDS};
use super::plans::Plans;
use super::seats::{Seats, Taken};
use super::staged::Staged;
use crate::backend::Step;
use crate::backend::{Batch, Segment};
use crate::cuda::mirror::Mirror;
use crate::cuda::plan::attention::{Run, prefill_tiles};

/// What of a step the launches depend on. Sizes are indices into [`Plans`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// The list of differences and the slot of the rings that it uses.
    pub(super) parity: usize,
    /// Of all rows.
    pub(super) rows: usize,
    /// Of those that stand alone.
    pub(super) alone: Option<usize>,
    /// Of the rows of logits.
    pub(super) choices: Option<usize>,
    /// Tiles of prompt rows, their rows, and the pairs of a row and a token that they attend to.
    pub(super) tiles: usize,
    pub(super) prompt_rows: usize,
    pub(super) prompt_pairs: usize,
    /// Runs for the tap's mean, and their rows.
    pub(super) means: usize,
    pub(super) mean_rows: usize,
    /// Rows of the tap's stage that go to the host.
    pub(super) staged: usize,
    /// Nothing but single rows that all choose a token: what graphs are made of.
    pub(super) is_plain: bool,
}

/// Fills mirrors, remembering what they have.
pub(super) struct Filler {
    pub(super) layout: Layout,
    group: usize,
    /// Whether anything is tapped at all.
    taps: bool,
    seats: Seats,
    /// By segment.
    taken: Vec<Taken>,
    /// By row of the batch: its row on the device.
    device_row: Box<[u32]>,
    /// By row on the device: the last step in which a row that stands alone had it.
    claimed: Box<[u64]>,
    /// Segments that stand alone, and have no row yet.
    unplaced: Vec<u32>,
    runs: Vec<Run>,
    tiles: Vec<[i32; 2]>,
    pub(super) hows: Hows,
    pub(super) staged: Staged,
}

impl Filler {
    /// The request in `slot` has lost its blocks.
    pub(super) fn stand_up(&mut self, slot: u32) {
        self.seats.stand_up(slot);
    }

    pub(super) fn new(limits: &Limits, plans: &Plans, taps: bool) -> Filler {
        let (rows, choices) = (plans.rows.last(), plans.choices.last());
        let tiles = plans.most_tiles(limits);
        let layout = Layout::new(limits, rows, choices, tiles);
        Filler {
            layout,
            group: plans.heads.group,
            taps,
            seats: Seats::new(limits.segments, limits.requests),
            taken: Vec::with_capacity(limits.segments),
            device_row: vec![NONE; limits.rows.max(limits.segments)].into(),
            claimed: vec![0; rows].into(),
            unplaced: Vec::with_capacity(limits.segments),
            runs: Vec::with_capacity(limits.segments),
            tiles: Vec::with_capacity(tiles),
            hows: Hows::new(layout, choices, limits.segments),
            staged: Staged::new(layout, rows, 2 * limits.segments),
        }
    }

    /// The segments that have just sat down: the request's slot and its seat.
    pub(super) fn fresh<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = (u32, u32)> + 'a {
        let both = batch.segments.iter().zip(&self.taken);
        both.filter(|(_, taken)| taken.is_new).map(|(segment, taken)| (segment.slot, taken.seat))
    }

    /// Makes `mirror` say what `step` is.
    pub(super) fn fill(&mut self, step: &Step<'_>, plans: &Plans, mirror: &mut Mirror) -> Shape {
        let batch = step.batch;
        mirror.begin(step.number);
        mirror.set(self.layout.number, step.number as u32);
        self.seats.take(step.number, &batch.segments, &mut self.taken);
        self.write_tables(batch, mirror);
        let count = self.place(step.number, batch);
        let alone = (count > 0).then(|| plans.alone.index(count));
        let padded = alone.map_or(0, |index| plans.alone.at(index));
        self.write_alone(batch, mirror);
        let end = self.write_runs(batch, padded, mirror);
        let rows = plans.rows.index(end);
        for row in (count..padded).chain(end..plans.rows.at(rows)) {
            mirror.set(self.layout.seat + row, NONE);
        }
        let choices = self.write_choices(step, count, plans, mirror);
        let mut shape = Shape {
            parity: (step.number % 2) as usize,
            rows,
            alone,
            choices,
            tiles: self.tiles.len(),
            prompt_rows: self.runs.iter().map(|run| run.rows).sum(),
            prompt_pairs: self.runs.iter().map(|run| run.rows * (run.context + run.rows)).sum(),
            is_plain: self.runs.is_empty() && self.hows.chosen().len() == batch.segments.len(),
            ..Shape::default()
        };
        if self.taps {
            let most = plans.rows.at(rows);
            self.staged.write(step.tap, &self.device_row, most, count, &mut shape, mirror);
            if shape.is_plain {
                shape.staged = padded;
            }
        }
        mirror.end();
        shape
    }

    /// Blocks that the table has not got yet. A seated request's blocks stay as they are; it only gets more.
    fn write_tables(&mut self, batch: &Batch, mirror: &mut Mirror) {
        for (segment, taken) in batch.segments.iter().zip(&self.taken) {
            let blocks = batch.blocks(segment);
            assert!(blocks.len() <= self.layout.max_blocks, "more blocks than the longest context");
            let seat = self.seats.get_mut(taken.seat);
            let first = self.layout.table + taken.seat as usize * self.layout.max_blocks;
            let written = (seat.blocks as usize).min(blocks.len());
            debug_assert!((0..written).all(|at| mirror.get(first + at) == blocks[at]));
            mirror.set_all(first + written, &blocks[written..]);
            seat.blocks = blocks.len() as u32;
        }
    }

    /// Gives each segment of one row its row: the one it had, where that is among the first so many, or one that is left. How many there are.
    fn place(&mut self, number: u64, batch: &Batch) -> usize {
        let is_alone = |segment: &&Segment| segment.len == 1;
        let count = batch.segments.iter().filter(is_alone).count();
        self.unplaced.clear();
        for (index, segment) in batch.segments.iter().enumerate() {
            let seat = self.seats.get_mut(self.taken[index].seat);
            if segment.len > 1 {
                seat.row = NONE;
            } else if (seat.row as usize) < count && self.claimed[seat.row as usize] != number {
                self.claimed[seat.row as usize] = number;
                self.device_row[segment.first_row as usize] = seat.row;
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
            self.seats.get_mut(self.taken[index as usize].seat).row = row as u32;
            self.device_row[segment.first_row as usize] = row as u32;
        }
        count
    }

    fn write_alone(&self, batch: &Batch, mirror: &mut Mirror) {
        let layout = &self.layout;
        for (segment, taken) in batch.segments.iter().zip(&self.taken) {
            if segment.len == 1 {
                let from = segment.first_row as usize;
                let row = self.device_row[from] as usize;
                // The value that stands for a token under way is the kernel's, too.
                mirror.set(layout.token + row, batch.tokens[from]);
                mirror.set(layout.position + row, batch.positions[from]);
                mirror.set(layout.seat + row, taken.seat);
            }
        }
    }

    /// Rows of the runs from row `first` on; where they end.
    fn write_runs(&mut self, batch: &Batch, first: usize, mirror: &mut Mirror) -> usize {
        let layout = self.layout;
        let mut next = first;
        self.runs.clear();
        self.tiles.clear();
        for (segment, taken) in batch.segments.iter().zip(&self.taken) {
            if segment.len == 1 {
                continue;
            }
            let (from, rows) = (segment.first_row as usize, segment.len as usize);
            mirror.set_all(layout.token + next, &batch.tokens[from..from + rows]);
            mirror.set_all(layout.position + next, &batch.positions[from..from + rows]);
            for row in 0..rows {
                mirror.set(layout.seat + next + row, taken.seat);
                self.device_row[from + row] = (next + row) as u32;
            }
            self.runs.push(Run {
                first_row: next,
                rows,
                slot: Some(taken.seat as usize),
                context: segment.start as usize,
            });
            next += rows;
        }
        for (index, run) in self.runs.iter().enumerate() {
            let words = run.encode().map(|word| word as u32);
            mirror.set_all(layout.runs + index * RUN_WORDS, &words);
        }
        if !self.runs.is_empty() {
            prefill_tiles(&self.runs, self.group, &mut self.tiles);
        }
        for (index, tile) in self.tiles.iter().enumerate() {
            mirror.set_all(layout.tiles + index * TILE_WORDS, &tile.map(|word| word as u32));
        }
        next
    }

    /// How each segment that wants logits chooses. A row that stands alone has its own number among the logits, too.
    fn write_choices(
        &mut self,
        step: &Step<'_>,
        alone: usize,
        plans: &Plans,
        mirror: &mut Mirror,
    ) -> Option<usize> {
        let batch = step.batch;
        self.hows.begin();
        let mut next = alone;
        for (segment, taken) in batch.segments.iter().zip(&self.taken) {
            let last = (segment.first_row + segment.len - 1) as usize;
            let row = self.device_row[last] as usize;
            let index = if segment.len == 1 { row } else { next };
            if segment.logits {
                next += usize::from(segment.len > 1);
                let tenancy = self.seats.get_mut(taken.seat).tenancy;
                self.hows.write(index, row, segment, (taken.seat, tenancy), step.sampling, mirror);
            } else if segment.len == 1 {
                self.hows.skip(index, mirror);
            }
        }
        if self.hows.chosen().is_empty() {
            return None;
        }
        let size = plans.choices.index(next);
        for index in next..plans.choices.at(size) {
            self.hows.skip(index, mirror);
        }
        Some(size)
    }
}

//! Geometry of the small kernels around a step: embedding, tap, probe.

use super::{LaunchPlan, Shape};

/// Threads and blocks of the head of a step: a word each for what a step of decode rows usually
/// changes.
pub(super) const DIFF_BLOCK: u32 = 256;
pub(super) const DIFF_BLOCKS: u32 = 8;
/// Threads of an embedding block; sixteen share the 128 columns of a partial sum.
pub(super) const EMBED_BLOCK: u32 = 256;
pub(super) const EMBED_PARTS: usize = 16;
/// Columns of a partial sum of squares: what the residual epilogues leave.
pub(super) const PART: usize = 128;
/// Columns of a tap-mean block: small, so that even a narrow model takes several multiprocessors.
pub(super) const TAP_BLOCK: u32 = 64;
/// Threads of a block of the probe; in the second layer each warp has a row.
pub(super) const PROBE_BLOCK: u32 = 128;
pub(super) const PROBE_ROWS: usize = 64;
pub(super) const PROBE_UNITS: usize = 32;
pub(super) const PROBE_DEPTH: usize = 64;
pub(super) const PROBE_STAGES: usize = 4;

/// The head of a step: up to `max` words that differ. What there are stands in memory; a step of
/// decode rows has a word or two a row.
pub fn apply_diffs(max: usize) -> LaunchPlan {
    LaunchPlan {
        kernel: "apply_diffs",
        shape: Shape::new(&[("most", max)]),
        grid: [DIFF_BLOCKS, 1, 1],
        block: DIFF_BLOCK,
        shared_bytes: 0,
        splits: 1,
        overlaps: false,
        cooperative: false,
        bytes: (max * 12) as u64,
        flops: 0,
    }
}

/// Embedding of `rows` rows, `width` wide.
pub fn embed(rows: usize, width: usize) -> LaunchPlan {
    let parts = width.div_ceil(PART);
    LaunchPlan {
        kernel: "embed",
        shape: Shape::new(&[("rows", rows), ("d", width)]),
        grid: [parts.div_ceil(EMBED_PARTS) as u32, rows as u32, 1],
        block: EMBED_BLOCK,
        shared_bytes: 0,
        splits: 1,
        overlaps: true,
        cooperative: false,
        bytes: (rows * width * 8 + width * 2) as u64,
        flops: 0,
    }
}

/// Partial sums of squares of a row `width` wide.
pub fn parts(width: usize) -> usize {
    width.div_ceil(PART)
}

/// The tap's sums over `runs` segments with `rows` rows together.
pub fn tap_mean(runs: usize, rows: usize, width: usize) -> LaunchPlan {
    LaunchPlan {
        kernel: "tap_mean",
        shape: Shape::new(&[("runs", runs), ("rows", rows), ("d", width)]),
        grid: [width.div_ceil(TAP_BLOCK as usize) as u32, runs as u32, 1],
        block: TAP_BLOCK,
        shared_bytes: 0,
        splits: 1,
        overlaps: false,
        cooperative: false,
        bytes: (rows * width * 4) as u64,
        flops: (rows * width) as u64,
    }
}

/// A segment of rows whose tapped activations are added to the sums of the request's KV blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapSegment {
    /// First row in the step.
    pub first_row: usize,
    /// Rows that are added.
    pub rows: usize,
    /// Row of the block table; `None`: padding, which touches nothing.
    pub batch_idx: Option<usize>,
    /// Position of the first row; a block's first position resets its sum.
    pub first_position: usize,
    /// Tokens of the whole prompt.
    pub prompt: usize,
    /// Staging row of the mean, where this segment completes the prompt.
    pub stage_row: Option<usize>,
    /// Rows after these that are kept: draft tokens.
    pub kept: usize,
    /// Place of the first of these.
    pub kept_row: usize,
}

impl TapSegment {
    /// As the kernel reads it.
    pub fn encode(&self) -> [i32; 8] {
        let index = |value: Option<usize>| value.map_or(-1, |value| value as i32);
        [
            self.first_row as i32,
            self.rows as i32,
            index(self.batch_idx),
            self.first_position as i32,
            self.prompt as i32,
            index(self.stage_row),
            self.kept as i32,
            self.kept_row as i32,
        ]
    }
}

/// A prompt's share of the probe's first layer, and its two layers, over `rows` rows: `d` inputs (a
/// multiple of 64), `hidden` units (a multiple of 32), `bins` bins (at most 32).
pub fn probe(rows: usize, d: usize, hidden: usize, bins: usize) -> [LaunchPlan; 3] {
    assert!(
        d.is_multiple_of(PROBE_DEPTH),
        "the probe's kernel wants a multiple of {PROBE_DEPTH} inputs, not {d}"
    );
    assert!(
        hidden.is_multiple_of(PROBE_UNITS),
        "the probe's kernel wants a multiple of {PROBE_UNITS} units, not {hidden}"
    );
    assert!(bins <= 32, "the probe's kernel has at most 32 bins, not {bins}");
    let stage = (PROBE_ROWS + PROBE_UNITS) * PROBE_DEPTH * 2;
    let first = LaunchPlan {
        kernel: "probe_hidden",
        shape: Shape::new(&[("rows", rows), ("d", d), ("hidden", hidden), ("bins", bins)]),
        grid: [(hidden / PROBE_UNITS) as u32, rows.div_ceil(PROBE_ROWS) as u32, 1],
        block: PROBE_BLOCK,
        shared_bytes: (PROBE_STAGES * stage) as u32,
        splits: 1,
        // Its predecessor is in another branch of a recorded step.
        overlaps: false,
        cooperative: false,
        bytes: ((rows + hidden) * d * 2) as u64,
        flops: (rows * hidden * d * 2) as u64,
    };
    let second = LaunchPlan {
        kernel: "probe_bins",
        overlaps: true,
        grid: [rows.div_ceil(PROBE_BLOCK as usize / 32) as u32, 1, 1],
        shared_bytes: 0,
        bytes: (rows * hidden * 4 + bins * hidden * 4) as u64,
        flops: (rows * hidden * bins * 2) as u64,
        ..first
    };
    let prompt = LaunchPlan { kernel: "probe_prompt", ..first };
    [prompt, first, second]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_cover_their_outputs() {
        for width in [8, 128, 256, 2056, 4096] {
            let plan = embed(5, width);
            assert!(plan.grid[0] as usize * EMBED_PARTS >= parts(width));
            assert!(tap_mean(2, 9, width).grid[0] * TAP_BLOCK >= width as u32);
        }
        let [prompt, first, second] = probe(65, 256, 512, 10);
        assert_eq!([prompt, first, second].map(|of| of.grid), [[16, 2, 1], [16, 2, 1], [17, 1, 1]]);
    }
}

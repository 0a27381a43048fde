//! Segments of prompt rows, and their tiles.

/// Queries of a prefill tile.
pub const TILE_QUERIES: usize = 128;

/// Consecutive prompt rows of one request: a prefill chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillSegment {
    /// Its first row in the step.
    pub first_row: usize,
    /// Rows.
    pub rows: usize,
    /// Row of the block table; `None`: padding, which touches nothing.
    pub batch_idx: Option<usize>,
    /// Tokens of the request before the segment.
    pub context: usize,
}

impl PrefillSegment {
    /// As the kernel reads it.
    pub fn encode(&self) -> [i32; 4] {
        let batch_idx = self.batch_idx.map_or(-1, |batch_idx| batch_idx as i32);
        [self.first_row as i32, self.rows as i32, batch_idx, self.context as i32]
    }
}

/// Fills `tiles` with the prefill tiles of `segments`, as the kernel reads them: (segment, first
/// query), those that attend to most tokens first, so that the longest are not the last to begin.
pub fn prefill_tiles(segments: &[PrefillSegment], group: usize, tiles: &mut Vec<[i32; 2]>) {
    tiles.clear();
    for (index, segment) in segments.iter().enumerate() {
        let firsts = (0..segment.rows * group).step_by(TILE_QUERIES);
        tiles.extend(firsts.map(|first| [index as i32, first as i32]));
    }
    let tokens = |tile: &[i32; 2]| segments[tile[0] as usize].context + tile[1] as usize / group;
    tiles.sort_unstable_by_key(|tile| (std::cmp::Reverse(tokens(tile)), *tile));
}

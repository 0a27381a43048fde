//! Splits of the contexts of prompt chunks (split-KV, as in FlashDecoding): a chunk of few queries
//! behind a long context has fewer tiles than the chip has places for blocks, so that several
//! blocks share a tile's tokens (kernels/common/prefill.cuh), and attention_merge.cu adds their
//! parts.

use super::heads::{Heads, shape};
use super::segment::{PrefillSegment, TILE_QUERIES};
use crate::cuda::plan::LaunchPlan;

/// Splits begin and end at multiples of so many tokens.
pub(in crate::cuda::plan) const UNIT: usize = 64;
/// Threads of a block of the merge, each with four places of a query.
pub(in crate::cuda::plan) const MERGE_BLOCK: u32 = 256;
/// Most splits of a tile, and fewest units of one: the longest chain of the merge, and what a block
/// should carry beside its start and the store of its part.
const MAX_SPLITS: usize = 64;
const LEAST_UNITS: usize = 4;
/// Most blocks' worth of parts for each place: bounds the workspace.
const MAX_WAVES: usize = 3;
/// Cost of a wave of blocks, in tokens that it could have multiplied: start and end of a block,
/// some 4 us at the 75 ns a token that a place of an A100 takes with heads 128 wide. Its parts cost
/// the merge as much again. A forecast, not tuned on a device.
const WAVE_TOKENS: usize = 64;

/// How the contexts of a launch's tiles are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillSplit {
    /// Tiles with a context that is cut, the first ones of the list; others are whole.
    pub cut_tiles: usize,
    /// Most splits of a cut tile.
    pub splits: usize,
    /// Most tokens of a split, in units of 64.
    pub units: usize,
}

impl Default for PrefillSplit {
    fn default() -> Self {
        PrefillSplit::WHOLE
    }
}

impl PrefillSplit {
    /// No tile is cut.
    pub const WHOLE: PrefillSplit = PrefillSplit { cut_tiles: 0, splits: 1, units: 1 };

    /// The cut of `tiles` (as [`prefill_tiles`](super::prefill_tiles) lists them) into splits of at most `units`
    /// units each.
    pub fn with_units(
        heads: Heads,
        segments: &[PrefillSegment],
        tiles: &[[i32; 2]],
        units: usize,
    ) -> PrefillSplit {
        let splits = |tile| tile_units(heads, segments, tile).div_ceil(units);
        let max = tiles.iter().map(splits).max().unwrap_or(1);
        if max < 2 {
            return PrefillSplit::WHOLE;
        }
        let last = tiles.iter().rposition(|tile| splits(tile) > 1);
        PrefillSplit { cut_tiles: last.map_or(0, |last| last + 1), splits: max, units }
    }

    /// Splits with the lowest estimated time on a chip with `places` places for blocks; none where
    /// the tiles alone fill them.
    pub fn choose(
        places: usize,
        heads: Heads,
        segments: &[PrefillSegment],
        tiles: &[[i32; 2]],
    ) -> PrefillSplit {
        if tiles.len() * heads.kv_heads >= places {
            return PrefillSplit::WHOLE;
        }
        let units = |tile| tile_units(heads, segments, tile);
        let longest = tiles.iter().map(units).max().unwrap_or(1);
        let cost = |splits: usize| {
            let each = longest.div_ceil(splits);
            let blocks = tiles.iter().map(|tile| units(tile).div_ceil(each)).sum::<usize>();
            let waves = (blocks * heads.kv_heads).div_ceil(places);
            let merge = if splits > 1 { waves * WAVE_TOKENS } else { 0 };
            waves * (each * UNIT + WAVE_TOKENS) + merge
        };
        let made = |splits: usize| {
            PrefillSplit::with_units(heads, segments, tiles, longest.div_ceil(splits))
        };
        let fits = |splits: &usize| {
            *splits == 1 || made(*splits).parts(heads) <= PrefillSplit::max_parts(places)
        };
        let max = (longest / LEAST_UNITS).clamp(1, MAX_SPLITS);
        made((1..=max).filter(fits).min_by_key(|&splits| cost(splits)).unwrap_or(1))
    }

    /// The same for a layer with a window: whole tiles where a split holds what a tile sees of it.
    pub fn within(self, window: Option<usize>) -> PrefillSplit {
        // Rows of a tile see a window each, and its ends need not be multiples of a unit.
        let seen = window.map_or(usize::MAX, |window| window.saturating_add(TILE_QUERIES + UNIT));
        if seen <= self.units * UNIT { PrefillSplit::WHOLE } else { self }
    }

    /// Blocks' worth of work for each key/value head, of `tiles` tiles.
    pub fn pieces(&self, tiles: usize) -> usize {
        tiles + self.cut_tiles * (self.splits - 1)
    }

    /// Parts that cut tiles leave, each of 128 queries.
    pub fn parts(&self, heads: Heads) -> usize {
        self.cut_tiles * self.splits * heads.kv_heads
    }

    /// Most parts of a chosen split.
    pub fn max_parts(places: usize) -> usize {
        MAX_WAVES * places
    }

    /// Floats of workspace for the outputs of `parts` parts, and for their maxima and sums.
    pub fn workspace(parts: usize, heads: Heads) -> [usize; 2] {
        [parts * TILE_QUERIES * heads.head_dim, parts * TILE_QUERIES * 2]
    }

    /// The launch behind attention that adds the parts of cut tiles; `None` where there are none.
    pub fn merge(&self, heads: Heads) -> Option<LaunchPlan> {
        let kernel = match heads.head_dim {
            64 => "attention_merge_hd64",
            128 => "attention_merge_hd128",
            width => panic!("no attention kernel for heads {width} wide"),
        };
        let plan = LaunchPlan {
            kernel,
            shape: shape(self.cut_tiles, heads, self.splits),
            grid: [
                self.cut_tiles as u32,
                heads.kv_heads as u32,
                (TILE_QUERIES * heads.head_dim / 4) as u32 / MERGE_BLOCK,
            ],
            block: MERGE_BLOCK,
            shared_bytes: 0,
            splits: self.splits as u32,
            overlaps: true,
            cooperative: false,
            bytes: (self.parts(heads) * TILE_QUERIES * (heads.head_dim + 2) * 4) as u64,
            flops: 0,
        };
        (self.cut_tiles > 0).then_some(plan)
    }
}

/// Tokens that the queries of `tile` attend to, in units of 64; as the kernels count them.
fn tile_units(heads: Heads, segments: &[PrefillSegment], tile: &[i32; 2]) -> usize {
    let [segment, first] = *tile;
    let segment = &segments[segment as usize];
    let last = (segment.rows * heads.group).min(first as usize + TILE_QUERIES) - 1;
    (segment.context + last / heads.group + 1).div_ceil(UNIT)
}

#[cfg(test)]
mod tests {
    use super::super::segment::prefill_tiles;
    use super::*;

    const LLAMA: Heads = Heads { kv_heads: 8, group: 4, head_dim: 128 };

    fn chosen(places: usize, chunks: &[(usize, usize)]) -> PrefillSplit {
        let (segments, tiles) = tiles(chunks);
        PrefillSplit::choose(places, LLAMA, &segments, &tiles)
    }

    fn tiles(chunks: &[(usize, usize)]) -> (Vec<PrefillSegment>, Vec<[i32; 2]>) {
        let segment =
            |&(rows, context)| PrefillSegment { first_row: 0, rows, batch_idx: Some(0), context };
        let segments: Vec<_> = chunks.iter().map(segment).collect();
        let mut tiles = Vec::new();
        prefill_tiles(&segments, LLAMA.group, &mut tiles);
        (segments, tiles)
    }

    #[test]
    fn short_chunks_of_long_contexts_fill_the_chip() {
        // 32 blocks for 216 places; 128 for 264, which two splits fill.
        let short = chosen(216, &[(128, 8192)]);
        assert_eq!((short.cut_tiles, short.splits), (4, 6));
        assert_eq!(chosen(264, &[(512, 32_768)]).splits, 2);
        // 128 blocks for 216 places: five splits make three waves of a fifth.
        assert_eq!(chosen(216, &[(512, 32_768)]).splits, 5);
        // Too short to cut, and too many tiles to need it.
        assert_eq!(chosen(264, &[(64, 200)]), PrefillSplit::WHOLE);
        assert_eq!(chosen(264, &[(1056, 32_768)]), PrefillSplit::WHOLE);
        assert_eq!(chosen(264, &[(4096, 0)]), PrefillSplit::WHOLE);
    }

    /// Only tiles with a long context are cut, and no more parts are left than there is room for.
    #[test]
    fn tiles_with_short_contexts_stay_whole() {
        let split = chosen(264, &[(32, 30), (32, 16_000), (32, 0)]);
        assert_eq!(split.cut_tiles, 1);
        assert!(split.splits > 20, "{split:?}");
        for chunks in [&[(32, 131_000)][..], &[(500, 9000), (40, 100_000)], &[(8, 4000); 30]] {
            for places in [108, 132, 264] {
                let split = chosen(places, chunks);
                assert!(split.parts(LLAMA) <= PrefillSplit::max_parts(places), "{split:?}");
                assert!(split.splits <= MAX_SPLITS);
            }
        }
    }

    /// The kernels count at most as many for a tile as the planner made room for.
    #[test]
    fn no_tile_has_more_splits_than_planned() {
        let (segments, tiles) = tiles(&[(100, 5000), (40, 100), (3, 700)]);
        for units in 1..90 {
            let split = PrefillSplit::with_units(LLAMA, &segments, &tiles, units);
            for (index, tile) in tiles.iter().enumerate() {
                let splits = tile_units(LLAMA, &segments, tile).div_ceil(units);
                assert!(splits <= if index < split.cut_tiles { split.splits } else { 1 });
            }
        }
    }

    #[test]
    fn windows_that_fit_a_split_leave_tiles_whole() {
        let split = PrefillSplit { cut_tiles: 4, splits: 6, units: 22 };
        assert_eq!(split.within(Some(512)), PrefillSplit::WHOLE);
        assert_eq!(split.within(Some(4096)), split);
        assert_eq!(split.within(None), split);
    }
}

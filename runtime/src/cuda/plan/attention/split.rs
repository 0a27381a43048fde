//! Splits of the contexts of prompt chunks (split-KV, as in FlashDecoding): a chunk of few queries
//! behind a long context has fewer tiles than the chip has places for blocks, so that a block has
//! one partition of a tile's context (order.rs, kernels/common/prefill.cuh), and attention_merge.cu
//! adds them.

use super::heads::{Heads, shape};
use super::segment::{PrefillSegment, TILE_QUERIES};
use crate::cuda::plan::{LaunchPlan, order};

/// Threads of a block of the merge, each with four places of a query.
pub(in crate::cuda::plan) const MERGE_BLOCK: u32 = 256;
/// Most parts for each place for a block, of 64 KiB at heads 128 wide: bounds the workspace (255 MB
/// on an A100). Enough for chunks of 512 rows of Llama-3-8B behind 32,768 tokens there.
const MAX_PARTS: usize = 18;
/// Cost of starting and ending a block, in tokens that it could have multiplied: some 4 us at the
/// 75 ns a token that a place of an A100 takes with heads 128 wide. Its parts cost the merge as
/// much again. A forecast, not tuned on a device.
const BLOCK_TOKENS: usize = 64;

/// Which tiles of a launch are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillSplit {
    /// Tiles whose partitions have a block each, the first ones of the list: all that have several.
    /// 0: a block has all partitions of a tile.
    pub cut_tiles: usize,
    /// Most partitions of a cut tile; 1 where none is cut.
    pub splits: usize,
}

impl Default for PrefillSplit {
    fn default() -> Self {
        PrefillSplit::WHOLE
    }
}

impl PrefillSplit {
    /// No tile is cut.
    pub const WHOLE: PrefillSplit = PrefillSplit { cut_tiles: 0, splits: 1 };

    /// A block for each partition of `tiles` (as [`prefill_tiles`](super::prefill_tiles) lists them).
    pub fn cut(heads: Heads, segments: &[PrefillSegment], tiles: &[[i32; 2]]) -> PrefillSplit {
        let splits = |tile| order::partitions(tile_tokens(heads, segments, tile));
        let last = tiles.iter().rposition(|tile| splits(tile) > 1);
        PrefillSplit {
            cut_tiles: last.map_or(0, |last| last + 1),
            splits: tiles.iter().map(splits).max().unwrap_or(1),
        }
    }

    /// The split with the lowest estimated time on a chip with `places` places for blocks: whole
    /// tiles where these alone fill them.
    pub fn choose(
        places: usize,
        heads: Heads,
        segments: &[PrefillSegment],
        tiles: &[[i32; 2]],
    ) -> PrefillSplit {
        if tiles.len() * heads.kv_heads >= places {
            return PrefillSplit::WHOLE;
        }
        let tokens = |tile| tile_tokens(heads, segments, tile);
        let longest = tiles.iter().map(tokens).max().unwrap_or(0);
        let cut = PrefillSplit::cut(heads, segments, tiles);
        if cut.cut_tiles == 0 || cut.parts(heads) > PrefillSplit::max_parts(places) {
            return PrefillSplit::WHOLE;
        }
        let blocks: usize = tiles.iter().map(|tile| order::partitions(tokens(tile))).sum();
        let all: usize = tiles.iter().map(tokens).sum::<usize>() + 2 * blocks * BLOCK_TOKENS;
        let longest_block = order::longest_partition(longest) + 2 * BLOCK_TOKENS;
        let cost = longest_block.max((all * heads.kv_heads).div_ceil(places));
        if cost < longest + BLOCK_TOKENS { cut } else { PrefillSplit::WHOLE }
    }

    /// The same for a layer with a window: whole tiles where they see about a partition of it.
    pub fn within(self, window: Option<usize>) -> PrefillSplit {
        let seen = window.map_or(usize::MAX, |window| window.saturating_add(TILE_QUERIES));
        if order::partitions(seen) <= 2 { PrefillSplit::WHOLE } else { self }
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
        MAX_PARTS * places
    }

    /// Floats of workspace for the outputs of `parts` parts, and for their references and sums.
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

/// Tokens that the queries of `tile` attend to.
fn tile_tokens(heads: Heads, segments: &[PrefillSegment], tile: &[i32; 2]) -> usize {
    let [segment, first] = *tile;
    let segment = &segments[segment as usize];
    let last = (segment.rows * heads.group).min(first as usize + TILE_QUERIES) - 1;
    segment.context + last / heads.group + 1
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
        // 32 blocks for 216 places; 128 for 264.
        let short = chosen(216, &[(128, 8192)]);
        assert_eq!((short.cut_tiles, short.splits), (4, 17));
        assert_eq!(chosen(264, &[(512, 15_000)]).splits, 20);
        assert_eq!(chosen(264, &[(512, 131_072)]), PrefillSplit::WHOLE, "too many parts");
        // One partition, and too many tiles to need a cut.
        assert_eq!(chosen(264, &[(64, 200)]), PrefillSplit::WHOLE);
        assert_eq!(chosen(264, &[(1056, 32_768)]), PrefillSplit::WHOLE);
        assert_eq!(chosen(264, &[(4096, 0)]), PrefillSplit::WHOLE);
    }

    /// Only tiles of several partitions are cut, and no more parts are left than there is room for.
    #[test]
    fn tiles_of_one_partition_stay_whole() {
        let split = chosen(264, &[(32, 30), (32, 16_000), (32, 0)]);
        assert_eq!((split.cut_tiles, split.splits), (1, 20));
        for chunks in [&[(32, 131_000)][..], &[(500, 9000), (40, 100_000)], &[(8, 4000); 30]] {
            for places in [108, 132, 264] {
                let split = chosen(places, chunks);
                assert!(split.parts(LLAMA) <= PrefillSplit::max_parts(places), "{split:?}");
            }
        }
    }

    /// A launch with cut tiles has no other tile of several partitions: its kernel keeps no total.
    #[test]
    fn all_tiles_of_several_partitions_are_cut() {
        let (segments, tiles) = tiles(&[(100, 5000), (40, 100), (3, 700), (400, 300)]);
        let split = PrefillSplit::cut(LLAMA, &segments, &tiles);
        for (index, tile) in tiles.iter().enumerate() {
            let splits = order::partitions(tile_tokens(LLAMA, &segments, tile));
            assert!(splits <= if index < split.cut_tiles { split.splits } else { 1 });
        }
    }

    #[test]
    fn narrow_windows_leave_tiles_whole() {
        let split = PrefillSplit { cut_tiles: 4, splits: 6 };
        assert_eq!(split.within(Some(512)), PrefillSplit::WHOLE);
        assert_eq!(split.within(Some(4096)), split);
        assert_eq!(split.within(None), split);
    }
}

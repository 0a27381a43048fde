//! Geometry of attention: splits that fill the chip, tiles of prefill rows.

mod heads;
mod segment;
pub mod split;

use super::{Chip, LaunchPlan, resident};
use crate::backend::BLOCK_TOKENS;
pub use heads::Heads;
pub(super) use heads::shape;
pub use segment::{PrefillSegment, TILE_QUERIES, prefill_tiles};
use split::PrefillSplit;
use trail_ptx::Target;

/// Threads of a block of decode attention, and of prefill attention by mma.sync.
pub(super) const BLOCK: u32 = 128;
/// Warps of a decode block.
pub(super) const WARPS: usize = 4;
/// Stages of a decode warp's cp.async ring of KV blocks, by target: as many as leave room for two
/// blocks on a multiprocessor with heads 128 wide.
pub(super) const STAGES: usize = 2;
pub(super) const STAGES_HOPPER: usize = 3;
/// Stages of the ring of a prefill tile.
pub(super) const PREFILL_STAGES: usize = 3;

/// Most pieces that one context is cut into; bounds the workspace and the merge.
pub const MAX_SPLITS: usize = 64;
/// A split of fewer blocks of 16 tokens would leave one of its four warps without any.
pub(super) const SPLIT_BLOCKS: usize = 4;
/// The same where two splits of each context would give some multiprocessor a second block: then
/// one of less than four rounds of the warps costs more than it carries.
const FILLED_SPLIT_BLOCKS: usize = 16;
/// Cost of starting and ending a block of threads, in tokens that it could have streamed: about
/// 1.5 us at half a multiprocessor's share of 4 TB/s, and 512 bytes a token.
pub(super) const BLOCK_COST_TOKENS: usize = 128;
/// Cost of each further split in the merge, in the same tokens.
pub(super) const MERGE_COST_TOKENS: usize = 2;

/// A planned decode attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodePlan {
    /// The launch; `splits` is the grid's width, which a short context does not use up.
    pub launch: LaunchPlan,
    /// The model's heads.
    pub heads: Heads,
    /// Blocks of 16 tokens below which a split is not made.
    pub split_blocks: usize,
    /// Floats of workspace for the splits' outputs.
    pub partial_out: usize,
    /// Floats of workspace for their maxima and sums.
    pub partial_sums: usize,
    /// Counters, zero before the first launch.
    pub tile_counters: usize,
}

/// Returns true if there are kernels for heads of this width.
pub fn supports(head_dim: usize) -> bool {
    matches!(head_dim, 64 | 128)
}

/// Attention of `rows` decode rows. `context` is the usual context of a row, in tokens: it weighs
/// the cost of a split against its use, and the plan holds for rows of any length.
///
/// # Panics
/// If there is no kernel for the width of the heads, or nothing to do.
pub fn decode(chip: &Chip, rows: usize, heads: Heads, context: usize) -> DecodePlan {
    let splits = choose_splits(chip, rows, heads, context);
    decode_with_splits(chip, rows, heads, context, splits)
}

/// The same with a given number of splits, 1 to [`MAX_SPLITS`]; for tests and benchmarks.
pub fn decode_with_splits(
    chip: &Chip,
    rows: usize,
    heads: Heads,
    context: usize,
    splits: usize,
) -> DecodePlan {
    assert!(rows > 0 && heads.group > 0 && heads.kv_heads > 0, "no rows or no heads");
    assert!((1..=MAX_SPLITS).contains(&splits), "{splits} splits");
    let (kernel, tile) = decode_kernel(heads);
    let units = rows * heads.kv_heads * heads.group.div_ceil(tile);
    let launch = LaunchPlan {
        kernel,
        shape: shape(rows, heads, context),
        grid: [splits as u32, (units / rows) as u32, rows as u32],
        block: BLOCK,
        shared_bytes: ring_bytes(chip, heads.head_dim),
        splits: splits as u32,
        overlaps: true,
        cooperative: false,
        bytes: (rows * (context * heads.token_bytes() + heads.row() * 4)) as u64,
        flops: (rows * context * heads.row() * 4) as u64,
    };
    let partials = if splits > 1 { units * splits * tile } else { 0 };
    DecodePlan {
        launch,
        heads,
        split_blocks: least_split_blocks(chip, units),
        partial_out: partials * heads.head_dim,
        partial_sums: partials * 2,
        tile_counters: units,
    }
}

/// Blocks of 16 tokens below which a split is not made, of `units` blocks of threads without any.
/// The kernel cuts each row by this, whatever context the plan was made for.
fn least_split_blocks(chip: &Chip, units: usize) -> usize {
    let is_filled = 2 * units > chip.multiprocessors as usize;
    if is_filled { FILLED_SPLIT_BLOCKS } else { SPLIT_BLOCKS }
}

/// The instance for these heads, and the query heads of its tile.
fn decode_kernel(heads: Heads) -> (&'static str, usize) {
    match (heads.head_dim, heads.group) {
        (64, ..=8) => ("attention_decode_hd64_heads8", 8),
        (64, _) => ("attention_decode_hd64_heads16", 16),
        (128, ..=8) => ("attention_decode_hd128_heads8", 8),
        (128, _) => ("attention_decode_hd128_heads16", 16),
        (width, _) => panic!("no attention kernel for heads {width} wide"),
    }
}

/// Shared memory of a decode block: each warp's ring of keys and values. The merge of the warps
/// takes less, in the same place.
fn ring_bytes(chip: &Chip, head_dim: usize) -> u32 {
    let stages = if chip.target == Some(Target::Sm90a) { STAGES_HOPPER } else { STAGES };
    (WARPS * stages * 2 * BLOCK_TOKENS * head_dim * 2) as u32
}

/// Number of splits with the lowest estimated time: waves of blocks over the chip, times the tokens
/// that each block streams. The use of the multiprocessors decides, never the length of the context
/// alone.
fn choose_splits(chip: &Chip, rows: usize, heads: Heads, context: usize) -> usize {
    let (kernel, tile) = decode_kernel(heads);
    let units = rows * heads.kv_heads * heads.group.div_ceil(tile);
    let each = resident(chip, kernel, BLOCK, ring_bytes(chip, heads.head_dim)).unwrap_or(1);
    let places = (chip.multiprocessors * each) as usize;
    let unfilled =
        (chip.multiprocessors as usize / units).min(context / (SPLIT_BLOCKS * BLOCK_TOKENS));
    let max = unfilled.max(context / (FILLED_SPLIT_BLOCKS * BLOCK_TOKENS)).clamp(1, MAX_SPLITS);
    let cost = |splits: &usize| {
        let waves = (units * splits).div_ceil(places);
        waves * (context.div_ceil(*splits) + BLOCK_COST_TOKENS) + (splits - 1) * MERGE_COST_TOKENS
    };
    (1..=max).min_by_key(cost).unwrap_or(1)
}

/// Attention of `tiles` tiles (as [`prefill_tiles`] counts them, or more: those named -1 do
/// nothing) that hold `rows` rows over `tokens` pairs of a row and a token, cut as `split` says.
pub fn prefill(
    heads: Heads,
    split: &PrefillSplit,
    tiles: usize,
    rows: usize,
    tokens: usize,
) -> LaunchPlan {
    let kernel = match (heads.head_dim, split.cut_tiles > 0) {
        (64, false) => "attention_prefill_hd64",
        (64, true) => "attention_prefill_split_hd64",
        (128, false) => "attention_prefill_hd128",
        (128, true) => "attention_prefill_split_hd128",
        (width, _) => panic!("no attention kernel for heads {width} wide"),
    };
    LaunchPlan {
        kernel,
        shape: shape(rows, heads, tokens / rows.max(1)),
        grid: [split.pieces(tiles) as u32, heads.kv_heads as u32, 1],
        block: BLOCK,
        shared_bytes: prefill_shared_bytes(heads.head_dim),
        splits: split.splits as u32,
        overlaps: true,
        cooperative: false,
        bytes: (rows * heads.row() * 4) as u64,
        flops: (tokens * heads.row() * 4) as u64,
    }
}

/// Shared memory of a block of prefill attention: queries, and the ring of keys and values.
fn prefill_shared_bytes(head_dim: usize) -> u32 {
    let elements = (TILE_QUERIES + PREFILL_STAGES * 2 * prefill_tile_tokens(head_dim)) * head_dim;
    (elements * 2) as u32
}

/// Blocks of prefill attention, the split one, that are resident on `chip` at one time.
pub fn prefill_places(chip: &Chip, head_dim: usize) -> usize {
    let kernel = if head_dim == 64 {
        "attention_prefill_split_hd64"
    } else {
        "attention_prefill_split_hd128"
    };
    let each = resident(chip, kernel, BLOCK, prefill_shared_bytes(head_dim)).unwrap_or(1);
    (chip.multiprocessors * each) as usize
}

/// Tokens of a prefill tile: as many as leave the scores in registers beside the output.
pub(super) fn prefill_tile_tokens(head_dim: usize) -> usize {
    if head_dim > 64 { 32 } else { 64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: Heads = Heads { kv_heads: 8, group: 4, head_dim: 128 };

    #[test]
    fn splits_fill_the_chip_and_no_more() {
        // 256 blocks for 264 places: one wave, and cutting only adds merges.
        assert_eq!(decode(&Chip::H200, 32, LLAMA, 4096).launch.splits, 1);
        assert_eq!(decode(&Chip::H200, 256, LLAMA, 1024).launch.splits, 1);
        // Eight blocks would leave the chip empty.
        let single = decode(&Chip::H200, 1, LLAMA, 32_768).launch.splits;
        assert!((30..=33).contains(&single), "{single}");
        // The same context, and the same request, beside other requests.
        assert!(decode(&Chip::H200, 33, LLAMA, 32_768).launch.splits < single);
        // Of 216 places on an A100, 256 blocks would fill a fifth of a second wave.
        assert!(decode(&Chip::A100, 32, LLAMA, 4096).launch.splits > 1);
        // Too short to cut, however empty the chip.
        assert_eq!(decode(&Chip::H200, 1, LLAMA, 100).launch.splits, 1);
        // A round of each warp, while there are multiprocessors without a block.
        assert_eq!(decode(&Chip::H200, 1, LLAMA, 1024).launch.splits, 16);
        assert_eq!(decode(&Chip::A100, 1, LLAMA, 1024).launch.splits, 13);
        assert_eq!(decode(&Chip::H200, 4, LLAMA, 1024).launch.splits, 4);
    }

    /// The engine plans for the longest context that a request may have.
    #[test]
    fn short_contexts_of_many_rows_are_not_cut_small() {
        for (chip, rows, split_blocks) in
            [(Chip::H200, 8, 4), (Chip::H200, 9, 16), (Chip::H200, 64, 16), (Chip::A100, 7, 16)]
        {
            let plan = decode(&chip, rows, LLAMA, 131_072);
            assert_eq!(plan.split_blocks, split_blocks, "{rows} rows");
        }
    }

    #[test]
    fn blocks_fit_the_multiprocessor() {
        for chip in [Chip::A100, Chip::H200] {
            for head_dim in [64, 128] {
                let plan = decode(&chip, 1, Heads { head_dim, ..LLAMA }, 4096).launch;
                assert!(plan.shared_bytes <= chip.shared_per_block);
                let heads = Heads { head_dim, ..LLAMA };
                let prefill = prefill(heads, &PrefillSplit::WHOLE, 1, 32, 32);
                // Two blocks of prefill share a multiprocessor: the kernel's header says so.
                assert!(2 * (prefill.shared_bytes + 1024) <= chip.shared_per_multiprocessor);
                assert_eq!(resident(&chip, prefill.kernel, BLOCK, prefill.shared_bytes), Some(2));
                assert_eq!(prefill_places(&chip, head_dim), 2 * chip.multiprocessors as usize);
            }
        }
    }

    #[test]
    fn tiles_cover_each_query_once_longest_first() {
        let segment = |first_row, rows, context| PrefillSegment {
            first_row,
            rows,
            batch_idx: Some(0),
            context,
        };
        let segments = [segment(0, 40, 0), segment(40, 1, 4000), segment(41, 100, 100)];
        let mut tiles = Vec::new();
        prefill_tiles(&segments, 7, &mut tiles);
        assert_eq!(tiles[0], [1, 0]);
        let tokens: Vec<_> =
            tiles.iter().map(|t| segments[t[0] as usize].context + t[1] as usize / 7).collect();
        assert!(tokens.windows(2).all(|pair| pair[0] >= pair[1]));
        for (index, segment) in segments.iter().enumerate() {
            let mut firsts: Vec<_> =
                tiles.iter().filter(|t| t[0] == index as i32).map(|t| t[1] as usize).collect();
            firsts.sort_unstable();
            let expected: Vec<_> = (0..segment.rows * 7).step_by(TILE_QUERIES).collect();
            assert_eq!(firsts, expected);
        }
    }

    #[test]
    fn a_plan_prints() {
        let text = decode(&Chip::H200, 32, LLAMA, 4096).launch.to_string();
        assert!(
            text.starts_with("attention_decode_hd128_heads8(rows=32 kv_heads=8 group=4"),
            "{text}"
        );
    }
}

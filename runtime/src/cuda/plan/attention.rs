//! Geometry of attention: splits that fill the chip, tiles of prefill rows.

mod heads;
mod segment;
pub mod split;

use super::{Chip, LaunchPlan, order, resident};
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

/// Most splits of a plan: a block for each partition of a context of a million tokens.
pub const MAX_SPLITS: usize = 160;
/// Floats with which a head's 16 exponentials are padded against bank conflicts.
const EXPONENTIALS_PADDING: usize = 4;
/// Cost of starting and ending a block of threads, in tokens that it could have streamed: about
/// 1.5 us at half a multiprocessor's share of 4 TB/s, and 512 bytes a token.
pub(super) const BLOCK_COST_TOKENS: usize = 128;
/// Cost of each further split in the merge, in the same tokens.
pub(super) const MERGE_COST_TOKENS: usize = 2;

/// A planned decode attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodePlan {
    /// The launch; `splits` is the grid's width, which a short context does not use up: a block for
    /// each partition of a context (order.rs), or one for all.
    pub launch: LaunchPlan,
    /// The model's heads.
    pub heads: Heads,
    /// Floats of workspace for the splits' outputs.
    pub partial_out: usize,
    /// Floats of workspace for their references and sums.
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
        shared_bytes: decode_shared_bytes(chip, heads.head_dim, tile),
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
        partial_out: partials * heads.head_dim,
        partial_sums: partials * 2,
        tile_counters: units,
    }
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

/// Shared memory of a decode block: each warp's ring of keys and values, and for two tiles of 64
/// tokens the exponentials of `tile` heads, 16 of each block padded to 20, and what they are
/// relative to. What the block stores in the end takes less, in the same place.
fn decode_shared_bytes(chip: &Chip, head_dim: usize, tile: usize) -> u32 {
    let stages = if chip.target == Some(Target::Sm90a) { STAGES_HOPPER } else { STAGES };
    let rings = WARPS * stages * 2 * BLOCK_TOKENS * head_dim * 2;
    let exponentials = 2 * WARPS * tile * (BLOCK_TOKENS + EXPONENTIALS_PADDING + 1) * 4;
    (rings + exponentials) as u32
}

/// A block for each partition of a context or one for all, whichever has the lower estimated time:
/// tokens that the longest block streams, or that a place for blocks does.
fn choose_splits(chip: &Chip, rows: usize, heads: Heads, context: usize) -> usize {
    let (kernel, tile) = decode_kernel(heads);
    let units = rows * heads.kv_heads * heads.group.div_ceil(tile);
    let shared_bytes = decode_shared_bytes(chip, heads.head_dim, tile);
    let each = resident(chip, kernel, BLOCK, shared_bytes).unwrap_or(1);
    let places = (chip.multiprocessors * each) as usize;
    let partitions = order::partitions(context);
    let cost = |splits: usize, longest: usize| {
        let all = units * (context + splits * BLOCK_COST_TOKENS);
        (longest + BLOCK_COST_TOKENS).max(all.div_ceil(places)) + (splits - 1) * MERGE_COST_TOKENS
    };
    // Blocks of one length end in waves.
    let whole = units.div_ceil(places) * (context + BLOCK_COST_TOKENS);
    let cut = cost(partitions, order::longest_partition(context));
    if cut < whole && partitions <= MAX_SPLITS { partitions } else { 1 }
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
    fn a_partition_has_a_block_where_that_fills_the_chip() {
        let splits = |chip: &Chip, rows, context| decode(chip, rows, LLAMA, context).launch.splits;
        // 256 blocks for 264 places: one wave, and cutting only adds merges.
        assert_eq!((splits(&Chip::H200, 32, 4096), splits(&Chip::H200, 256, 1024)), (1, 1));
        // Eight blocks would leave the chip empty.
        assert_eq!(splits(&Chip::H200, 1, 32_768), 28);
        assert_eq!(splits(&Chip::H200, 1, 131_072), 40);
        // Of 216 places on an A100, 256 blocks would fill a fifth of a second wave.
        assert_eq!(splits(&Chip::A100, 32, 4096), 8);
        // One partition.
        assert_eq!(splits(&Chip::H200, 1, 500), 1);
        assert_eq!([1, 4].map(|rows| splits(&Chip::H200, rows, 1024)), [2, 2]);
        // More partitions than a plan may have splits.
        assert_eq!(splits(&Chip::H200, 1, 2_000_000), 1);
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

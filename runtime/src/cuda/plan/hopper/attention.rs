//! Geometry of Hopper's prefill attention (kernels/hopper/attention_wgmma.cu): persistent blocks,
//! each with its share of the tiles and heads.

use crate::backend::BLOCK_TOKENS;
use crate::cuda::plan::attention::split::PrefillSplit;
use crate::cuda::plan::attention::{Heads, shape};
use crate::cuda::plan::{Chip, LaunchPlan};
use trail_ptx::Target;

/// Tokens of a tile, and stages of the ring.
pub(in crate::cuda::plan) const TOKENS: usize = 64;
pub(in crate::cuda::plan) const STAGES: usize = 4;
pub(in crate::cuda::plan) const THREADS: u32 = 384;
/// Elements of a row of the box that the copy engine fetches.
pub const COLUMNS: usize = 64;
/// Its rows: a block of one head.
pub const BOX_ROWS: usize = BLOCK_TOKENS;

/// The plan of [`crate::cuda::plan::attention::prefill`] on a Hopper chip; `None` on another one,
/// and for heads of a width that has no instance.
pub fn prefill(
    chip: &Chip,
    heads: Heads,
    split: &PrefillSplit,
    tiles: usize,
    rows: usize,
    tokens: usize,
) -> Option<LaunchPlan> {
    let kernel = match (heads.head_dim, split.cut_tiles > 0) {
        (64, false) => "attention_wgmma_hd64",
        (64, true) => "attention_wgmma_split_hd64",
        (128, false) => "attention_wgmma_hd128",
        (128, true) => "attention_wgmma_split_hd128",
        _ => return None,
    };
    let pieces = split.pieces(tiles) * heads.kv_heads;
    let blocks = pieces.clamp(1, chip.multiprocessors as usize);
    let ring = STAGES * 2 * TOKENS * heads.head_dim * 2;
    let plan = LaunchPlan {
        kernel,
        shape: shape(rows, heads, tokens / rows.max(1)),
        grid: [blocks as u32, 1, 1],
        block: THREADS,
        // Two barriers a stage.
        shared_bytes: (ring + STAGES * 16) as u32,
        splits: split.splits as u32,
        overlaps: true,
        cooperative: false,
        bytes: (rows * heads.row() * 4) as u64,
        flops: (tokens * heads.row() * 4) as u64,
    };
    (chip.target == Some(Target::Sm90a)).then_some(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: Heads = Heads { kv_heads: 8, group: 4, head_dim: 128 };

    fn plan(chip: &Chip, heads: Heads, tiles: usize) -> Option<LaunchPlan> {
        prefill(chip, heads, &PrefillSplit::WHOLE, tiles, 64, 64)
    }

    #[test]
    fn blocks_are_no_more_than_the_work_or_the_chip() {
        let grid = |tiles| plan(&Chip::H200, LLAMA, tiles).unwrap().grid;
        assert_eq!([1, 16, 17, 128].map(grid), [[8, 1, 1], [128, 1, 1], [132, 1, 1], [132, 1, 1]]);
    }

    /// Where there is no kernel of Hopper's, the portable one is planned.
    #[test]
    fn other_chips_and_widths_have_no_plan() {
        assert!(plan(&Chip::A100, LLAMA, 1).is_none());
        let portable = Chip { target: None, ..Chip::H200 };
        assert!(plan(&portable, LLAMA, 1).is_none());
        assert!(plan(&Chip::H200, Heads { head_dim: 256, ..LLAMA }, 1).is_none());
        for head_dim in [64, 128] {
            let plan = plan(&Chip::H200, Heads { head_dim, ..LLAMA }, 1).unwrap();
            assert_eq!(plan.resident(&Chip::H200), 1, "{plan}");
        }
    }
}

//! Geometry of Hopper's product of many rows (kernels/group_*): whole tiles of 128 x 256, every
//! block every gridDim-th one.

use super::{Epilogue, GemmPlan, Product, ROW_BYTES, epilogue_bytes};
use crate::cuda::plan::shuffle::{FEATURES, WIDTH};
use crate::cuda::plan::{Chip, LaunchPlan, Shape};

/// Tokens of a tile, and rows of the box that the copy engine fetches.
pub const TOKENS: usize = 256;
/// Depth of a stage, and columns of that box.
pub const DEPTH: usize = 64;
pub(in crate::cuda::plan) const STAGES: usize = 4;
/// Tokens whose sums are ended at a time.
pub(in crate::cuda::plan) const PASS: usize = 64;
pub(in crate::cuda::plan) const THREADS: u32 = 384;

/// The plan of `product` on a Hopper chip; `None` for logits, whose rows are listed and not
/// neighbours.
pub fn gemm(chip: &Chip, product: Product) -> Option<GemmPlan> {
    let Product { epilogue, rows, features, width } = product;
    let kernel = match epilogue {
        Epilogue::Qkv => "wgmma_qkv",
        Epilogue::Residual => "wgmma_residual",
        Epilogue::Swiglu => "wgmma_swiglu",
        Epilogue::Logits => return None,
    };
    let (n, k) = (features.next_multiple_of(FEATURES), width.next_multiple_of(WIDTH));
    let token_tiles = rows.div_ceil(TOKENS);
    let tiles = n / FEATURES * token_tiles;
    let multiprocessors = chip.multiprocessors as usize;
    // Stages, sums of one pass, row scales, two barriers a stage.
    let shared =
        STAGES * (FEATURES + TOKENS) * DEPTH * 2 + PASS * ROW_BYTES + TOKENS * 4 + STAGES * 16;
    let launch = LaunchPlan {
        kernel,
        shape: Shape::new(&[("rows", rows), ("features", features), ("width", width)]),
        grid: [tiles.min(multiprocessors) as u32, 1, 1],
        block: THREADS,
        shared_bytes: shared as u32,
        splits: 1,
        overlaps: true,
        cooperative: false,
        bytes: (n * k * 2 + rows * width * 2 + rows * epilogue_bytes(epilogue, features)) as u64,
        flops: 2 * (rows * features * width) as u64,
    };
    let tile_swizzle = (multiprocessors * FEATURES / TOKENS).isqrt().clamp(1, token_tiles);
    let plan = GemmPlan {
        launch,
        product,
        features: n,
        width: k,
        tile_swizzle,
        partial_floats: 0,
        tile_counters: 0,
    };
    Some(plan)
}

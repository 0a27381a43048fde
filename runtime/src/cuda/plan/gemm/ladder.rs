//! Geometry of the rungs that teach (kernels/ladder/gemm_*), which all end in logits.

use super::{Epilogue, GemmPlan, Product};
use crate::cuda::plan::shuffle::{FEATURES, WIDTH};
use crate::cuda::plan::{LaunchPlan, Shape};

/// A rung, from naive upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// One thread an output.
    Naive,
    /// Tensor cores, straight from global memory.
    Mma,
    /// Loads in flight ahead of the products.
    Ring,
}

/// The plan of `rows` logits rows at rung `rung`.
pub fn gemm(rung: Rung, rows: usize, features: usize, width: usize) -> GemmPlan {
    let (n, k) = (features.next_multiple_of(FEATURES), width.next_multiple_of(WIDTH));
    let (kernel, block, block_features, block_rows) = match rung {
        Rung::Naive => ("gemm_naive", 128, 128, 1),
        Rung::Mma => ("gemm_mma", 128, 64, 8),
        Rung::Ring => ("gemm_ring", 256, 128, 8),
    };
    let row_blocks = rows.div_ceil(block_rows);
    let launch = LaunchPlan {
        kernel,
        shape: Shape::new(&[("rows", rows), ("features", features), ("width", width)]),
        grid: [(n / block_features) as u32, row_blocks as u32, 1],
        block,
        shared_bytes: 0,
        splits: 1,
        overlaps: false,
        cooperative: false,
        bytes: (row_blocks * n * k * 2 + rows * (width * 2 + features * 4)) as u64,
        flops: 2 * (rows * features * width) as u64,
    };
    let product = Product { epilogue: Epilogue::Logits, rows, features, width };
    GemmPlan {
        launch,
        product,
        features: n,
        width: k,
        tile_swizzle: 1,
        partial_floats: 0,
        tile_counters: 0,
    }
}

//! Geometry of the rungs that teach (kernels/ladder): products, which all end in logits, and
//! attention of decode rows.

use crate::cuda::plan::attention::{Heads, decode_with_splits};
use crate::cuda::plan::gemm::{Epilogue, GemmPlan, Product};
use crate::cuda::plan::order::Order;
use crate::cuda::plan::shuffle::{FEATURES, WIDTH};
use crate::cuda::plan::{Chip, LaunchPlan, Shape};

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
        order: Order { width: k, pieces: 1 },
        tile_swizzle: 1,
        partial_floats: 0,
        tile_counters: 0,
    }
}

/// Rung `number` (1 or 2) of attention, which computes what
/// [`crate::cuda::plan::attention::decode`] does.
pub fn attention(number: usize, rows: usize, heads: Heads, context: usize) -> LaunchPlan {
    let (kernel, grid, block, shared_bytes) = match (number, heads.head_dim) {
        (1, 64) => ("attention_rung1_hd64", heads.kv_heads * heads.group, 32, 0),
        (1, 128) => ("attention_rung1_hd128", heads.kv_heads * heads.group, 32, 0),
        (2, 64) => ("attention_rung2_hd64", heads.kv_heads, 32 * heads.group, 4 * 16 * 64),
        (2, 128) => ("attention_rung2_hd128", heads.kv_heads, 32 * heads.group, 4 * 16 * 128),
        (number, width) => panic!("no rung {number} for heads {width} wide"),
    };
    LaunchPlan {
        kernel,
        grid: [grid as u32, rows as u32, 1],
        block: block as u32,
        shared_bytes: shared_bytes as u32,
        splits: 1,
        overlaps: false,
        cooperative: false,
        ..decode_with_splits(&Chip::A100, rows, heads, context, 1).launch
    }
}

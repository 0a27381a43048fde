//! Geometry of the weight shuffle.

use super::{LaunchPlan, Shape};
use crate::model::Dtype;

/// Output features are padded to this.
pub const FEATURES: usize = 128;
/// The width of the weights is padded to this: two units of the skinny kernel, whose loads
/// alternate between two buffers.
pub const WIDTH: usize = 256;

/// Threads per block; each moves one lane's 16 bytes at a time.
const BLOCK: u32 = 256;
/// Most blocks; beyond that each thread moves several pieces.
const MAX_BLOCKS: u64 = 1 << 20;

/// A shuffle of `rows` source rows, `width` wide, in `dtype`.
pub fn shuffle(dtype: Dtype, rows: usize, width: usize) -> LaunchPlan {
    let (kernel, source_bytes) = match dtype {
        Dtype::Bf16 => ("shuffle_bf16", 2),
        Dtype::F16 => ("shuffle_f16", 2),
        Dtype::F32 => ("shuffle_f32", 4),
        quantized => unreachable!("{quantized} is staged as bf16"),
    };
    let elements = rows.next_multiple_of(FEATURES) * width.next_multiple_of(WIDTH);
    let lanes = elements as u64 / 8;
    LaunchPlan {
        kernel,
        shape: Shape::new(&[("rows", rows), ("width", width)]),
        grid: [lanes.div_ceil(u64::from(BLOCK)).clamp(1, MAX_BLOCKS) as u32, 1, 1],
        block: BLOCK,
        shared_bytes: 0,
        splits: 1,
        overlaps: false,
        cooperative: false,
        bytes: (rows * width * source_bytes + elements * 2) as u64,
        flops: 0,
    }
}

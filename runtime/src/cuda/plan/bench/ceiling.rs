//! Geometry of the ceilings.

use crate::cuda::plan::{Chip, LaunchPlan, Shape};

/// Threads per block of both kernels, as they were compiled.
const BLOCK: u32 = 256;
/// Blocks a multiprocessor: full occupancy for the read.
const READ_BLOCKS: u32 = 8;
/// Two blocks give each of a multiprocessor's four schedulers four warps of independent products.
const MMA_BLOCKS: u32 = 2;
/// Independent products of a warp's round, as compiled.
const CHAINS: u64 = 8;
/// Operations of one m16n8k16.
const MMA_FLOPS: u64 = 2 * 16 * 8 * 16;

/// A read of `quads` pieces of 16 bytes; one sum a block.
pub fn read(chip: &Chip, quads: usize) -> LaunchPlan {
    LaunchPlan {
        kernel: "ceiling_read",
        shape: Shape::new(&[("quads", quads)]),
        grid: [chip.multiprocessors * READ_BLOCKS, 1, 1],
        block: BLOCK,
        shared_bytes: 0,
        splits: 1,
        overlaps: false,
        cooperative: false,
        bytes: quads as u64 * 16,
        flops: 0,
    }
}

/// `rounds` products in each chain of every warp; one sum a thread, each 4 * 8 * `rounds`.
pub fn mma(chip: &Chip, rounds: usize) -> LaunchPlan {
    let blocks = chip.multiprocessors * MMA_BLOCKS;
    LaunchPlan {
        kernel: "ceiling_mma",
        shape: Shape::new(&[("rounds", rounds)]),
        grid: [blocks, 1, 1],
        block: BLOCK,
        shared_bytes: 0,
        splits: 1,
        overlaps: false,
        cooperative: false,
        bytes: 0,
        flops: u64::from(blocks * BLOCK / 32) * rounds as u64 * CHAINS * MMA_FLOPS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_is_counted() {
        let read = read(&Chip::H200, 1000);
        assert_eq!((read.bytes, read.grid), (16_000, [132 * 8, 1, 1]));
        let mma = mma(&Chip::A100, 10);
        assert_eq!(mma.flops, 108 * 2 * 8 * 10 * 8 * 4096);
    }
}

//! Geometry of the sampler: two passes over whole rows by all multiprocessors, then a block of
//! threads per row.

use super::{LaunchPlan, Shape};

/// Tokens of a partial sum: the CPU sampler's.
pub const SUM_TOKENS: usize = 256;
/// Threads of a pass over rows, sixteen to each 256 tokens.
pub(super) const PASS_BLOCK: u32 = 256;
pub(super) const PASS_SUMS: usize = 16;
/// Threads of the choosing block.
pub(super) const CHOOSE_BLOCK: u32 = 512;
/// Arrays by 256 tokens that it keeps in shared memory, f32 each.
pub(super) const CHOOSE_ARRAYS: usize = 4;
/// Threads of a block that writes a request's marks.
pub(super) const TOKEN_COUNTS_BLOCK: u32 = 1024;

/// The three kernels of one sampling, in order, and their workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplingPlan {
    /// `sample_scan`, `sample_weigh`, `sample_choose`.
    pub launches: [LaunchPlan; 3],
    /// Rows.
    pub rows: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Partial sums of a row.
    pub blocks: usize,
    /// Floats of workspace for unnormalised probabilities.
    pub weights: usize,
    /// Words of each of the five workspaces by partial sum.
    pub sums: usize,
}

/// Sampling of `rows` rows over `vocab` tokens.
pub fn sampling(rows: usize, vocab: usize) -> SamplingPlan {
    let blocks = vocab.div_ceil(SUM_TOKENS);
    let row_bytes = (rows * vocab * 4) as u64;
    let launch = |kernel, grid, block, shared_bytes, bytes| LaunchPlan {
        kernel,
        shape: Shape::new(&[("rows", rows), ("vocab", vocab)]),
        grid,
        block,
        shared_bytes,
        splits: 1,
        overlaps: true,
        cooperative: false,
        bytes,
        flops: 0,
    };
    let pass = [blocks.div_ceil(PASS_SUMS) as u32, rows as u32, 1];
    let shared = (blocks * CHOOSE_ARRAYS * 4) as u32;
    SamplingPlan {
        launches: [
            launch("sample_scan", pass, PASS_BLOCK, 0, row_bytes),
            launch("sample_weigh", pass, PASS_BLOCK, 0, 2 * row_bytes),
            launch(
                "sample_choose",
                [rows as u32, 1, 1],
                CHOOSE_BLOCK,
                shared,
                (rows * blocks * 20) as u64,
            ),
        ],
        rows,
        vocab,
        blocks,
        weights: rows * blocks * SUM_TOKENS,
        sums: rows * blocks,
    }
}

/// Writing the marks of `jobs` requests with `tokens` tokens together.
pub fn token_counts(jobs: usize, tokens: usize, vocab: usize) -> LaunchPlan {
    LaunchPlan {
        kernel: "token_counts",
        shape: Shape::new(&[("jobs", jobs), ("tokens", tokens), ("vocab", vocab)]),
        grid: [jobs as u32, 1, 1],
        block: TOKEN_COUNTS_BLOCK,
        shared_bytes: 0,
        splits: 1,
        overlaps: false,
        cooperative: false,
        bytes: (jobs * vocab * 4 + tokens * 4) as u64,
        flops: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_cover_every_token() {
        for vocab in [1, 255, 256, 257, 4096, 128_256, 151_936] {
            let plan = sampling(3, vocab);
            assert!(plan.blocks * SUM_TOKENS >= vocab && (plan.blocks - 1) * SUM_TOKENS < vocab);
            assert!(plan.launches[0].grid[0] as usize * PASS_SUMS >= plan.blocks);
            assert_eq!(plan.launches[2].shared_bytes as usize, plan.blocks * 16);
        }
    }
}

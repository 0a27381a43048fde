//! Geometry of the sampler: two passes over whole rows by all multiprocessors, then a team of
//! blocks per row, which share the passes that top-k and top-p need.

use super::{Chip, LaunchPlan, Shape};

/// Tokens of a partial sum: the CPU sampler's.
pub const SUM_TOKENS: usize = 256;
/// Threads of a pass over rows, sixteen to each 256 tokens.
pub(super) const PASS_BLOCK: u32 = 256;
pub(super) const PASS_SUMS: usize = 16;
/// Threads of the choosing block.
pub(super) const CHOOSE_BLOCK: u32 = 512;
/// Arrays by 256 tokens that it keeps in shared memory, f32 each.
pub(super) const CHOOSE_ARRAYS: usize = 4;
/// Tokens among which the end of a nucleus is looked for in shared memory.
pub(super) const FEW: usize = 2048;
/// Most blocks of a row's team, and 256 tokens that one should have: half of its 32 half-warps'
/// first round. Larger teams would wait for one another longer than they read.
const MAX_TEAM: usize = 32;
const TEAM_SUMS: usize = 16;
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
    /// Floats of workspace for what a team exchanges.
    pub team_sums: usize,
    /// Places for the tokens among which nuclei end.
    pub band: usize,
}

/// Blocks of each row's team, that all of `rows` rows are at work at one time.
pub fn team(chip: &Chip, rows: usize, vocab: usize) -> usize {
    let max = vocab.div_ceil(SUM_TOKENS * TEAM_SUMS).min(MAX_TEAM);
    (chip.multiprocessors as usize / rows).clamp(1, max)
}

/// Sampling of `rows` rows over `vocab` tokens; a team of `team` blocks truncates each row.
/// The team's size changes no bits.
pub fn sampling(rows: usize, vocab: usize, team: usize) -> SamplingPlan {
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
    let shared = (blocks * CHOOSE_ARRAYS * 4 + FEW * 8) as u32;
    let grid = [team as u32, rows as u32, 1];
    let choose = launch("sample_choose", grid, CHOOSE_BLOCK, shared, (rows * blocks * 20) as u64);
    SamplingPlan {
        launches: [
            launch("sample_scan", pass, PASS_BLOCK, 0, row_bytes),
            launch("sample_weigh", pass, PASS_BLOCK, 0, 2 * row_bytes),
            // Blocks of a team wait for one another.
            LaunchPlan { cooperative: team > 1, overlaps: team == 1, ..choose },
        ],
        rows,
        vocab,
        blocks,
        weights: rows * blocks * SUM_TOKENS,
        sums: rows * blocks,
        team_sums: rows * blocks * 4,
        band: rows * FEW,
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
    fn teams_are_resident_at_one_time() {
        assert_eq!([1, 4, 64, 200].map(|rows| team(&Chip::H200, rows, 128_256)), [32, 32, 2, 1]);
        assert_eq!([1, 64].map(|rows| team(&Chip::A100, rows, 128_256)), [32, 1]);
        assert_eq!([300, 8192].map(|vocab| team(&Chip::A100, 1, vocab)), [1, 2]);
        let launches = [1, 2].map(|team| sampling(3, 9000, team).launches[2]);
        assert_eq!(launches.map(|plan| plan.cooperative), [false, true]);
    }

    #[test]
    fn passes_cover_every_token() {
        for vocab in [1, 255, 256, 257, 4096, 128_256, 151_936] {
            let plan = sampling(3, vocab, 1);
            assert!(plan.blocks * SUM_TOKENS >= vocab && (plan.blocks - 1) * SUM_TOKENS < vocab);
            assert!(plan.launches[0].grid[0] as usize * PASS_SUMS >= plan.blocks);
            // The static scratch beside it keeps the block below the 48 KiB that need no asking.
            let shared = plan.launches[2].shared_bytes as usize;
            assert!(plan.blocks * 16 < shared && shared + 18_000 < 48 << 10, "{shared}");
        }
    }
}

//! A cluster: its blocks, run in turn on one host thread, and their shared memory. A block of a
//! kernel without clusters is a cluster of one.

use super::block::{Block, Progress};
use super::grid::Grid;
use super::shared::{Needs, Shared};
use crate::report::Finding;

/// A cluster on a host thread; reused for the next one.
pub(crate) struct Cluster {
    blocks: Vec<Block>,
    shared: Shared,
    /// Blocks in use, and those that have ended, a bit each.
    ranks: usize,
    done: u32,
    /// Warp instructions of a block's turn.
    turns: [u32; RANKS],
    finding: Option<Finding>,
}

/// Most blocks of a cluster on any chip.
pub(crate) const RANKS: usize = 8;

/// Warp instructions of a turn where all blocks of a cluster are equal; where one is ahead, so far
/// as the others let it; and of those others.
const EQUAL: u32 = 500;
const AHEAD: u32 = 50_000;
const BEHIND: u32 = 100;

impl Cluster {
    pub(crate) fn new() -> Cluster {
        let (blocks, shared) = (Vec::new(), Shared::new());
        Cluster { blocks, shared, ranks: 0, done: 0, turns: [EQUAL; RANKS], finding: None }
    }

    /// Sets up cluster number `flat` of the grid.
    pub(crate) fn start(&mut self, grid: &Grid, flat: u64) {
        let kernel = &grid.kernel;
        self.ranks = grid.ranks();
        self.done = 0;
        // By seed one block is ahead of the others, or none.
        let random = (grid.seed ^ flat).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        self.turns = [EQUAL; RANKS];
        if random & 3 != 0 {
            self.turns = [BEHIND; RANKS];
            self.turns[(random >> 2) as usize % self.ranks] = AHEAD;
        }
        self.finding = None;
        self.shared.reset(Needs {
            ranks: self.ranks,
            warps: grid.warps(),
            bytes: (kernel.static_shared + u64::from(grid.dynamic_shared)) as usize,
            grain: kernel.grain,
            has_mbarriers: kernel.has_mbarriers,
        });
        while self.blocks.len() < self.ranks {
            self.blocks.push(Block::new());
        }
        for (rank, block) in self.blocks[..self.ranks].iter_mut().enumerate() {
            let index = grid.block_index(flat, rank as u32);
            block.start(grid, index);
        }
    }

    /// Runs its blocks for about `budget` warp instructions.
    pub(crate) fn run(&mut self, grid: &Grid, budget: u32) -> Progress {
        let all = self.turns[..self.ranks].iter().sum();
        for _ in 0..if self.ranks > 1 { budget.div_ceil(all) } else { 1 } {
            for rank in 0..self.ranks {
                if self.done >> rank & 1 == 1 {
                    continue;
                }
                self.shared.enter(rank);
                let block = &mut self.blocks[rank];
                let turn = if self.ranks > 1 { self.turns[rank] } else { budget };
                match block.run(grid, &mut self.shared, turn) {
                    Progress::More => continue,
                    Progress::Done => self.done |= 1 << rank,
                    Progress::Fault => {
                        self.finding = block.take_finding();
                        return Progress::Fault;
                    }
                }
                if self.done.count_ones() as usize == self.ranks {
                    return Progress::Done;
                }
            }
        }
        Progress::More
    }

    pub(crate) fn take_executed(&mut self) -> u64 {
        self.blocks[..self.ranks].iter_mut().map(Block::take_executed).sum()
    }

    pub(crate) fn take_finding(&mut self) -> Option<Finding> {
        self.finding.take()
    }

    /// The finding for a cluster that makes no progress.
    pub(crate) fn hang(&self, grid: &Grid) -> Option<Finding> {
        let left = |rank: &usize| self.done >> rank & 1 == 0;
        (0..self.ranks).find(left).map(|rank| self.blocks[rank].hang(grid))
    }
}

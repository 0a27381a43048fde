//! A launch: what all its blocks share, and the host threads that run them.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::block::Progress;
use super::cluster::Cluster;
use super::lanes::LANES;
use super::order::Words;
use crate::memory::Table;
use crate::ptx::program::Kernel;
use crate::report::Finding;

/// A launch.
pub(crate) struct Grid {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) params: Vec<u8>,
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: [u32; 3],
    pub(crate) dynamic_shared: u32,
    pub(crate) table: Arc<Table>,
    pub(crate) seed: u64,
    pub(crate) number: u64,
    /// The first launch that may be at work until a thread has waited for all before this one; none
    /// is, unless the launch overlaps.
    pub(crate) unfinished: Option<u64>,
    /// The chip is Hopper or newer. It has launches that overlap: the writer of each word is noted.
    pub(crate) is_hopper: bool,
    /// A thread let the successor begin before it had waited itself.
    pub(crate) releases_early: AtomicBool,
    pub(crate) sms: u32,
    /// All blocks are resident, so that they may wait for one another.
    pub(crate) cooperative: bool,
    /// `cp.async` data arrives when it is waited for, not at once.
    pub(crate) late_copies: bool,
    /// Warp instructions after which a launch without progress is given up.
    pub(crate) patience: u64,
    pub(crate) stop: AtomicBool,
    /// Clocks that blocks have published to each other.
    pub(crate) words: Words,
}

/// Result of a launch.
#[derive(Debug, Default)]
pub(crate) struct LaunchOutcome {
    pub(crate) findings: Vec<Finding>,
    pub(crate) executed: u64,
}

/// Warp instructions a block runs before another resident block gets its turn.
const TURN: u32 = 2_000_000;
/// The same in a cooperative launch, whose blocks wait for one another: who spins at a barrier
/// should not do so for long.
const COOPERATIVE_TURN: u32 = 500;
/// Findings kept of one launch.
const KEPT: usize = 16;

impl Grid {
    /// Threads of a block.
    pub(crate) fn block_threads(&self) -> u32 {
        self.threads.iter().product()
    }

    fn block_count(&self) -> u64 {
        self.blocks.iter().map(|&n| u64::from(n)).product()
    }

    /// `threadIdx` of a lane.
    pub(crate) fn thread(&self, warp: usize, lane: usize) -> [u32; 3] {
        let flat = (warp * LANES + lane) as u32;
        let [x, y, _] = self.threads;
        [flat % x, flat / x % y, flat / (x * y)]
    }

    /// Warps of a block.
    pub(crate) fn warps(&self) -> usize {
        (self.block_threads() as usize).div_ceil(LANES)
    }

    /// Blocks of a cluster.
    pub(crate) fn ranks(&self) -> usize {
        self.kernel.cluster.iter().product::<u32>() as usize
    }

    /// Number of a block in its cluster.
    pub(crate) fn rank(&self, [x, y, z]: [u32; 3]) -> u32 {
        let [across, down, deep] = self.kernel.cluster;
        x % across + across * (y % down + down * (z % deep))
    }

    /// Number of a block in the grid.
    pub(crate) fn flat(&self, [x, y, z]: [u32; 3]) -> u64 {
        let [x, y, z] = [x, y, z].map(u64::from);
        let [across, down, _] = self.blocks.map(u64::from);
        x + across * (y + down * z)
    }

    /// `blockIdx` of block `rank` of cluster number `flat`.
    pub(crate) fn block_index(&self, flat: u64, rank: u32) -> [u32; 3] {
        let [across, down, deep] = self.kernel.cluster;
        let inside = [rank % across, rank / across % down, rank / (across * down)];
        let x = u64::from(self.blocks[0] / across);
        let y = u64::from(self.blocks[1] / down);
        let first = [flat % x, flat / x % y, flat / (x * y)].map(|index| index as u32);
        [first[0] * across + inside[0], first[1] * down + inside[1], first[2] * deep + inside[2]]
    }

    /// Runs the launch to its end.
    pub(crate) fn run(&self) -> LaunchOutcome {
        let count = self.block_count() / self.ranks() as u64;
        let workers =
            std::thread::available_parallelism().map_or(1, |n| n.get() as u64).min(count).max(1);
        let next = AtomicU64::new(0);
        let total = Mutex::new(LaunchOutcome::default());
        let work = || {
            let outcome = self.work(&next, count, workers);
            let mut total = total.lock().unwrap_or_else(|broken| broken.into_inner());
            total.executed += outcome.executed;
            total.findings.extend(outcome.findings);
        };
        if workers == 1 {
            work();
        } else {
            std::thread::scope(|scope| {
                for _ in 1..workers {
                    scope.spawn(work);
                }
                work();
            });
        }
        let mut total = total.into_inner().unwrap_or_else(|broken| broken.into_inner());
        total.findings.sort_by_key(|finding| (finding.line, finding.block, finding.thread));
        total.findings.truncate(KEPT);
        total
    }

    /// One host thread: takes clusters and runs them in turns.
    fn work(&self, next: &AtomicU64, count: u64, workers: u64) -> LaunchOutcome {
        let mut outcome = LaunchOutcome::default();
        let mut resident: Vec<Cluster> = Vec::new();
        let mut spare: Vec<Cluster> = Vec::new();
        let max = if self.cooperative { count.div_ceil(workers) as usize } else { 1 };
        let turn = if self.cooperative { COOPERATIVE_TURN } else { TURN };
        // A cluster that does not end lets one more in, since it may wait for it.
        let mut extra = 0;
        let mut spent = 0;
        loop {
            while resident.len() < max + extra && !self.stop.load(Ordering::Relaxed) {
                let flat = next.fetch_add(1, Ordering::Relaxed);
                if flat >= count {
                    break;
                }
                let mut cluster = spare.pop().unwrap_or_else(Cluster::new);
                cluster.start(self, flat);
                resident.push(cluster);
            }
            if resident.is_empty() || self.stop.load(Ordering::Relaxed) {
                break;
            }
            let mut at = 0;
            let mut ended = false;
            while at < resident.len() {
                let progress = resident[at].run(self, turn);
                match progress {
                    Progress::More => at += 1,
                    Progress::Done | Progress::Fault => {
                        let mut cluster = resident.swap_remove(at);
                        outcome.executed += cluster.take_executed();
                        outcome.findings.extend(cluster.take_finding());
                        ended = true;
                        if progress == Progress::Fault {
                            self.stop.store(true, Ordering::Relaxed);
                        }
                        spare.push(cluster);
                    }
                }
            }
            spent = if ended { 0 } else { spent + u64::from(turn) * resident.len() as u64 };
            if !ended {
                extra += 1;
            }
            if self.cooperative && !ended {
                // A block that these wait for may be another worker's, which the host has not run
                // for a while; a barrier gives up after a number of polls.
                std::thread::yield_now();
            }
            if spent > self.patience {
                outcome.findings.extend(resident.first().and_then(|cluster| cluster.hang(self)));
                self.stop.store(true, Ordering::Relaxed);
            }
        }
        for cluster in &mut resident {
            outcome.executed += cluster.take_executed();
        }
        outcome
    }
}

//! One block: its warps, run in turn, and its barriers.

use super::Cx;
use super::grid::Grid;
use super::lanes::LANES;
use super::order::BlockOrder;
use super::shared::{Clocks, Shared, join};
use super::special;
use super::warp::{self, Path, Stop, Wait, Warp};
use crate::ptx::program::{NEVER, Reduce};
use crate::report::{Finding, Kind};

/// Result of a warp's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    Done,
    Fault,
}

/// Arrivals at one barrier.
#[derive(Clone, Default)]
struct Barrier {
    /// Warps that wait.
    waiting: u32,
    /// Arrivals in warps, those that do not wait included.
    arrived: u32,
    expected: u32,
    /// Merged vector clock of the warps that have arrived.
    clocks: Clocks,
    /// Every thread's bit was set, some thread's bit was set, how many were.
    all: bool,
    any: bool,
    ones: u32,
}

/// A block on a host thread; reused for the next one.
pub(crate) struct Block {
    index: [u32; 3],
    order: BlockOrder,
    warps: Vec<Warp>,
    count: usize,
    barriers: Vec<Barrier>,
    done: u32,
    finding: Option<Finding>,
    random: u64,
}

/// Warp instructions before the next warp gets its turn.
const TURN: u32 = 50_000;
/// Cost of a turn beside its instructions, in the same unit.
const TURN_COST: i64 = 64;

impl Block {
    pub(crate) fn new() -> Block {
        Block {
            index: [0; 3],
            order: BlockOrder::default(),
            warps: Vec::new(),
            count: 0,
            barriers: vec![Barrier::default(); 16],
            done: 0,
            finding: None,
            random: 1,
        }
    }

    /// Sets up block `index`; its cluster has prepared the shared memory.
    pub(crate) fn start(&mut self, grid: &Grid, index: [u32; 3]) {
        let flat = grid.flat(index);
        let kernel = &grid.kernel;
        let threads = grid.block_threads() as usize;
        self.index = index;
        self.order.reset(flat);
        self.count = grid.warps();
        self.done = 0;
        self.finding = None;
        self.random = (grid.seed ^ flat.wrapping_mul(0x9E37_79B9_7F4A_7C15)) | 1;
        self.barriers.fill(Barrier::default());
        while self.warps.len() < self.count {
            self.warps.push(Warp::new());
        }
        for (number, warp) in self.warps[..self.count].iter_mut().enumerate() {
            let lanes = (threads - number * LANES).min(LANES);
            warp.number = number;
            warp.live = u32::MAX >> (LANES - lanes);
            warp.paths.clear();
            warp.paths.push(Path { pc: 0, join: NEVER, mask: warp.live });
            warp.registers.resize(kernel.narrow, kernel.wide, kernel.preds);
            warp.local.reset(kernel.local_bytes);
            warp.pending.clear();
            warp.wgmma.clear();
            warp.spins = false;
            warp.waited = false;
            warp.meets = None;
            warp.fault = None;
            warp.waiting = None;
            warp.executed = 0;
            special::preset(warp, grid, index);
        }
    }

    pub(crate) fn take_executed(&mut self) -> u64 {
        self.warps[..self.count].iter_mut().map(|warp| std::mem::take(&mut warp.executed)).sum()
    }

    pub(crate) fn take_finding(&mut self) -> Option<Finding> {
        self.finding.take()
    }

    /// Runs warps in turn, from a seeded start, for about `budget` warp instructions.
    pub(crate) fn run(&mut self, grid: &Grid, shared: &mut Shared, budget: u32) -> Progress {
        let mut left = i64::from(budget);
        while left > 0 {
            let (mut ran, before) = (0, left);
            let first = (self.next_random() % self.count as u64) as usize;
            for step in 0..self.count {
                let number = (first + step) % self.count;
                if self.done >> number & 1 == 1 || self.warps[number].waiting.is_some() {
                    continue;
                }
                ran += 1;
                left -= TURN_COST;
                if self.turn(grid, shared, number, budget.min(TURN), &mut left).is_err() {
                    return Progress::Fault;
                }
                if self.done.count_ones() as usize == self.count {
                    return Progress::Done;
                }
            }
            // Polls alone: another block of the cluster must go on.
            if grid.ranks() > 1 && before - left < ran * (TURN_COST + 8) {
                return Progress::More;
            }
            if ran == 0 {
                self.finding = Some(self.deadlock(grid));
                return Progress::Fault;
            }
            if grid.stop.load(std::sync::atomic::Ordering::Relaxed) {
                return Progress::More;
            }
        }
        Progress::More
    }

    /// Runs one warp until it stops, for `most` instructions at most.
    fn turn(
        &mut self,
        grid: &Grid,
        shared: &mut Shared,
        number: usize,
        max: u32,
        left: &mut i64,
    ) -> Result<(), ()> {
        let warp = &mut self.warps[number];
        let before = warp.executed;
        let order = &mut self.order;
        let mut cx = Cx { warp, shared, order, grid, block: self.index };
        let stop = warp::run(&mut cx, max);
        *left -= ((self.warps[number].executed - before) / LANES as u64) as i64;
        match stop {
            Stop::Budget => {}
            Stop::Done => {
                self.done |= 1 << number;
                shared.end_warp(number);
                for barrier in 0..self.barriers.len() {
                    self.try_release(shared, barrier);
                }
                if self.done.count_ones() as usize == self.count
                    && let Err((kind, detail)) = shared.end_block()
                {
                    self.finding = Some(self.found(grid, kind, number, detail));
                    return Err(());
                }
            }
            Stop::Fault => {
                self.finding = self.warps[number].fault.take().map(|fault| *fault);
                return Err(());
            }
            Stop::Barrier { barrier, expected, waits, bits } => {
                self.arrive(shared, number, (barrier as usize, expected), waits, bits)
            }
        }
        Ok(())
    }

    fn arrive(
        &mut self,
        shared: &mut Shared,
        warp: usize,
        (number, expected): (usize, u32),
        waits: bool,
        bits: u32,
    ) {
        shared.tick(warp);
        let known = shared.clocks(warp);
        let live = self.warps[warp].live;
        let barrier = &mut self.barriers[number];
        if barrier.arrived == 0 {
            *barrier = Barrier { all: true, expected, ..Barrier::default() };
        }
        barrier.arrived += 1;
        barrier.waiting |= u32::from(waits) << warp;
        join(&mut barrier.clocks, &known);
        barrier.ones += bits.count_ones();
        barrier.all &= bits == live;
        barrier.any |= bits != 0;
        self.try_release(shared, number);
    }

    /// Opens a barrier at which everybody has arrived.
    fn try_release(&mut self, shared: &mut Shared, number: usize) {
        let barrier = &self.barriers[number];
        let everybody = self.count as u32 - self.done.count_ones();
        let needed =
            if barrier.expected == 0 { everybody } else { barrier.expected / LANES as u32 };
        if barrier.arrived == 0 || barrier.arrived < needed {
            return;
        }
        let mut barrier = std::mem::take(&mut self.barriers[number]);
        let waiting = |warp: &usize| barrier.waiting >> warp & 1 == 1;
        let waiting: Vec<usize> = (0..self.count).filter(waiting).collect();
        // A warp that waits did nothing since it arrived: its clock may be one behind all that the
        // others did until they arrived, so that the newest of readers' clocks is below it.
        for &warp in &waiting {
            shared.tick(warp);
            join(&mut barrier.clocks, &shared.clocks(warp));
        }
        for warp in waiting {
            shared.learn(warp, &barrier.clocks);
            let Some(Wait { reduce, .. }) = self.warps[warp].waiting.take() else { continue };
            let live = self.warps[warp].live;
            let registers = &mut self.warps[warp].registers;
            match reduce {
                None => {}
                Some((Reduce::Popc, slot)) => {
                    registers.narrow[slot.index()] = [barrier.ones; LANES]
                }
                Some((Reduce::And, slot)) => {
                    registers.set_pred(slot, if barrier.all { u32::MAX } else { 0 }, live)
                }
                Some((Reduce::Or, slot)) => {
                    registers.set_pred(slot, if barrier.any { u32::MAX } else { 0 }, live)
                }
            }
        }
    }

    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn place(&self, grid: &Grid, number: usize) -> (u32, String) {
        let pc = self.warps[number].paths.last().map_or(0, |path| path.pc.saturating_sub(1));
        let line = grid.kernel.code.get(pc as usize).map_or(0, |inst| inst.line);
        (line, grid.kernel.text(line).to_owned())
    }

    fn found(&self, grid: &Grid, kind: Kind, number: usize, detail: String) -> Finding {
        let (line, instruction) = self.place(grid, number);
        let kernel = grid.kernel.name.clone();
        Finding {
            kind,
            kernel,
            line,
            instruction,
            block: self.index,
            thread: grid.thread(number, 0),
            detail,
        }
    }

    fn deadlock(&self, grid: &Grid) -> Finding {
        let waits = |number: &usize| self.warps[*number].waiting;
        let list: Vec<String> = (0..self.count)
            .filter_map(|number| {
                waits(&number).map(|wait| {
                    format!(
                        "warp {number} at barrier {} (line {})",
                        wait.barrier,
                        self.place(grid, number).0
                    )
                })
            })
            .collect();
        let number = (0..self.count).find(|number| waits(number).is_some()).unwrap_or(0);
        self.found(
            grid,
            Kind::BarrierDivergence,
            number,
            format!("no barrier can open: {}", list.join(", ")),
        )
    }

    /// The finding for a block that makes no progress.
    pub(crate) fn hang(&self, grid: &Grid) -> Finding {
        let number = (0..self.count).find(|&number| self.done >> number & 1 == 0).unwrap_or(0);
        self.found(
            grid,
            Kind::Hang,
            number,
            format!("no block of the launch ended within {} warp instructions", grid.patience),
        )
    }
}

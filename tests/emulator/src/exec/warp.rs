//! One warp: a stack of diverged paths, and the loop that runs the top one.

use super::Cx;
use super::copies::Pending;
use super::lanes::{LANES, Registers, lanes};
use super::local::Local;
use super::wgmma::Products;
use crate::ptx::program::{Flow, Inst, NEVER, Reduce};
use crate::report::{Finding, Kind};

/// Lanes that run together from `pc` until they meet the others at `join`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) pc: u32,
    pub(crate) join: u32,
    pub(crate) mask: u32,
}

/// State of a warp.
pub(crate) struct Warp {
    pub(crate) number: usize,
    pub(crate) registers: Registers,
    pub(crate) paths: Vec<Path>,
    /// Lanes that have not exited.
    pub(crate) live: u32,
    pub(crate) local: Local,
    pub(crate) pending: Pending,
    pub(crate) wgmma: Products,
    pub(crate) fault: Option<Box<Finding>>,
    /// Allocation that each of a few instructions used last.
    pub(crate) nearest: [u32; 16],
    /// Thread-instructions executed.
    pub(crate) executed: u64,
    pub(crate) waiting: Option<Wait>,
    /// The last [`Flow::Poll`] failed.
    pub(crate) spins: bool,
    /// It has waited for the launches before its own.
    pub(crate) waited: bool,
    /// Phase of the cluster's barrier at which it has arrived, until it has waited.
    pub(crate) meets: Option<u32>,
}

/// Reason for which a warp waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) barrier: u32,
    /// Register index of a reduction's result, and the reduction.
    pub(crate) reduce: Option<(Reduce, crate::ptx::program::Slot)>,
}

/// Why a warp stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Its share of time is used up, or it spins.
    Budget,
    /// It arrived at a barrier: number, threads expected (0: all), waits, bits of a reduction.
    Barrier {
        barrier: u32,
        expected: u32,
        waits: bool,
        bits: u32,
    },
    Done,
    Fault,
}

impl Warp {
    pub(crate) fn new() -> Warp {
        Warp {
            number: 0,
            registers: Registers::default(),
            paths: Vec::new(),
            live: 0,
            local: Local::new(),
            pending: Pending::default(),
            wgmma: Products::default(),
            fault: None,
            nearest: [0; 16],
            executed: 0,
            waiting: None,
            spins: false,
            waited: false,
            meets: None,
        }
    }

    fn leave(&mut self, mask: u32) {
        self.live &= !mask;
        for path in &mut self.paths {
            path.mask &= !mask;
        }
    }

    /// Parts the top path: lanes of `taken` go to `target`, the others go on.
    fn diverge(&mut self, target: u32, join: u32, taken: u32) {
        let Some(top) = self.paths.pop() else { return };
        let inner = if join == NEVER { top.join } else { join };
        // Where the paths meet, the old one goes on; it is needless if it ends there itself.
        if inner != top.join {
            self.paths.push(Path { pc: join, ..top });
        }
        let rest = Path { pc: top.pc + 1, join: inner, mask: top.mask & !taken };
        let branch = Path { pc: target, join: inner, mask: taken };
        self.paths.extend([rest, branch].into_iter().filter(|path| path.pc != inner));
    }
}

#[inline(always)]
fn guarded(cx: &Cx<'_>, inst: &Inst, mask: u32) -> u32 {
    match inst.guard {
        None => mask,
        Some(slot) => {
            let bits = cx.warp.registers.pred(slot);
            mask & if inst.negated { !bits } else { bits }
        }
    }
}

/// Runs a warp until it stops; `budget` counts warp instructions.
pub(crate) fn run(cx: &mut Cx<'_>, mut budget: u32) -> Stop {
    let grid = cx.grid;
    let code = grid.kernel.code.as_slice();
    loop {
        let Some(&Path { mut pc, join, mask }) = cx.warp.paths.last() else { return Stop::Done };
        if mask == 0 || pc == join {
            cx.warp.paths.pop();
            continue;
        }
        // Straight-line code first: only what changes the paths leaves this loop.
        loop {
            let inst = &code[pc as usize];
            let active = guarded(cx, inst, mask);
            budget = budget.saturating_sub(1);
            cx.warp.executed += u64::from(active.count_ones());
            match inst.flow {
                Flow::Plain(run) => {
                    if active != 0 {
                        run(cx, inst, active);
                    }
                }
                Flow::Checked(run) => {
                    if active != 0 {
                        run(cx, inst, active);
                        if cx.warp.fault.is_some() {
                            blame(cx, inst);
                            return Stop::Fault;
                        }
                    }
                }
                _ => {
                    set_pc(cx, pc);
                    if let Some(stop) = transfer(cx, inst, active) {
                        return stop;
                    }
                    break;
                }
            }
            pc += 1;
            if pc == join {
                set_pc(cx, pc);
                break;
            }
        }
        if budget == 0 {
            return Stop::Budget;
        }
    }
}

#[inline(always)]
fn set_pc(cx: &mut Cx<'_>, pc: u32) {
    if let Some(top) = cx.warp.paths.last_mut() {
        top.pc = pc;
    }
}

#[cold]
fn blame(cx: &mut Cx<'_>, inst: &Inst) {
    if let Some(fault) = &mut cx.warp.fault {
        fault.line = inst.line;
        fault.instruction = cx.grid.kernel.text(inst.line).to_owned();
    }
}

/// An instruction that moves the program counter. `active` are the lanes whose guard holds.
fn transfer(cx: &mut Cx<'_>, inst: &Inst, active: u32) -> Option<Stop> {
    let Some(&Path { pc, mask, .. }) = cx.warp.paths.last() else { return Some(Stop::Done) };
    match inst.flow {
        Flow::Branch { target, join } => {
            if active == mask {
                set_pc(cx, target);
            } else if active == 0 {
                set_pc(cx, pc + 1);
            } else {
                cx.warp.diverge(target, join, active);
            }
        }
        Flow::Indexed { table, join } => indexed(cx, inst, active, table, join),
        Flow::Exit => {
            set_pc(cx, pc + 1);
            super::wgmma::check_exit(cx, active);
            if cx.warp.fault.is_some() {
                blame(cx, inst);
                return Some(Stop::Fault);
            }
            cx.warp.leave(active);
            if cx.warp.live == 0 {
                return Some(Stop::Done);
            }
        }
        Flow::Trap => {
            if active != 0 {
                cx.fault(
                    Kind::Trap,
                    active.trailing_zeros() as usize,
                    "the kernel stopped itself".to_owned(),
                );
                blame(cx, inst);
                return Some(Stop::Fault);
            }
            set_pc(cx, pc + 1);
        }
        Flow::Barrier { waits, counted, aligned, reduce } => {
            set_pc(cx, pc + 1);
            if active != 0 {
                return Some(barrier(cx, inst, active, (waits, counted, aligned), reduce));
            }
        }
        Flow::Yield => {
            set_pc(cx, pc + 1);
            return Some(Stop::Budget);
        }
        Flow::Poll(run) | Flow::Wait(run) => {
            set_pc(cx, pc + 1);
            if active != 0 {
                run(cx, inst, active);
            }
            if cx.warp.fault.is_some() {
                blame(cx, inst);
                return Some(Stop::Fault);
            }
            if std::mem::take(&mut cx.warp.spins) {
                if matches!(inst.flow, Flow::Wait(_)) {
                    set_pc(cx, pc);
                }
                return Some(Stop::Budget);
            }
        }
        Flow::Plain(_) | Flow::Checked(_) => set_pc(cx, pc + 1),
    }
    None
}

fn indexed(cx: &mut Cx<'_>, inst: &Inst, active: u32, table: u32, join: u32) {
    let index = cx.warp.registers.narrow[inst.s[0].index()];
    let targets = &cx.grid.kernel.tables[table as usize];
    let mut left = active;
    // Peels off one target after another; the last one takes the path itself.
    while left != 0 {
        let first = index[left.trailing_zeros() as usize];
        let same =
            lanes(left).filter(|&lane| index[lane] == first).fold(0, |bits, lane| bits | 1 << lane);
        let target = targets.get(first as usize).copied().unwrap_or(0);
        left &= !same;
        let Some(&Path { mask, .. }) = cx.warp.paths.last() else { return };
        if same == mask {
            set_pc(cx, target);
            return;
        }
        // The branch that comes to lie on top is swapped below, so that the undecided lanes stay on
        // top.
        let Some(top) = cx.warp.paths.pop() else { return };
        let waits = join != top.join && join != NEVER;
        let inner = if join == NEVER { top.join } else { join };
        if waits {
            cx.warp.paths.push(Path { pc: join, ..top });
        }
        if target != inner {
            cx.warp.paths.push(Path { pc: target, join: inner, mask: same });
        }
        cx.warp.paths.push(Path { pc: top.pc, join: inner, mask: mask & !same });
    }
    if let Some(top) = cx.warp.paths.last_mut() {
        top.pc += 1;
    }
}

fn barrier(
    cx: &mut Cx<'_>,
    inst: &Inst,
    active: u32,
    flags: (bool, bool, bool),
    reduce: Option<Reduce>,
) -> Stop {
    let (waits, counted, aligned) = flags;
    let lane = active.trailing_zeros() as usize;
    if active != cx.warp.live {
        let missing = lanes(cx.warp.live & !active)
            .map(|lane| lane.to_string())
            .collect::<Vec<_>>()
            .join(", ");
        let aligned = if aligned {
            ""
        } else {
            " (threads of one warp apart at a barrier are not supported)"
        };
        cx.fault(
            Kind::BarrierDivergence,
            lane,
            format!("lanes {missing} of the warp are elsewhere{aligned}"),
        );
        blame(cx, inst);
        return Stop::Fault;
    }
    let read = |slot: crate::ptx::program::Slot| cx.warp.registers.narrow[slot.index()][lane];
    let barrier = read(inst.s[0]);
    let expected = if counted { read(inst.s[1]) } else { 0 };
    let (mut bits, mut result) = (0, None);
    if let Some(reduce) = reduce {
        let source = inst.s[usize::from(inst.sources) - 1];
        bits = cx.warp.registers.pred(source) ^ if inst.imm == 1 { u32::MAX } else { 0 };
        bits &= active;
        result = Some((reduce, inst.d[0]));
    }
    if waits {
        cx.warp.waiting = Some(Wait { barrier, reduce: result });
    }
    if expected % LANES as u32 != 0 || barrier > 15 {
        cx.fault(
            Kind::BarrierDivergence,
            lane,
            format!(
                "barrier {barrier} with {expected} threads: not a multiple of 32, or not 0..15"
            ),
        );
        blame(cx, inst);
        return Stop::Fault;
    }
    Stop::Barrier { barrier, expected, waits, bits }
}

//! Statements to instructions: every opcode becomes a handler here or is refused with its line.

mod control;
mod hopper;
mod layout;
mod memory;
mod moves;
mod warp;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::ast::{Function, Module, Operand, Place, Statement};
use super::operands::{Slots, Symbol};
use super::program::{Flow, Inst, Kernel, Preset, Slot, Space};
use super::types::Ty;
use super::{PtxError, cfg, inline, registers};
use crate::exec::ops::{self, Opcode};
use layout::Layout;

type Result<T> = std::result::Result<T, PtxError>;

/// Decodes entry `entry`; `globals` are the device addresses of the module's variables.
pub(crate) fn kernel(
    module: &Module,
    entry: &Function,
    globals: &HashMap<String, u64>,
    lines: &Arc<Vec<String>>,
) -> Result<Kernel> {
    let function = inline::without_calls(module, entry)?;
    let layout = Layout::of(module, &function, globals);
    let mut slots = Slots::default();
    slots.of_register = function.registers.iter().map(|ty| slots.fresh(ty.class())).collect();
    let mut lower = Lower {
        function: &function,
        symbols: layout.symbols,
        slots,
        code: Vec::new(),
        line: 0,
        grain: 4,
        global_grain: 4,
        tables: Vec::new(),
        has_mbarriers: false,
        product_registers: HashSet::new(),
        product_waits: Vec::new(),
    };
    let starts = lower.statements()?;
    lower.keep_product_registers();
    lower.resolve(&starts)?;
    let Lower { mut code, slots, grain, global_grain, tables, has_mbarriers, .. } = lower;
    let blocks = cfg::blocks(&code, &tables);
    let joins = blocks.joins();
    for (at, inst) in code.iter_mut().enumerate() {
        if let Flow::Branch { join, .. } | Flow::Indexed { join, .. } = &mut inst.flow {
            *join = joins[blocks.of[at]];
        }
    }
    let mut fixed: Vec<(Slot, Preset)> =
        slots.presets.into_iter().map(|((_, preset), slot)| (slot, preset)).collect();
    fixed.sort_unstable_by_key(|(slot, _)| slot.0);
    let mut places: Vec<Slot> = fixed.iter().map(|&(slot, _)| slot).collect();
    let [narrow, wide, preds] = registers::allocate(&mut code, &blocks, &mut places);
    Ok(Kernel {
        name: function.name.clone(),
        code,
        narrow,
        wide,
        preds,
        presets: places.into_iter().zip(fixed.into_iter().map(|(_, preset)| preset)).collect(),
        tables,
        params: layout.params,
        param_bytes: layout.param_bytes,
        static_shared: layout.shared,
        local_bytes: layout.local,
        max_threads: function.max_threads.unwrap_or(1024),
        cluster: function.cluster.unwrap_or([1; 3]),
        grain,
        global_grain,
        has_mbarriers,
        lines: lines.clone(),
    })
}

/// Decoding in progress.
pub(super) struct Lower<'a> {
    function: &'a Function,
    pub(super) symbols: HashMap<String, Symbol>,
    pub(super) slots: Slots,
    pub(super) code: Vec<Inst>,
    pub(super) line: u32,
    /// log2 of the smallest shared access so far.
    grain: u32,
    /// The same of global memory.
    global_grain: u32,
    tables: Vec<Vec<u32>>,
    has_mbarriers: bool,
    /// Accumulators and first operands of all products of warpgroups, and the instructions that
    /// wait for products.
    pub(super) product_registers: HashSet<Slot>,
    pub(super) product_waits: Vec<usize>,
}

impl Lower<'_> {
    pub(super) fn fail<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(PtxError::at(self.line, reason))
    }

    /// Decodes all statements; gives the first instruction of each. Branch targets are statement
    /// numbers yet.
    fn statements(&mut self) -> Result<Vec<u32>> {
        let mut starts = Vec::with_capacity(self.function.body.len() + 1);
        let function = self.function;
        for statement in &function.body {
            starts.push(self.code.len() as u32);
            self.line = statement.line;
            self.statement(statement).map_err(|error| {
                let opcode = statement.opcode.join(".");
                PtxError::at(error.line, format!("{opcode}: {}", error.reason))
            })?;
        }
        starts.push(self.code.len() as u32);
        self.code.push(Inst::new(Flow::Exit, self.line));
        Ok(starts)
    }

    /// Statement numbers to instruction numbers.
    fn resolve(&mut self, starts: &[u32]) -> Result<()> {
        for inst in &mut self.code {
            if let Flow::Branch { target, .. } = &mut inst.flow {
                *target = starts[*target as usize];
            }
        }
        self.tables.iter_mut().flatten().for_each(|target| *target = starts[*target as usize]);
        Ok(())
    }

    fn statement(&mut self, statement: &Statement) -> Result<()> {
        let first = self.code.len();
        let mut opcode = Opcode::parse(&statement.opcode);
        let operands = &statement.operands;
        let done = self.control(&mut opcode, operands)?
            || self.hopper(&mut opcode, operands)?
            || self.memory_access(&mut opcode, operands)?
            || self.warp_wide(&mut opcode, operands)?
            || self.moves(&mut opcode, operands)?
            || self.plain(&mut opcode, operands)?;
        if !done {
            return self.fail("unsupported instruction");
        }
        if !self.code[first..].iter().all(Inst::fits) {
            return self.fail("too many operands");
        }
        if !opcode.modifiers.is_empty() {
            return self.fail(format!("unsupported modifier .{}", opcode.modifiers.join(".")));
        }
        // Helpers that were put before (negated predicates) run under the guard too, which does no
        // harm.
        if let Some((register, negated)) = statement.guard {
            let guard = self.slots.of_register[register as usize];
            for inst in &mut self.code[first..] {
                inst.guard = Some(guard);
                inst.negated = negated;
            }
        }
        Ok(())
    }

    pub(super) fn push(&mut self, inst: Inst) {
        self.code.push(inst);
    }

    /// Register-to-register instructions with a [`ops::OperandShape`].
    fn plain(&mut self, opcode: &mut Opcode, operands: &[Operand]) -> Result<bool> {
        let Some(shape) = ops::select(opcode) else { return Ok(false) };
        let Some((target, sources)) = operands.split_first() else {
            return self.fail("no operands");
        };
        if sources.len() != shape.sources.len() {
            return self.fail(format!(
                "{} sources, expected {}",
                sources.len(),
                shape.sources.len()
            ));
        }
        let mut slots = Vec::new();
        for (operand, &ty) in sources.iter().zip(&shape.sources) {
            slots.push(if opcode.name == "cvt" {
                self.low_part(operand, ty)?
            } else {
                self.source(operand, ty)?
            });
        }
        let (run, scalar) = shape.body.parts();
        let mut inst = Inst::new(Flow::Plain(run), self.line);
        (inst.imm, inst.scalar) = (shape.constant, scalar);
        slots.into_iter().for_each(|slot| inst.push_source(slot));
        let class = shape.targets[0].class();
        let (first, second) = match target {
            Operand::Pair(first, second) => (first.as_ref(), Some(second.as_ref())),
            other => (other, None),
        };
        for target in [Some(first), second].into_iter().flatten() {
            // A narrow type may go to a register of 32 bits, never to one of another file.
            let slot = self.target(target, class)?;
            inst.push_target(slot);
        }
        self.push(inst);
        Ok(true)
    }

    /// Notes an access of `bytes`.
    pub(super) fn grain(&mut self, space: Space, bytes: u64) {
        let log = bytes.max(1).ilog2();
        if matches!(space, Space::Shared | Space::Generic) {
            self.grain = self.grain.min(log);
        }
        if matches!(space, Space::Global | Space::Generic) {
            self.global_grain = self.global_grain.min(log);
        }
    }
}

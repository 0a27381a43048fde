//! Statements to instructions: every opcode becomes a handler here or is refused with its line.

mod memory;
mod warp;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::ast::{Function, Module, Operand, Place, Statement, Variable};
use super::operands::{Slots, Symbol};
use super::program::{Flow, Inst, Kernel, NEVER, Param, Preset, Reduce, Slot, Space};
use super::types::{Class, Ty};
use super::{PtxError, cfg, inline, registers};
use crate::exec::ops::{self, Opcode};

type Result<T> = std::result::Result<T, PtxError>;

/// Decodes entry `entry`; `globals` are the device addresses of the module's variables.
pub(crate) fn kernel(module: &Module, entry: &Function, globals: &HashMap<String, u64>, lines: &Arc<Vec<String>>) -> Result<Kernel> {
    let function = inline::without_calls(module, entry)?;
    let layout = Layout::of(module, &function, globals);
    let mut slots = Slots::default();
    slots.of_register = function.registers.iter().map(|ty| slots.fresh(ty.class())).collect();
    let mut lower =
        Lower { function: &function, symbols: layout.symbols, slots, code: Vec::new(), line: 0, grain: 4, global_grain: 4, tables: Vec::new() };
    let starts = lower.statements()?;
    lower.resolve(&starts)?;
    let Lower { mut code, slots, grain, global_grain, tables, .. } = lower;
    let blocks = cfg::blocks(&code, &tables);
    let joins = blocks.joins();
    for (at, inst) in code.iter_mut().enumerate() {
        if let Flow::Branch { join, .. } | Flow::Indexed { join, .. } = &mut inst.flow {
            *join = joins[blocks.of[at]];
        }
    }
    let mut fixed: Vec<(Slot, Preset)> = slots.presets.into_iter().map(|((_, preset), slot)| (slot, preset)).collect();
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
        grain,
        global_grain,
        lines: lines.clone(),
    })
}

/// Where a kernel's variables lie.
struct Layout {
    symbols: HashMap<String, Symbol>,
    params: Vec<Param>,
    param_bytes: u64,
    shared: u64,
    local: u64,
}

impl Layout {
    fn of(module: &Module, function: &Function, globals: &HashMap<String, u64>) -> Layout {
        let mut layout = Layout { symbols: HashMap::new(), params: Vec::new(), param_bytes: 0, shared: 0, local: 0 };
        for variable in &function.params {
            let offset = layout.param_bytes.next_multiple_of(variable.align);
            layout.params.push(Param { offset, size: variable.size });
            layout.param_bytes = offset + variable.size;
            layout.symbols.insert(variable.name.clone(), Symbol { place: Place::Param, address: offset });
        }
        let used = used_names(function);
        let mut dynamic: Vec<&Variable> = Vec::new();
        for variable in function.variables.iter().chain(module.variables.iter().filter(|v| used.contains(v.name.as_str()))) {
            let (place, end) = match variable.place {
                Place::Global | Place::Const => {
                    let address = globals.get(&variable.name).copied().unwrap_or(0);
                    layout.symbols.insert(variable.name.clone(), Symbol { place: variable.place, address });
                    continue;
                }
                Place::Shared if variable.size == 0 => {
                    dynamic.push(variable);
                    continue;
                }
                Place::Shared => (Place::Shared, &mut layout.shared),
                // `.param` variables of a body carry arguments of calls: memory of the thread's.
                Place::Local | Place::Param => (Place::Local, &mut layout.local),
            };
            let address = end.next_multiple_of(variable.align);
            *end = address + variable.size;
            layout.symbols.insert(variable.name.clone(), Symbol { place, address });
        }
        // All dynamic shared arrays start at the same place, after the static ones.
        let align = dynamic.iter().map(|variable| variable.align).max();
        if let Some(align) = align {
            layout.shared = layout.shared.next_multiple_of(align.max(16));
        }
        for variable in dynamic {
            layout.symbols.insert(variable.name.clone(), Symbol { place: Place::Shared, address: layout.shared });
        }
        layout
    }
}

fn used_names(function: &Function) -> HashSet<&str> {
    fn visit<'a>(operand: &'a Operand, names: &mut HashSet<&'a str>) {
        match operand {
            Operand::Symbol(name, _) => {
                names.insert(name);
            }
            Operand::Memory(base, _) => visit(base, names),
            Operand::Vector(parts) => parts.iter().for_each(|part| visit(part, names)),
            _ => {}
        }
    }
    let mut names = HashSet::new();
    function.body.iter().flat_map(|statement| &statement.operands).for_each(|operand| visit(operand, &mut names));
    names
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
}

impl Lower<'_> {
    pub(super) fn fail<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(PtxError::at(self.line, reason))
    }

    /// Decodes all statements; gives the first instruction of each. Branch targets are statement numbers yet.
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
            || self.memory_access(&mut opcode, operands)?
            || self.warp_wide(&mut opcode, operands)?
            || self.moves(&mut opcode, operands)?
            || self.plain(&mut opcode, operands)?;
        if !done {
            return self.fail("unsupported instruction");
        }
        if !opcode.modifiers.is_empty() {
            return self.fail(format!("unsupported modifier .{}", opcode.modifiers.join(".")));
        }
        // Helpers that were put before (negated predicates) run under the guard too, which does no harm.
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

    fn label(&self, operand: Option<&Operand>) -> Result<u32> {
        let Some(Operand::Symbol(name, _)) = operand else { return self.fail("expected a label") };
        match self.function.labels.get(name) {
            Some(&at) => Ok(at as u32),
            None => self.fail(format!("unknown label `{name}`")),
        }
    }

    fn control(&mut self, opcode: &mut Opcode, operands: &[Operand]) -> Result<bool> {
        let line = self.line;
        match opcode.name.as_str() {
            "bra" => {
                opcode.take("uni");
                let target = self.label(operands.first())?;
                self.push(Inst::new(Flow::Branch { target, join: NEVER }, line));
            }
            "brx" => {
                opcode.take("uni");
                if !opcode.take("idx") || operands.len() != 2 {
                    return self.fail("unsupported form");
                }
                let index = self.source(&operands[0], Ty::U32)?;
                let Operand::Symbol(name, _) = &operands[1] else { return self.fail("expected a table") };
                let Some(targets) = self.function.tables.get(name) else { return self.fail(format!("unknown table `{name}`")) };
                let targets = targets.iter().map(|target| self.label(Some(&Operand::Symbol(target.clone(), 0))));
                let targets = targets.collect::<Result<Vec<u32>>>()?;
                let mut inst = Inst::new(Flow::Indexed { table: self.tables.len() as u32, join: NEVER }, line);
                self.tables.push(targets);
                inst.push_source(index);
                self.push(inst);
            }
            "ret" | "exit" => {
                opcode.take("uni");
                self.push(Inst::new(Flow::Exit, line));
            }
            "trap" | "brkpt" => self.push(Inst::new(Flow::Trap, line)),
            "nanosleep" => self.push(Inst::new(Flow::Yield, line)),
            "bar" | "barrier" => return self.barrier(opcode, operands).map(|()| true),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn barrier(&mut self, opcode: &mut Opcode, operands: &[Operand]) -> Result<()> {
        if opcode.take("warp") {
            opcode.take("sync");
            let members = self.source(&operands[0], Ty::B32)?;
            let mut inst = Inst::new(Flow::Checked(crate::exec::sync::warp_sync), self.line);
            inst.push_source(members);
            self.push(inst);
            return Ok(());
        }
        opcode.take("cta");
        // `bar` is `barrier.cta` with `.aligned` implied.
        let aligned = opcode.take("aligned") || opcode.name == "bar";
        let waits = match opcode.take_any(&["sync", "arrive", "red"]) {
            Some("red") => return self.reduction(opcode, operands, aligned),
            Some(kind) => kind == "sync",
            None => return self.fail("unsupported form"),
        };
        let counted = operands.len() > 1;
        let mut inst = Inst::new(Flow::Barrier { waits, counted, aligned, reduce: None }, self.line);
        for operand in operands {
            let slot = self.source(operand, Ty::U32)?;
            inst.push_source(slot);
        }
        self.push(inst);
        Ok(())
    }

    /// `bar.red.popc.u32 d, a{, b}, {!}c`
    fn reduction(&mut self, opcode: &mut Opcode, operands: &[Operand], aligned: bool) -> Result<()> {
        let reduce = match opcode.take_any(&["popc", "and", "or"]) {
            Some("popc") => Reduce::Popc,
            Some("and") => Reduce::And,
            Some(_) => Reduce::Or,
            None => return self.fail("unsupported reduction"),
        };
        let counted = operands.len() > 3;
        let target = self.target(&operands[0], if reduce == Reduce::Popc { Class::Narrow } else { Class::Pred })?;
        let mut sources = Vec::new();
        for (at, operand) in operands.iter().enumerate().skip(1) {
            let ty = if at + 1 == operands.len() { Ty::Pred } else { Ty::U32 };
            sources.push(self.source(operand, ty)?);
        }
        let mut inst = Inst::new(Flow::Barrier { waits: true, counted, aligned, reduce: Some(reduce) }, self.line);
        inst.push_target(target);
        sources.into_iter().for_each(|slot| inst.push_source(slot));
        self.push(inst);
        Ok(())
    }

    /// Register-to-register instructions with a [`ops::Shape`].
    fn plain(&mut self, opcode: &mut Opcode, operands: &[Operand]) -> Result<bool> {
        let Some(shape) = ops::select(opcode) else { return Ok(false) };
        let Some((target, sources)) = operands.split_first() else { return self.fail("no operands") };
        if sources.len() != shape.sources.len() {
            return self.fail(format!("{} sources, expected {}", sources.len(), shape.sources.len()));
        }
        let mut slots = Vec::new();
        for (operand, &ty) in sources.iter().zip(&shape.sources) {
            slots.push(if opcode.name == "cvt" { self.low_part(operand, ty)? } else { self.source(operand, ty)? });
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
            let slot = self.target(target, class)?;
            // A narrow type may go to a register of 32 bits, never to one of another file.
            if slot.class() != class {
                return self.fail("a destination of another size");
            }
            inst.push_target(slot);
        }
        self.push(inst);
        Ok(true)
    }

    /// `mov` with vectors, and `cvta`.
    fn moves(&mut self, opcode: &mut Opcode, operands: &[Operand]) -> Result<bool> {
        match (opcode.name.as_str(), operands) {
            ("mov", [Operand::Vector(parts), from]) => self.unpack(opcode.ty(0), parts, from)?,
            ("mov", [to, Operand::Vector(parts)]) => self.pack(opcode.ty(0), to, parts)?,
            ("cvta", [to, from]) => self.convert_address(opcode, to, from)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn part(&self, ty: Option<Ty>, parts: usize) -> Result<(Ty, Ty, u32)> {
        match (ty.map(Ty::bytes), parts) {
            (Some(4), 2) => Ok((Ty::B32, Ty::B16, 16)),
            (Some(8), 2) => Ok((Ty::B64, Ty::B32, 32)),
            (Some(8), 4) => Ok((Ty::B64, Ty::B16, 16)),
            (Some(4), 4) => Ok((Ty::B32, Ty::B8, 8)),
            (Some(2), 2) => Ok((Ty::B16, Ty::B8, 8)),
            _ => self.fail("unsupported vector"),
        }
    }

    fn unpack(&mut self, ty: Option<Ty>, parts: &[Operand], from: &Operand) -> Result<()> {
        let (whole, part, bits) = self.part(ty, parts.len())?;
        let from = self.source(from, whole)?;
        let mut inst = Inst::new(Flow::Plain(crate::exec::special::unpack), self.line);
        inst.imm = i64::from(bits);
        inst.push_source(from);
        for target in parts {
            let slot = self.target(target, part.class())?;
            inst.push_target(slot);
        }
        self.push(inst);
        Ok(())
    }

    fn pack(&mut self, ty: Option<Ty>, to: &Operand, parts: &[Operand]) -> Result<()> {
        let (whole, part, bits) = self.part(ty, parts.len())?;
        let mut inst = Inst::new(Flow::Plain(crate::exec::special::pack), self.line);
        inst.imm = i64::from(bits);
        for source in parts {
            let slot = self.source(source, part)?;
            inst.push_source(slot);
        }
        let slot = self.target(to, whole.class())?;
        inst.push_target(slot);
        self.push(inst);
        Ok(())
    }

    /// `cvta{.to}.space`: adds or takes off the window of the space.
    fn convert_address(&mut self, opcode: &mut Opcode, to: &Operand, from: &Operand) -> Result<()> {
        let back = opcode.take("to");
        let window = match opcode.take_any(&["global", "const", "shared", "shared::cta", "local", "param"]) {
            Some("global" | "const") => 0,
            Some("shared" | "shared::cta") => crate::memory::SHARED_WINDOW,
            Some("local") => crate::memory::LOCAL_WINDOW,
            Some(_) => crate::memory::PARAM_WINDOW,
            None => return self.fail("unsupported state space"),
        };
        if opcode.ty(0) != Some(Ty::U64) {
            return self.fail("addresses of 64 bits only");
        }
        let from = self.source(from, Ty::U64)?;
        let to = self.target(to, Class::Wide)?;
        let mut inst = Inst::new(Flow::Plain(crate::exec::special::offset), self.line);
        inst.imm = if back { -(window as i64) } else { window as i64 };
        inst.push_source(from);
        inst.push_target(to);
        self.push(inst);
        Ok(())
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

//! Decoding of loads, stores, atomics, asynchronous copies.

use super::{Flow, Inst, Lower, Operand, Place, Result, Ty};
use crate::exec::ops::Opcode;
use crate::exec::order::Strength;
use crate::exec::{atomics, copies, memory, special};
use crate::ptx::operands::Symbol;
use crate::ptx::program::{Access, Slot, Space};
use crate::ptx::types::Class;

/// Cache and eviction hints: they change speed, not results.
const HINTS: [&str; 22] = [
    "nc",
    "ca",
    "cg",
    "cs",
    "cv",
    "lu",
    "wb",
    "wt",
    "L1::no_allocate",
    "L1::evict_first",
    "L1::evict_last",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L2::evict_first",
    "L2::evict_last",
    "L2::evict_normal",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "noftz",
    "weak",
    "unified",
];

impl Lower<'_> {
    pub(super) fn memory_access(
        &mut self,
        opcode: &mut Opcode,
        operands: &[Operand],
    ) -> Result<bool> {
        match (opcode.name.as_str(), operands) {
            ("ld" | "ldu", [to, from, ..]) => self.load(opcode, to, from)?,
            ("st", [to, from, ..]) => self.store(opcode, to, from)?,
            ("atom", [to, at, rest @ ..]) => self.atomic(opcode, Some(to), at, rest)?,
            ("red", [at, rest @ ..]) if !opcode.modifiers.iter().any(|m| m == "async") => {
                self.atomic(opcode, None, at, rest)?
            }
            ("cp", _) => self.copy(opcode, operands)?,
            ("membar" | "fence", _) => {
                // Of the block alone, or for a proxy: no order between blocks.
                let within = ["cta", "proxy", "mbarrier_init"];
                let is_within =
                    opcode.modifiers.iter().any(|modifier| within.contains(&modifier.as_str()));
                opcode.modifiers.clear();
                let run = if is_within { special::block_fence } else { special::fence };
                self.push(Inst::new(Flow::Plain(run), self.line));
            }
            ("prefetch" | "prefetchu" | "applypriority" | "discard" | "setmaxnreg", _) => {
                opcode.modifiers.clear();
                self.push(Inst::new(Flow::Plain(special::nothing), self.line));
            }
            ("griddepcontrol", _) => {
                let run = if opcode.take("launch_dependents") {
                    special::let_successor
                } else {
                    opcode.take("wait");
                    special::wait_for_launches
                };
                self.push(Inst::new(Flow::Plain(run), self.line));
            }
            ("createpolicy", [to, ..]) => {
                // Policies are values that hints carry; they have no effect.
                opcode.modifiers.clear();
                let mut inst = Inst::new(Flow::Plain(special::nothing), self.line);
                let slot = self.target(to, Class::Wide)?;
                inst.push_target(slot);
                self.push(inst);
            }
            ("isspacep", [to, from]) => self.is_space(opcode, to, from)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Space, hints and ordering of an access.
    fn access(&self, opcode: &mut Opcode, symbol: Option<Symbol>) -> Result<(Space, Strength)> {
        while opcode.take_any(&HINTS).is_some() {}
        opcode.take("L2::cache_hint");
        let orderings = ["volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"];
        let ordering = opcode.take_any(&orderings);
        let scope = opcode.take_any(&["cta", "cluster", "gpu", "sys"]);
        let strength = Strength::of(ordering, scope == Some("cta"));
        let named = opcode.take_any(&[
            "global",
            "const",
            "shared",
            "shared::cta",
            "local",
            "param",
            "param::entry",
            "param::func",
        ]);
        let space = match named {
            None => Space::Generic,
            Some("global") => Space::Global,
            Some("const") => Space::Const,
            Some("shared" | "shared::cta") => Space::Shared,
            Some("local") => Space::Local,
            // Arguments of calls are in local memory.
            Some(_) if symbol.is_some_and(|symbol| symbol.place == Place::Local) => Space::Local,
            Some(_) => Space::Param,
        };
        if let (Space::Generic, Some(symbol)) = (space, symbol)
            && !matches!(symbol.place, Place::Global | Place::Const)
        {
            return self.fail("a generic access to a variable outside global memory");
        }
        Ok((space, strength))
    }

    fn vector(&self, opcode: &mut Opcode) -> Result<(Ty, u8)> {
        let count = match opcode.take_any(&["v2", "v4", "v8"]) {
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
            None => 1,
        };
        match opcode.types.as_slice() {
            &[ty] if (1..=8).contains(&ty.bytes()) && ty.bytes() * u64::from(count) <= 16 => {
                Ok((ty, count))
            }
            _ => self.fail("unsupported type or vector"),
        }
    }

    fn describe(&mut self, opcode: &mut Opcode, symbol: Option<Symbol>) -> Result<Access> {
        let (space, strength) = self.access(opcode, symbol)?;
        let (ty, count) = self.vector(opcode)?;
        self.grain(space, ty.bytes() * u64::from(count));
        Ok(Access { space, bytes: ty.bytes() as u8, count, signed: ty.is_signed(), strength })
    }

    fn parts<'b>(&self, operand: &'b Operand, access: Access) -> Result<&'b [Operand]> {
        let parts = match operand {
            Operand::Vector(parts) => parts.as_slice(),
            other => std::slice::from_ref(other),
        };
        if parts.len() == usize::from(access.count) {
            Ok(parts)
        } else {
            self.fail("a vector of another length than the type's")
        }
    }

    fn load(&mut self, opcode: &mut Opcode, to: &Operand, from: &Operand) -> Result<()> {
        let (base, offset, symbol) = self.memory(from)?;
        let access = self.describe(opcode, symbol)?;
        let mut inst = Inst::new(Flow::Checked(memory::load), self.line);
        (inst.access, inst.imm) = (access, offset);
        inst.push_source(base);
        for part in self.parts(to, access)? {
            let slot =
                self.loaded(part, if access.bytes == 8 { Class::Wide } else { Class::Narrow })?;
            inst.push_target(slot);
        }
        self.push(inst);
        Ok(())
    }

    fn store(&mut self, opcode: &mut Opcode, to: &Operand, from: &Operand) -> Result<()> {
        let ty = opcode.types.first().copied().unwrap_or(Ty::B32);
        let (base, offset, symbol) = self.memory(to)?;
        let access = self.describe(opcode, symbol)?;
        let mut inst = Inst::new(Flow::Checked(memory::store), self.line);
        (inst.access, inst.imm) = (access, offset);
        inst.push_source(base);
        for part in self.parts(from, access)? {
            // The register may be wider than what is stored.
            let slot = match part {
                Operand::Register(register) => self.slots.of_register[*register as usize],
                other => self.source(other, ty)?,
            };
            inst.push_source(slot);
        }
        self.push(inst);
        Ok(())
    }

    fn atomic(
        &mut self,
        opcode: &mut Opcode,
        to: Option<&Operand>,
        at: &Operand,
        rest: &[Operand],
    ) -> Result<()> {
        let (base, offset, symbol) = self.memory(at)?;
        let (space, strength) = self.access(opcode, symbol)?;
        let operations = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];
        let Some(operation) = opcode.take_any(&operations) else {
            return self.fail("unsupported operation");
        };
        let &[ty] = opcode.types.as_slice() else { return self.fail("unsupported types") };
        // Bit operations are written with any type of the width.
        let bits = if ty.bytes() == 8 { Ty::B64 } else { Ty::B32 };
        let run = atomics::select(operation, ty).or_else(|| atomics::select(operation, bits));
        let Some((run, scalar)) = run else { return self.fail("unsupported operation or type") };
        self.grain(space, ty.bytes());
        let wanted = if operation == "cas" { 2 } else { 1 };
        let mut inst = Inst::new(Flow::Checked(run), self.line);
        let strength = Strength { strong: true, ..strength };
        inst.access = Access { space, bytes: ty.bytes() as u8, count: 1, signed: false, strength };
        (inst.imm, inst.scalar) = (offset, scalar);
        inst.push_source(base);
        for operand in rest.iter().take(wanted) {
            let slot = self.source(operand, ty)?;
            inst.push_source(slot);
        }
        if let Some(to) = to {
            let slot = self.target(to, ty.class())?;
            inst.push_target(slot);
        }
        self.push(inst);
        Ok(())
    }

    /// `cp.async...`
    fn copy(&mut self, opcode: &mut Opcode, operands: &[Operand]) -> Result<()> {
        if !opcode.take("async") {
            return self.fail("unsupported copy");
        }
        if opcode.take("commit_group") {
            self.push(Inst::new(Flow::Plain(copies::commit), self.line));
            return Ok(());
        }
        let all = opcode.take("wait_all");
        if all || opcode.take("wait_group") {
            let mut inst = Inst::new(Flow::Checked(copies::wait), self.line);
            inst.imm = match operands {
                _ if all => -1,
                [Operand::Int(groups)] => *groups as i64,
                _ => return self.fail("expected a number of groups"),
            };
            self.push(inst);
            return Ok(());
        }
        let (Some(to), Some(from), Some(Operand::Int(bytes))) =
            (operands.first(), operands.get(1), operands.get(2))
        else {
            return self.fail("unsupported copy");
        };
        opcode.take_any(&["ca", "cg"]);
        opcode.take_any(&["shared", "shared::cta"]);
        opcode.take("global");
        while opcode.take_any(&HINTS).is_some() {}
        let hinted = opcode.take("L2::cache_hint");
        if !matches!(bytes, 4 | 8 | 16) {
            return self.fail("copies of 4, 8 or 16 bytes only");
        }
        self.grain(Space::Shared, *bytes);
        let (to, from) = (self.folded(to)?, self.folded(from)?);
        let mut inst = Inst::new(Flow::Checked(copies::copy), self.line);
        inst.access.bytes = *bytes as u8;
        inst.push_source(to);
        inst.push_source(from);
        let Some(extra) = operands.get(3..operands.len() - usize::from(hinted)) else {
            return self.fail("expected a cache policy");
        };
        match extra {
            [] => {}
            [Operand::Not(_)] => return self.fail("unsupported ignore-src operand"),
            [Operand::Register(register)]
                if self.slots.of_register[*register as usize].class() == Class::Pred =>
            {
                let all = self.slots.value(Ty::U32, *bytes);
                inst.push_source(all);
                inst.push_source(self.slots.of_register[*register as usize]);
            }
            [real] => {
                let slot = self.source(real, Ty::U32)?;
                inst.push_source(slot);
            }
            _ => return self.fail("too many operands"),
        }
        self.push(inst);
        Ok(())
    }

    /// An address with its offset added, for instructions with two addresses.
    pub(super) fn folded(&mut self, operand: &Operand) -> Result<Slot> {
        let (base, offset, _) = self.memory(operand)?;
        if offset == 0 {
            return Ok(base);
        }
        let to = self.slots.fresh(base.class());
        let mut inst = Inst::new(Flow::Plain(special::offset), self.line);
        inst.imm = offset;
        inst.push_source(base);
        inst.push_target(to);
        self.push(inst);
        Ok(to)
    }

    fn is_space(&mut self, opcode: &mut Opcode, to: &Operand, from: &Operand) -> Result<()> {
        let space = match opcode.take_any(&[
            "global",
            "const",
            "shared",
            "shared::cta",
            "local",
            "param",
        ]) {
            Some("shared" | "shared::cta") => Space::Shared,
            Some("local") => Space::Local,
            Some("param") => Space::Param,
            Some(_) => Space::Global,
            None => return self.fail("unsupported state space"),
        };
        let from = self.source(from, Ty::U64)?;
        let to = self.target(to, Class::Pred)?;
        let mut inst = Inst::new(Flow::Plain(special::is_space), self.line);
        inst.access.space = space;
        inst.push_source(from);
        inst.push_target(to);
        self.push(inst);
        Ok(())
    }
}

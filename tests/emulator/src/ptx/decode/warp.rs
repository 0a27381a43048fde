//! Decoding of what a warp does together: shuffles, votes, matrices.

use super::{Flow, Inst, Lower, Operand, Result, Ty};
use crate::exec::ops::Opcode;
use crate::exec::{matrix, mma, sync};
use crate::ptx::program::{Handler, Space};
use crate::ptx::types::Class;

impl Lower<'_> {
    pub(super) fn warp_wide(&mut self, opcode: &mut Opcode, operands: &[Operand]) -> Result<bool> {
        let synced = opcode.take("sync");
        let done = match (opcode.name.as_str(), operands) {
            ("shfl", [to, a, b, c, members]) if synced => {
                let mode = opcode.take_any(&["up", "down", "bfly", "idx"]).unwrap_or_default();
                let Some(run) = sync::shuffle(mode) else { return self.fail("unsupported mode") };
                let sources = [(a, Ty::B32), (b, Ty::B32), (c, Ty::B32), (members, Ty::B32)];
                self.checked(run, to, Class::Narrow, &sources)?
            }
            ("vote", [to, a, members]) if synced => {
                let mode = opcode.take_any(&["ballot", "all", "any", "uni"]).unwrap_or_default();
                let Some(run) = sync::vote(mode) else { return self.fail("unsupported mode") };
                let class = if mode == "ballot" { Class::Narrow } else { Class::Pred };
                self.checked(run, to, class, &[(a, Ty::Pred), (members, Ty::B32)])?
            }
            ("match", [to, a, members]) if synced => {
                let mode = opcode.take_any(&["any", "all"]).unwrap_or_default();
                let ty = opcode.ty(0).unwrap_or(Ty::B32);
                let Some(run) = sync::matches(mode, ty) else {
                    return self.fail("unsupported mode");
                };
                self.checked(run, to, Class::Narrow, &[(a, ty), (members, Ty::B32)])?
            }
            ("redux", [to, a, members]) if synced => {
                let operation =
                    opcode.take_any(&["add", "min", "max", "and", "or", "xor"]).unwrap_or_default();
                let Some(run) = sync::redux(operation, opcode.ty(0).unwrap_or(Ty::B32)) else {
                    return self.fail("unsupported operation");
                };
                self.checked(run, to, Class::Narrow, &[(a, Ty::B32), (members, Ty::B32)])?
            }
            ("activemask", [to]) => self.checked(sync::active_mask, to, Class::Narrow, &[])?,
            ("elect", [to, members]) if synced => {
                self.checked(sync::elect, to, Class::Narrow, &[(members, Ty::B32)])?
            }
            ("movmatrix", [to, from]) if synced => {
                if !(opcode.take("aligned") && opcode.take("m8n8") && opcode.take("trans")) {
                    return self.fail("unsupported form");
                }
                self.checked(matrix::move_transposed, to, Class::Narrow, &[(from, Ty::B32)])?
            }
            ("ldmatrix", [to, from]) if synced => self.load_matrix(opcode, to, from)?,
            ("mma", [d, a, b, c]) if synced => self.multiply(opcode, [d, a, b, c])?,
            _ => {
                if synced {
                    opcode.modifiers.insert(0, "sync".into());
                }
                return Ok(false);
            }
        };
        Ok(done)
    }

    /// An instruction with register sources that may find a fault.
    fn checked(
        &mut self,
        run: Handler,
        to: &Operand,
        class: Class,
        sources: &[(&Operand, Ty)],
    ) -> Result<bool> {
        let mut slots = Vec::new();
        for &(operand, ty) in sources {
            slots.push(self.source(operand, ty)?);
        }
        let mut inst = Inst::new(Flow::Checked(run), self.line);
        slots.into_iter().for_each(|slot| inst.push_source(slot));
        match to {
            Operand::Pair(first, second) => {
                let (first, second) =
                    (self.target(first, class)?, self.target(second, Class::Pred)?);
                inst.push_target(first);
                inst.push_target(second);
            }
            other => {
                let slot = self.target(other, class)?;
                inst.push_target(slot);
            }
        }
        self.push(inst);
        Ok(true)
    }

    fn load_matrix(&mut self, opcode: &mut Opcode, to: &Operand, from: &Operand) -> Result<bool> {
        let shape = opcode.take("aligned")
            && opcode.take("m8n8")
            && opcode.take_any(&["shared", "shared::cta"]).is_some();
        if !shape || opcode.ty(0) != Some(Ty::B16) {
            return self.fail("unsupported form");
        }
        let count = match opcode.take_any(&["x1", "x2", "x4"]) {
            Some("x1") => 1,
            Some("x2") => 2,
            Some(_) => 4,
            None => return self.fail("unsupported number of tiles"),
        };
        let (base, offset, _) = self.memory(from)?;
        let mut inst = Inst::new(Flow::Checked(matrix::load), self.line);
        inst.imm = offset;
        inst.access.count = count;
        inst.access.signed = opcode.take("trans");
        inst.push_source(base);
        let parts = match to {
            Operand::Vector(parts) => parts.as_slice(),
            other => std::slice::from_ref(other),
        };
        if parts.len() != usize::from(count) {
            return self.fail("a vector of another length than the number of tiles");
        }
        for part in parts {
            let slot = self.target(part, Class::Narrow)?;
            inst.push_target(slot);
        }
        self.grain(Space::Shared, 16);
        self.push(inst);
        Ok(true)
    }

    /// `mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32`, and with accumulators of f16
    fn multiply(&mut self, opcode: &mut Opcode, operands: [&Operand; 4]) -> Result<bool> {
        let layout = opcode.take("aligned") && opcode.take("row") && opcode.take("col");
        let k = match opcode.take_any(&["m16n8k16", "m16n8k8", "m16n8k4"]) {
            Some("m16n8k16") => 16,
            Some("m16n8k8") => 8,
            Some(_) => 4,
            None => return self.fail("unsupported shape"),
        };
        let &[sums, a, b, added] = opcode.types.as_slice() else {
            return self.fail("unsupported types");
        };
        let selected = mma::select(k, a, sums).filter(|_| layout && a == b && added == sums);
        let Some(form) = selected else { return self.fail("unsupported form") };
        let mut inst = Inst::new(Flow::Checked(form.run), self.line);
        let [d, a, b, c] = operands;
        let sum = if sums == Ty::F32 { Ty::F32 } else { Ty::B32 };
        for (operand, count, ty) in [
            (a, form.a_registers, Ty::B32),
            (b, form.a_registers / 2, Ty::B32),
            (c, form.sums, sum),
        ] {
            let parts = match operand {
                Operand::Vector(parts) => parts.as_slice(),
                other => std::slice::from_ref(other),
            };
            if parts.len() != count {
                return self.fail("a fragment of another size");
            }
            for part in parts {
                let slot = self.source(part, ty)?;
                inst.push_source(slot);
            }
        }
        let Operand::Vector(parts) = d else { return self.fail("a fragment of another size") };
        for part in parts {
            let slot = self.target(part, Class::Narrow)?;
            inst.push_target(slot);
        }
        if usize::from(inst.targets) != form.sums {
            return self.fail("a fragment of another size");
        }
        self.push(inst);
        Ok(true)
    }
}

//! Decoding of moves of vectors, and of conversions between address spaces.

use super::{Lower, Result};
use crate::exec::ops::Opcode;
use crate::ptx::ast::Operand;
use crate::ptx::program::{Flow, Inst};
use crate::ptx::types::{Class, Ty};

impl Lower<'_> {
    /// `mov` with vectors, and `cvta`.
    pub(super) fn moves(&mut self, opcode: &mut Opcode, operands: &[Operand]) -> Result<bool> {
        match (opcode.name.as_str(), operands) {
            ("mov", [Operand::Vector(parts), from]) => self.unpack(opcode.ty(0), parts, from)?,
            ("mov", [to, Operand::Vector(parts)]) => self.pack(opcode.ty(0), to, parts)?,
            ("cvta", [to, from]) => self.convert_address(opcode, to, from)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(super) fn part(&self, ty: Option<Ty>, parts: usize) -> Result<(Ty, Ty, u32)> {
        match (ty.map(Ty::bytes), parts) {
            (Some(4), 2) => Ok((Ty::B32, Ty::B16, 16)),
            (Some(8), 2) => Ok((Ty::B64, Ty::B32, 32)),
            (Some(8), 4) => Ok((Ty::B64, Ty::B16, 16)),
            (Some(4), 4) => Ok((Ty::B32, Ty::B8, 8)),
            (Some(2), 2) => Ok((Ty::B16, Ty::B8, 8)),
            _ => self.fail("unsupported vector"),
        }
    }

    pub(super) fn unpack(
        &mut self,
        ty: Option<Ty>,
        parts: &[Operand],
        from: &Operand,
    ) -> Result<()> {
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

    pub(super) fn pack(&mut self, ty: Option<Ty>, to: &Operand, parts: &[Operand]) -> Result<()> {
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
    pub(super) fn convert_address(
        &mut self,
        opcode: &mut Opcode,
        to: &Operand,
        from: &Operand,
    ) -> Result<()> {
        let back = opcode.take("to");
        let window = match opcode.take_any(&[
            "global",
            "const",
            "shared",
            "shared::cta",
            "local",
            "param",
        ]) {
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
}

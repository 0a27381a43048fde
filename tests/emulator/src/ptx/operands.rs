//! Operands to slots: registers keep theirs, constants and special registers become presets.

use std::collections::HashMap;

use super::PtxError;
use super::ast::{Operand, Place};
use super::decode::Lower;
use super::program::{Flow, Inst, LaneMask, Preset, Slot, Special};
use super::types::{Class, Ty};

type Result<T> = std::result::Result<T, PtxError>;

/// Where a symbol of a kernel lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub(crate) place: Place,
    /// Device address, or the offset in shared, local or parameter memory.
    pub(crate) address: u64,
}

/// Slots handed out so far.
#[derive(Default)]
pub(crate) struct Slots {
    pub(crate) of_register: Vec<Slot>,
    pub(crate) presets: HashMap<(Class, Preset), Slot>,
    next: [u32; 3],
}

impl Slots {
    pub(crate) fn fresh(&mut self, class: Class) -> Slot {
        let next = match class {
            Class::Narrow => &mut self.next[0],
            Class::Wide => &mut self.next[1],
            Class::Pred => &mut self.next[2],
        };
        *next += 1;
        Slot::new(class, *next - 1)
    }

    pub(crate) fn preset(&mut self, class: Class, preset: Preset) -> Slot {
        if let Some(&slot) = self.presets.get(&(class, preset)) {
            return slot;
        }
        let slot = self.fresh(class);
        self.presets.insert((class, preset), slot);
        slot
    }

    /// A constant, cut to the width of `ty`.
    pub(crate) fn value(&mut self, ty: Ty, value: u64) -> Slot {
        let value = match ty.bytes() {
            0 => u64::from(value != 0),
            8.. => value,
            bytes => value & (u64::MAX >> (64 - 8 * bytes)),
        };
        self.preset(ty.class(), Preset::Value(value))
    }
}

impl Lower<'_> {
    /// A source of type `ty`.
    pub(super) fn source(&mut self, operand: &Operand, ty: Ty) -> Result<Slot> {
        match operand {
            Operand::Register(register) => {
                let slot = self.slots.of_register[*register as usize];
                if slot.class() != ty.class() {
                    return self.fail(format!("a register of another size than {ty:?}"));
                }
                Ok(slot)
            }
            Operand::Not(register) => {
                let from = self.slots.of_register[*register as usize];
                let to = self.slots.fresh(Class::Pred);
                let mut inst = Inst::new(
                    Flow::Plain(|cx, i, mask| {
                        cx.warp.registers.set_pred(i.d[0], !cx.warp.registers.pred(i.s[0]), mask)
                    }),
                    self.line,
                );
                inst.push_target(to);
                inst.push_source(from);
                self.code.push(inst);
                Ok(to)
            }
            Operand::Int(value) => Ok(self.slots.value(ty, *value)),
            Operand::Float { bits64, bits32 } => {
                Ok(self.slots.value(ty, if ty.bytes() == 8 { *bits64 } else { u64::from(*bits32) }))
            }
            Operand::Special(name) => self.special(name, ty),
            Operand::Symbol(name, offset) => {
                let symbol = self.symbol(name)?;
                Ok(self.slots.value(ty, symbol.address.wrapping_add_signed(*offset)))
            }
            other => self.fail(format!("unsupported operand {other:?}")),
        }
    }

    /// A source that may be a register wider than its type (`cvt` allows it): its low bits.
    pub(super) fn low_part(&mut self, operand: &Operand, ty: Ty) -> Result<Slot> {
        let Operand::Register(register) = operand else { return self.source(operand, ty) };
        let wide = self.slots.of_register[*register as usize];
        if wide.class() != Class::Wide || ty.class() != Class::Narrow {
            return self.source(operand, ty);
        }
        let mut inst = Inst::new(Flow::Plain(crate::exec::special::unpack), self.line);
        let low = self.slots.fresh(Class::Narrow);
        inst.imm = 32;
        inst.push_source(wide);
        inst.push_target(low);
        self.code.push(inst);
        Ok(low)
    }

    /// A destination of a load, which may be wider than what is loaded.
    pub(super) fn loaded(&mut self, operand: &Operand, class: Class) -> Result<Slot> {
        match operand {
            Operand::Register(register) => {
                let slot = self.slots.of_register[*register as usize];
                let is_wider = class == Class::Narrow && slot.class() == Class::Wide;
                if is_wider { Ok(slot) } else { self.target(operand, class) }
            }
            other => self.target(other, class),
        }
    }

    /// A destination in the file of `class`; `_` is a register that is never read.
    pub(super) fn target(&mut self, operand: &Operand, class: Class) -> Result<Slot> {
        match operand {
            Operand::Register(register) => {
                let slot = self.slots.of_register[*register as usize];
                if slot.class() != class {
                    return self.fail("a destination of another size");
                }
                Ok(slot)
            }
            Operand::Sink => Ok(self.slots.fresh(class)),
            other => self.fail(format!("unsupported destination {other:?}")),
        }
    }

    /// `[base+bytes]`: base slot, bytes, and the symbol if it is one.
    pub(super) fn memory(&mut self, operand: &Operand) -> Result<(Slot, i64, Option<Symbol>)> {
        let Operand::Memory(base, offset) = operand else {
            return self.fail("expected an address in brackets");
        };
        match base.as_ref() {
            Operand::Register(register) => {
                let slot = self.slots.of_register[*register as usize];
                if slot.class() == Class::Pred {
                    self.fail("a predicate as address")
                } else {
                    Ok((slot, *offset, None))
                }
            }
            Operand::Symbol(name, _) => {
                let symbol = self.symbol(name)?;
                Ok((self.slots.value(Ty::U64, symbol.address), *offset, Some(symbol)))
            }
            Operand::Int(value) => Ok((self.slots.value(Ty::U64, *value), *offset, None)),
            other => self.fail(format!("unsupported address {other:?}")),
        }
    }

    pub(super) fn symbol(&self, name: &str) -> Result<Symbol> {
        match self.symbols.get(name) {
            Some(symbol) => Ok(*symbol),
            None => self.fail(format!("unknown symbol `{name}`")),
        }
    }

    fn special(&mut self, name: &str, ty: Ty) -> Result<Slot> {
        if let Some(special) = fixed(name) {
            return Ok(self.slots.preset(ty.class(), Preset::Special(special)));
        }
        let value = match name {
            "WARP_SZ" => Some(32),
            _ => None,
        };
        if let Some(value) = value {
            return Ok(self.slots.value(ty, value));
        }
        if !matches!(
            name,
            "%clock"
                | "%clock64"
                | "%clock_hi"
                | "%globaltimer"
                | "%globaltimer_lo"
                | "%globaltimer_hi"
        ) {
            return self.fail(format!("unsupported special register `{name}`"));
        }
        let to = self.slots.fresh(ty.class());
        let shift = if name.ends_with("_hi") { 32 } else { 0 };
        let mut inst = Inst::new(Flow::Plain(crate::exec::special::clock), self.line);
        inst.push_target(to);
        inst.imm = shift;
        self.code.push(inst);
        Ok(to)
    }
}

fn fixed(name: &str) -> Option<Special> {
    let (base, axis) = match name.rsplit_once('.') {
        Some((base, "x")) => (base, 0),
        Some((base, "y")) => (base, 1),
        Some((base, "z")) => (base, 2),
        _ => (name, 3),
    };
    Some(match (base, axis) {
        ("%tid", 0..3) => Special::Tid(axis),
        ("%ntid", 0..3) => Special::Ntid(axis),
        ("%ctaid", 0..3) => Special::Ctaid(axis),
        ("%nctaid", 0..3) => Special::Nctaid(axis),
        ("%clusterid", 0..3) => Special::ClusterId(axis),
        ("%nclusterid", 0..3) => Special::ClusterCount(axis),
        ("%cluster_ctaid", 0..3) => Special::ClusterCtaid(axis),
        ("%cluster_nctaid", 0..3) => Special::ClusterNctaid(axis),
        ("%cluster_ctarank", _) => Special::ClusterRank,
        ("%cluster_nctarank", _) => Special::ClusterRanks,
        ("%laneid", _) => Special::Lane,
        ("%warpid", _) => Special::Warp,
        ("%nwarpid", _) => Special::WarpCount,
        ("%lanemask_eq", _) => Special::LaneMask(LaneMask::Eq),
        ("%lanemask_le", _) => Special::LaneMask(LaneMask::Le),
        ("%lanemask_lt", _) => Special::LaneMask(LaneMask::Lt),
        ("%lanemask_ge", _) => Special::LaneMask(LaneMask::Ge),
        ("%lanemask_gt", _) => Special::LaneMask(LaneMask::Gt),
        ("%smid", _) => Special::Sm,
        ("%nsmid", _) => Special::SmCount,
        ("%gridid", _) => Special::GridId,
        ("%dynamic_smem_size", _) => Special::DynamicShared,
        ("%total_smem_size", _) => Special::TotalShared,
        _ => return None,
    })
}

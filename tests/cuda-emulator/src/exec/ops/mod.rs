//! Register-to-register instructions: from an opcode and its types to a handler.

mod compare;
mod convert;
mod float;
mod float16;
mod integer;
mod logic;
pub(crate) mod rounding;

use crate::ptx::program::Handler;
use crate::ptx::types::Ty;

/// An opcode taken apart: `fma.rn.ftz.f32` has modifiers `rn`, `ftz` and type `f32`.
#[derive(Clone, Debug)]
pub(crate) struct Opcode {
    pub(crate) name: String,
    pub(crate) modifiers: Vec<String>,
    pub(crate) types: Vec<Ty>,
}

impl Opcode {
    pub(crate) fn parse(parts: &[String]) -> Opcode {
        let mut opcode = Opcode {
            name: parts.first().cloned().unwrap_or_default(),
            modifiers: Vec::new(),
            types: Vec::new(),
        };
        for part in parts.iter().skip(1) {
            match Ty::parse(part) {
                Some(ty) => opcode.types.push(ty),
                None => opcode.modifiers.push(part.clone()),
            }
        }
        opcode
    }

    /// Takes a modifier off. What nobody takes makes the instruction unsupported: nothing is skipped in silence.
    pub(crate) fn take(&mut self, modifier: &str) -> bool {
        let at = self.modifiers.iter().position(|m| m == modifier);
        at.map(|at| self.modifiers.remove(at)).is_some()
    }

    /// Takes the first modifier that is one of `choices`.
    pub(crate) fn take_any<'a>(&mut self, choices: &[&'a str]) -> Option<&'a str> {
        choices.iter().find(|choice| self.take(choice)).copied()
    }

    /// Type number `at`.
    pub(crate) fn ty(&self, at: usize) -> Option<Ty> {
        self.types.get(at).copied()
    }
}

/// A handler and the types of the operands it expects.
pub(crate) struct Shape {
    pub(crate) run: Handler,
    pub(crate) targets: Vec<Ty>,
    pub(crate) sources: Vec<Ty>,
    /// Becomes `Inst::imm`.
    pub(crate) constant: i64,
}

impl Shape {
    /// All operands of one type.
    fn uniform(run: Handler, ty: Ty, sources: usize) -> Shape {
        Shape { run, targets: vec![ty], sources: vec![ty; sources], constant: 0 }
    }

    fn new(run: Handler, target: Ty, sources: &[Ty]) -> Shape {
        Shape { run, targets: vec![target], sources: sources.to_vec(), constant: 0 }
    }
}

/// The shape of a register-to-register instruction; `None` when it is not supported.
pub(crate) fn select(opcode: &mut Opcode) -> Option<Shape> {
    integer::select(opcode)
        .or_else(|| logic::select(opcode))
        .or_else(|| float::select(opcode))
        .or_else(|| float16::select(opcode))
        .or_else(|| convert::select(opcode))
        .or_else(|| compare::select(opcode))
}

/// A handler of one source.
macro_rules! h1 {
    ($a:ty => $r:ty, $f:expr) => {
        (|cx: &mut $crate::exec::Cx<'_>, i: &$crate::ptx::program::Inst, mask: u32| {
            $crate::exec::lanes::map1::<$a, $r>(cx, i, mask, $f)
        }) as $crate::ptx::program::Handler
    };
}

/// A handler of two sources.
macro_rules! h2 {
    ($a:ty, $b:ty => $r:ty, $f:expr) => {
        (|cx: &mut $crate::exec::Cx<'_>, i: &$crate::ptx::program::Inst, mask: u32| {
            $crate::exec::lanes::map2::<$a, $b, $r>(cx, i, mask, $f)
        }) as $crate::ptx::program::Handler
    };
}

/// A handler of three sources.
macro_rules! h3 {
    ($a:ty, $b:ty, $c:ty => $r:ty, $f:expr) => {
        (|cx: &mut $crate::exec::Cx<'_>, i: &$crate::ptx::program::Inst, mask: u32| {
            $crate::exec::lanes::map3::<$a, $b, $c, $r>(cx, i, mask, $f)
        }) as $crate::ptx::program::Handler
    };
}

use {h1, h2, h3};

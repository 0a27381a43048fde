//! Register-to-register instructions: from an opcode and its types to a handler.

mod compare;
mod convert;
mod float;
mod float16;
mod integer;
mod logic;
pub(crate) mod rounding;

use half::{bf16, f16};

use super::Cx;
use super::lanes::{LANES, lanes};
use super::memory::blend;
use crate::ptx::program::{Handler, Inst, Scalar, Slot};
use crate::ptx::types::{Class, Ty};

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

    /// Takes a modifier off. A modifier that is left over makes the instruction unsupported: none
    /// is ignored.
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

/// Implementation of an instruction: a loop over the lanes for frequent instructions, or a function
/// of one lane's values for all others. (A loop for each of the hundreds of forms would take
/// minutes to compile.)
#[derive(Clone, Copy)]
pub(crate) enum Body {
    Lanes(Handler),
    Lane(Scalar),
    /// `setp` and `set` by a scalar function.
    Compare(Scalar),
    Set(Scalar),
}

impl Body {
    /// Handler and scalar function as an instruction keeps them.
    pub(crate) fn parts(self) -> (Handler, Scalar) {
        match self {
            Body::Lanes(handler) => (handler, Scalar::None),
            Body::Lane(scalar) => (each_lane, scalar),
            Body::Compare(scalar) => (compare::scalar_predicates, scalar),
            Body::Set(scalar) => (compare::scalar_set, scalar),
        }
    }
}

/// Calls the instruction's scalar function for every lane.
fn each_lane(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    let mut values = [0; LANES];
    let read = |slot: Slot| match slot.class() {
        Class::Wide => cx.warp.registers.wide[slot.index()],
        _ => cx.warp.registers.narrow[slot.index()].map(u64::from),
    };
    match i.scalar {
        Scalar::None => {}
        Scalar::One(f) => {
            let a = read(i.s[0]);
            lanes(mask).for_each(|lane| values[lane] = f(a[lane]));
        }
        Scalar::Two(f) => {
            let (a, b) = (read(i.s[0]), read(i.s[1]));
            lanes(mask).for_each(|lane| values[lane] = f(a[lane], b[lane]));
        }
        Scalar::Three(f) => {
            let (a, b, c) = (read(i.s[0]), read(i.s[1]), read(i.s[2]));
            lanes(mask).for_each(|lane| values[lane] = f(a[lane], b[lane], c[lane]));
        }
    }
    match i.d[0].class() {
        Class::Pred => {
            let bits =
                lanes(mask).fold(0, |bits, lane| bits | u32::from(values[lane] != 0) << lane);
            cx.warp.registers.set_pred(i.d[0], bits, mask);
        }
        Class::Wide => blend(&mut cx.warp.registers.wide[i.d[0].index()], &values, mask),
        Class::Narrow => blend(
            &mut cx.warp.registers.narrow[i.d[0].index()],
            &values.map(|value| value as u32),
            mask,
        ),
    }
}

/// A value as the 64 bits that a scalar function passes.
pub(crate) trait Bits {
    fn of_bits(bits: u64) -> Self;
    fn to_word(self) -> u64;
}

macro_rules! bits {
    ($($ty:ty: $from:expr, $to:expr;)*) => {
        $(impl Bits for $ty {
            #[inline(always)]
            fn of_bits(bits: u64) -> $ty {
                ($from)(bits)
            }

            #[inline(always)]
            fn to_word(self) -> u64 {
                ($to)(self)
            }
        })*
    };
}

bits! {
    u8: |b| b as u8, u64::from;
    u16: |b| b as u16, u64::from;
    u32: |b| b as u32, u64::from;
    u64: |b| b, |v| v;
    i8: |b| b as i8, |v| v as u32 as u64;
    i16: |b| b as i16, |v| v as u32 as u64;
    i32: |b| b as i32, |v| v as u32 as u64;
    i64: |b| b as i64, |v| v as u64;
    f32: |b| f32::from_bits(b as u32), |v: f32| u64::from(v.to_bits());
    f64: f64::from_bits, f64::to_bits;
    f16: |b| f16::from_bits(b as u16), |v: f16| u64::from(v.to_bits());
    bf16: |b| bf16::from_bits(b as u16), |v: bf16| u64::from(v.to_bits());
    bool: |b| b != 0, u64::from;
}

/// A body and the types of the operands it expects.
pub(crate) struct OperandShape {
    pub(crate) body: Body,
    pub(crate) targets: Vec<Ty>,
    pub(crate) sources: Vec<Ty>,
    /// Becomes `Inst::imm`.
    pub(crate) constant: i64,
}

impl OperandShape {
    /// All operands of one type.
    fn uniform(body: Body, ty: Ty, sources: usize) -> OperandShape {
        OperandShape { body, targets: vec![ty], sources: vec![ty; sources], constant: 0 }
    }

    fn new(body: Body, target: Ty, sources: &[Ty]) -> OperandShape {
        OperandShape { body, targets: vec![target], sources: sources.to_vec(), constant: 0 }
    }
}

/// The shape of a register-to-register instruction; `None` when it is not supported.
pub(crate) fn select(opcode: &mut Opcode) -> Option<OperandShape> {
    integer::select(opcode)
        .or_else(|| logic::select(opcode))
        .or_else(|| float::select(opcode))
        .or_else(|| float16::select(opcode))
        .or_else(|| convert::select(opcode))
        .or_else(|| compare::select(opcode))
}

/// A body that is a loop: one, two or three sources.
macro_rules! many {
    ($a:ty => $r:ty, $f:expr) => {
        $crate::exec::ops::Body::Lanes(|cx, i, mask| {
            $crate::exec::lanes::map1::<$a, $r>(cx, i, mask, $f)
        })
    };
    ($a:ty, $b:ty => $r:ty, $f:expr) => {
        $crate::exec::ops::Body::Lanes(|cx, i, mask| {
            $crate::exec::lanes::map2::<$a, $b, $r>(cx, i, mask, $f)
        })
    };
    ($a:ty, $b:ty, $c:ty => $r:ty, $f:expr) => {
        $crate::exec::ops::Body::Lanes(|cx, i, mask| {
            $crate::exec::lanes::map3::<$a, $b, $c, $r>(cx, i, mask, $f)
        })
    };
}

/// Calls of a typed function with 64 bits for each value.
#[inline(always)]
fn call1<A: Bits, R: Bits>(a: u64, f: impl Fn(A) -> R) -> u64 {
    f(A::of_bits(a)).to_word()
}

#[inline(always)]
fn call2<A: Bits, B: Bits, R: Bits>(a: u64, b: u64, f: impl Fn(A, B) -> R) -> u64 {
    f(A::of_bits(a), B::of_bits(b)).to_word()
}

#[inline(always)]
fn call3<A: Bits, B: Bits, C: Bits, R: Bits>(
    a: u64,
    b: u64,
    c: u64,
    f: impl Fn(A, B, C) -> R,
) -> u64 {
    f(A::of_bits(a), B::of_bits(b), C::of_bits(c)).to_word()
}

/// A body that is a function of one lane.
macro_rules! lane {
    ($a:ty => $r:ty, $f:expr) => {
        $crate::exec::ops::Body::Lane($crate::ptx::program::Scalar::One(|a| {
            $crate::exec::ops::call1::<$a, $r>(a, $f)
        }))
    };
    ($a:ty, $b:ty => $r:ty, $f:expr) => {
        $crate::exec::ops::Body::Lane($crate::ptx::program::Scalar::Two(|a, b| {
            $crate::exec::ops::call2::<$a, $b, $r>(a, b, $f)
        }))
    };
    ($a:ty, $b:ty, $c:ty => $r:ty, $f:expr) => {
        $crate::exec::ops::Body::Lane($crate::ptx::program::Scalar::Three(|a, b, c| {
            $crate::exec::ops::call3::<$a, $b, $c, $r>(a, b, c, $f)
        }))
    };
}

use {lane, many};

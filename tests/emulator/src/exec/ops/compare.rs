//! `setp` and `set`.

use half::{bf16, f16};

use super::{Body, Opcode, OperandShape, lane};
use crate::exec::Cx;
use crate::exec::lanes::{LANES, Lane, bits2};
use crate::ptx::program::{Handler, Inst, Scalar, Slot};
use crate::ptx::types::{Class, Ty};

/// Comparison names; `lo` and its like are the unsigned ones of bit types.
const COMPARISONS: [&str; 18] = [
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu",
    "geu", "num", "nan",
];

/// How `setp` combines its result with a predicate: `Inst::imm`.
const COMBINE: [&str; 3] = ["and", "or", "xor"];

pub(super) fn select(opcode: &mut Opcode) -> Option<OperandShape> {
    let is_set = opcode.name == "set";
    if opcode.name != "setp" && !is_set {
        return None;
    }
    let ty = *opcode.types.last()?;
    let comparison = opcode.take_any(&COMPARISONS)?;
    let combine = opcode.take_any(&COMBINE);
    opcode.take("ftz");
    let constant = combine
        .and_then(|name| COMBINE.iter().position(|&c| c == name))
        .map_or(0, |at| at as i64 + 1);
    if is_set {
        let result = opcode.ty(0)?;
        let yes = match result {
            Ty::U32 | Ty::S32 if constant == 0 => i64::from(u32::MAX),
            Ty::F32 if constant == 0 => i64::from(1f32.to_bits()),
            _ => return None,
        };
        let body = Body::Set(function(comparison, ty)?);
        return Some(OperandShape {
            body,
            targets: vec![result],
            sources: vec![ty, ty],
            constant: yes,
        });
    }
    let mut sources = vec![ty, ty];
    if combine.is_some() {
        sources.push(Ty::Pred);
    }
    let body = match frequent(comparison, ty) {
        Some(run) => Body::Lanes(run),
        None => Body::Compare(function(comparison, ty)?),
    };
    Some(OperandShape { body, targets: vec![Ty::Pred], sources, constant })
}

/// `setp`'s result from the comparison's bits: combined with source 2, and its opposite for a
/// second destination.
fn predicates(cx: &mut Cx<'_>, i: &Inst, mask: u32, bits: u32) {
    let with = |bits: u32| match i.imm {
        0 => bits,
        1 => bits & cx.warp.registers.pred(i.s[2]),
        2 => bits | cx.warp.registers.pred(i.s[2]),
        _ => bits ^ cx.warp.registers.pred(i.s[2]),
    };
    let (p, q) = (with(bits), with(!bits));
    cx.warp.registers.set_pred(i.d[0], p, mask);
    if i.targets > 1 {
        cx.warp.registers.set_pred(i.d[1], q, mask);
    }
}

fn bits(cx: &Cx<'_>, i: &Inst) -> u32 {
    let read = |slot: Slot| match slot.class() {
        Class::Wide => cx.warp.registers.wide[slot.index()],
        _ => cx.warp.registers.narrow[slot.index()].map(u64::from),
    };
    let (a, b) = (read(i.s[0]), read(i.s[1]));
    let Scalar::Two(f) = i.scalar else { return 0 };
    (0..LANES).fold(0, |bits, lane| bits | u32::from(f(a[lane], b[lane]) != 0) << lane)
}

/// `setp` by the instruction's scalar function.
pub(super) fn scalar_predicates(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    let bits = bits(cx, i);
    predicates(cx, i, mask, bits);
}

/// `set`: `imm` where the comparison holds, else 0.
pub(super) fn scalar_set(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    let (bits, yes) = (bits(cx, i), i.imm as u32);
    let values: [u32; LANES] =
        std::array::from_fn(|lane| if bits >> lane & 1 == 1 { yes } else { 0 });
    u32::write(&mut cx.warp.registers, i.d[0], &values, mask);
}

/// Loops for the comparisons that loops and masks are made of.
fn frequent(comparison: &str, ty: Ty) -> Option<Handler> {
    macro_rules! compare {
        ($ty:ty, $f:expr) => {
            Some(|cx: &mut Cx<'_>, i: &Inst, mask: u32| {
                let bits = bits2::<$ty, $ty>(cx, i, $f);
                predicates(cx, i, mask, bits);
            })
        };
    }
    match (comparison, ty) {
        ("eq", Ty::S32 | Ty::U32 | Ty::B32) => compare!(u32, |a, b| a == b),
        ("ne", Ty::S32 | Ty::U32 | Ty::B32) => compare!(u32, |a, b| a != b),
        ("lt", Ty::S32) => compare!(i32, |a, b| a < b),
        ("le", Ty::S32) => compare!(i32, |a, b| a <= b),
        ("gt", Ty::S32) => compare!(i32, |a, b| a > b),
        ("ge", Ty::S32) => compare!(i32, |a, b| a >= b),
        ("lt", Ty::U32) => compare!(u32, |a, b| a < b),
        ("le", Ty::U32) => compare!(u32, |a, b| a <= b),
        ("gt", Ty::U32) => compare!(u32, |a, b| a > b),
        ("ge", Ty::U32) => compare!(u32, |a, b| a >= b),
        ("eq", Ty::S64 | Ty::U64) => compare!(u64, |a, b| a == b),
        ("ne", Ty::S64 | Ty::U64) => compare!(u64, |a, b| a != b),
        ("lt", Ty::U64) => compare!(u64, |a, b| a < b),
        ("lt", Ty::S64) => compare!(i64, |a, b| a < b),
        ("ge", Ty::S64) => compare!(i64, |a, b| a >= b),
        ("lt", Ty::F32) => compare!(f32, |a, b| a < b),
        ("le", Ty::F32) => compare!(f32, |a, b| a <= b),
        ("gt", Ty::F32) => compare!(f32, |a, b| a > b),
        ("ge", Ty::F32) => compare!(f32, |a, b| a >= b),
        _ => None,
    }
}

macro_rules! ordered {
    ($comparison:expr, $ty:ty) => {
        match $comparison {
            "eq" => lane!($ty, $ty => bool, |a: $ty, b: $ty| a == b),
            "ne" => lane!($ty, $ty => bool, |a: $ty, b: $ty| a != b),
            "lt" | "lo" => lane!($ty, $ty => bool, |a: $ty, b: $ty| a < b),
            "le" | "ls" => lane!($ty, $ty => bool, |a: $ty, b: $ty| a <= b),
            "gt" | "hi" => lane!($ty, $ty => bool, |a: $ty, b: $ty| a > b),
            "ge" | "hs" => lane!($ty, $ty => bool, |a: $ty, b: $ty| a >= b),
            _ => return None,
        }
    };
}

macro_rules! floating {
    ($comparison:expr, $ty:ty) => {
        match $comparison {
            "eq" => lane!($ty, $ty => bool, |a: $ty, b: $ty| a == b),
            // Ordered: false when either is NaN.
            "ne" => lane!($ty, $ty => bool, |a: $ty, b: $ty| a < b || a > b),
            "lt" => lane!($ty, $ty => bool, |a: $ty, b: $ty| a < b),
            "le" => lane!($ty, $ty => bool, |a: $ty, b: $ty| a <= b),
            "gt" => lane!($ty, $ty => bool, |a: $ty, b: $ty| a > b),
            "ge" => lane!($ty, $ty => bool, |a: $ty, b: $ty| a >= b),
            "equ" => lane!($ty, $ty => bool, |a: $ty, b: $ty| !(a < b || a > b)),
            "neu" => lane!($ty, $ty => bool, |a: $ty, b: $ty| a != b),
            "ltu" => lane!($ty, $ty => bool, |a: $ty, b: $ty| !(a >= b)),
            "leu" => lane!($ty, $ty => bool, |a: $ty, b: $ty| !(a > b)),
            "gtu" => lane!($ty, $ty => bool, |a: $ty, b: $ty| !(a <= b)),
            "geu" => lane!($ty, $ty => bool, |a: $ty, b: $ty| !(a < b)),
            "num" => lane!($ty, $ty => bool, |a: $ty, b: $ty| !a.is_nan() && !b.is_nan()),
            "nan" => lane!($ty, $ty => bool, |a: $ty, b: $ty| a.is_nan() || b.is_nan()),
            _ => return None,
        }
    };
}

// Clippy's simplification differs for NaN.
#[allow(clippy::neg_cmp_op_on_partial_ord, clippy::nonminimal_bool, clippy::double_comparisons)]
fn function(comparison: &str, ty: Ty) -> Option<Scalar> {
    let body = match ty {
        Ty::U16 | Ty::B16 => ordered!(comparison, u16),
        Ty::U32 | Ty::B32 => ordered!(comparison, u32),
        Ty::U64 | Ty::B64 => ordered!(comparison, u64),
        Ty::S16 => ordered!(comparison, i16),
        Ty::S32 => ordered!(comparison, i32),
        Ty::S64 => ordered!(comparison, i64),
        Ty::F32 => floating!(comparison, f32),
        Ty::F64 => floating!(comparison, f64),
        Ty::F16 => floating!(comparison, f16),
        Ty::BF16 => floating!(comparison, bf16),
        _ => return None,
    };
    Some(body.parts().1)
}

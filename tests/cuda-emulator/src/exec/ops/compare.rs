//! `setp` and `set`.

use half::f16;

use super::{Opcode, Shape};
use crate::exec::Cx;
use crate::exec::lanes::{LANES, Lane, bits2};
use crate::ptx::program::{Handler, Inst};
use crate::ptx::types::Ty;

/// Comparison names; `lo` and its like are the unsigned ones of bit types.
const COMPARISONS: [&str; 18] = [
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu",
    "geu", "num", "nan",
];

/// How `setp` combines its result with a predicate: `Inst::imm`.
const COMBINE: [&str; 3] = ["and", "or", "xor"];

pub(super) fn select(opcode: &mut Opcode) -> Option<Shape> {
    let is_set = opcode.name == "set";
    if opcode.name != "setp" && !is_set {
        return None;
    }
    let ty = *opcode.types.last()?;
    let comparison = opcode.take_any(&COMPARISONS)?;
    let combine = opcode.take_any(&COMBINE);
    opcode.take("ftz");
    let bits = comparator(comparison, ty)?;
    let constant = combine
        .and_then(|name| COMBINE.iter().position(|&c| c == name))
        .map_or(0, |at| at as i64 + 1);
    if is_set {
        let result = opcode.ty(0)?;
        let run = match (result, constant) {
            (Ty::U32 | Ty::S32, 0) => bits.mask,
            (Ty::F32, 0) => bits.one,
            _ => return None,
        };
        return Some(Shape::new(run, result, &[ty, ty]));
    }
    let mut sources = vec![ty, ty];
    if combine.is_some() {
        sources.push(Ty::Pred);
    }
    Some(Shape { run: bits.pred, targets: vec![Ty::Pred], sources, constant })
}

/// The three things that can be done with a comparison's bits.
struct Handlers {
    pred: Handler,
    /// All ones or zero.
    mask: Handler,
    /// 1.0 or 0.0.
    one: Handler,
}

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

fn spread(cx: &mut Cx<'_>, i: &Inst, mask: u32, bits: u32, yes: u32) {
    let values: [u32; LANES] =
        std::array::from_fn(|lane| if bits >> lane & 1 == 1 { yes } else { 0 });
    u32::write(&mut cx.warp.registers, i.d[0], &values, mask);
}

macro_rules! handlers {
    ($ty:ty, $f:expr) => {
        Handlers {
            pred: |cx, i, mask| {
                let bits = bits2::<$ty, $ty>(cx, i, $f);
                predicates(cx, i, mask, bits);
            },
            mask: |cx, i, mask| {
                let bits = bits2::<$ty, $ty>(cx, i, $f);
                spread(cx, i, mask, bits, u32::MAX);
            },
            one: |cx, i, mask| {
                let bits = bits2::<$ty, $ty>(cx, i, $f);
                spread(cx, i, mask, bits, 1f32.to_bits());
            },
        }
    };
}

macro_rules! ordered {
    ($comparison:expr, $ty:ty) => {
        match $comparison {
            "eq" => handlers!($ty, |a, b| a == b),
            "ne" => handlers!($ty, |a, b| a != b),
            "lt" | "lo" => handlers!($ty, |a, b| a < b),
            "le" | "ls" => handlers!($ty, |a, b| a <= b),
            "gt" | "hi" => handlers!($ty, |a, b| a > b),
            "ge" | "hs" => handlers!($ty, |a, b| a >= b),
            _ => return None,
        }
    };
}

macro_rules! floating {
    ($comparison:expr, $ty:ty) => {
        match $comparison {
            "eq" => handlers!($ty, |a, b| a == b),
            // Ordered: false when either is NaN.
            "ne" => handlers!($ty, |a, b| a < b || a > b),
            "lt" => handlers!($ty, |a, b| a < b),
            "le" => handlers!($ty, |a, b| a <= b),
            "gt" => handlers!($ty, |a, b| a > b),
            "ge" => handlers!($ty, |a, b| a >= b),
            "equ" => handlers!($ty, |a, b| !(a < b || a > b)),
            "neu" => handlers!($ty, |a, b| a != b),
            "ltu" => handlers!($ty, |a, b| !(a >= b)),
            "leu" => handlers!($ty, |a, b| !(a > b)),
            "gtu" => handlers!($ty, |a, b| !(a <= b)),
            "geu" => handlers!($ty, |a, b| !(a < b)),
            "num" => handlers!($ty, |a, b| a == a && b == b),
            "nan" => handlers!($ty, |a, b| a != a || b != b),
            _ => return None,
        }
    };
}

#[allow(clippy::neg_cmp_op_on_partial_ord, clippy::nonminimal_bool, clippy::eq_op)]
fn comparator(comparison: &str, ty: Ty) -> Option<Handlers> {
    Some(match ty {
        Ty::U16 | Ty::B16 => ordered!(comparison, u16),
        Ty::U32 | Ty::B32 => ordered!(comparison, u32),
        Ty::U64 | Ty::B64 => ordered!(comparison, u64),
        Ty::S16 => ordered!(comparison, i16),
        Ty::S32 => ordered!(comparison, i32),
        Ty::S64 => ordered!(comparison, i64),
        Ty::F32 => floating!(comparison, f32),
        Ty::F64 => floating!(comparison, f64),
        Ty::F16 => floating!(comparison, f16),
        Ty::BF16 => floating!(comparison, half::bf16),
        _ => return None,
    })
}

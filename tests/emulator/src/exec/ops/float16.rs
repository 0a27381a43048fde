//! f16 and bf16 arithmetic, single and in pairs. Each operation is done once in f64, made sticky
//! where f64 is not exact, and rounded once.

use half::f16;

use super::rounding::{Mode, odd, to_bf16, to_f16, two_sum};
use super::{Body, Opcode, OperandShape, lane};
use crate::exec::atomics::halves;
use crate::ptx::types::Ty;

pub(super) fn select(opcode: &mut Opcode) -> Option<OperandShape> {
    let &[ty] = opcode.types.as_slice() else { return None };
    if !matches!(ty, Ty::F16 | Ty::F16x2 | Ty::BF16 | Ty::BF16x2) {
        return None;
    }
    opcode.take("rn");
    opcode.take("approx");
    let (relu, _, nan) = (opcode.take("relu"), opcode.take("ftz"), opcode.take("NaN"));
    let name = opcode.name.clone();
    match name.as_str() {
        "neg" => Some(OperandShape::uniform(sign(ty, true), ty, 1)),
        "abs" => Some(OperandShape::uniform(sign(ty, false), ty, 1)),
        "ex2" | "tanh" => Some(OperandShape::uniform(function(&name, ty)?, ty, 1)),
        "fma" => Some(OperandShape::uniform(fused(ty, relu), ty, 3)),
        "min" | "max" if nan => None,
        "add" | "sub" | "mul" | "min" | "max" if !relu => {
            Some(OperandShape::uniform(two(&name, ty)?, ty, 2))
        }
        _ => None,
    }
}

fn sign(ty: Ty, negate: bool) -> Body {
    match (ty, negate) {
        (Ty::F16 | Ty::BF16, true) => lane!(u16 => u16, |a| a ^ 0x8000),
        (Ty::F16 | Ty::BF16, false) => lane!(u16 => u16, |a| a & 0x7FFF),
        (_, true) => lane!(u32 => u32, |a| a ^ 0x8000_8000),
        (_, false) => lane!(u32 => u32, |a| a & 0x7FFF_7FFF),
    }
}

#[inline(always)]
fn wide_f16(bits: u16) -> f64 {
    f16::from_bits(bits).to_f64()
}

#[inline(always)]
fn wide_bf16(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
}

#[inline(always)]
fn narrow_f16(value: f64) -> u16 {
    to_f16(value, Mode::Nearest).to_bits()
}

#[inline(always)]
fn narrow_bf16(value: f64) -> u16 {
    to_bf16(value, Mode::Nearest).to_bits()
}

fn function(name: &str, ty: Ty) -> Option<Body> {
    Some(match (name, ty) {
        ("ex2", Ty::F16) => lane!(u16 => u16, |a| narrow_f16(wide_f16(a).exp2())),
        ("ex2", Ty::BF16) => lane!(u16 => u16, |a| narrow_bf16(wide_bf16(a).exp2())),
        ("ex2", Ty::F16x2) => {
            lane!(u32 => u32, |a| halves(a, a, |x, _| narrow_f16(wide_f16(x).exp2())))
        }
        ("ex2", Ty::BF16x2) => {
            lane!(u32 => u32, |a| halves(a, a, |x, _| narrow_bf16(wide_bf16(x).exp2())))
        }
        ("tanh", Ty::F16) => lane!(u16 => u16, |a| narrow_f16(wide_f16(a).tanh())),
        ("tanh", Ty::BF16) => lane!(u16 => u16, |a| narrow_bf16(wide_bf16(a).tanh())),
        ("tanh", Ty::F16x2) => {
            lane!(u32 => u32, |a| halves(a, a, |x, _| narrow_f16(wide_f16(x).tanh())))
        }
        ("tanh", Ty::BF16x2) => {
            lane!(u32 => u32, |a| halves(a, a, |x, _| narrow_bf16(wide_bf16(x).tanh())))
        }
        _ => return None,
    })
}

/// The four types of one operation on f64.
macro_rules! of_type {
    ($ty:expr, $f:expr) => {
        match $ty {
            Ty::F16 => lane!(u16, u16 => u16, |a, b| narrow_f16($f(wide_f16(a), wide_f16(b)))),
            Ty::BF16 => lane!(u16, u16 => u16, |a, b| narrow_bf16($f(wide_bf16(a), wide_bf16(b)))),
            Ty::F16x2 => lane!(
                u32, u32 => u32,
                |a, b| halves(a, b, |x, y| narrow_f16($f(wide_f16(x), wide_f16(y))))),
            _ => lane!(
                u32, u32 => u32,
                |a, b| halves(a, b, |x, y| narrow_bf16($f(wide_bf16(x), wide_bf16(y))))),
        }
    };
}

fn two(name: &str, ty: Ty) -> Option<Body> {
    Some(match name {
        "add" => of_type!(ty, exact_sum),
        "sub" => of_type!(ty, |a: f64, b: f64| exact_sum(a, -b)),
        // At most 22 bits: exact in f64.
        "mul" => of_type!(ty, |a: f64, b: f64| a * b),
        "min" => of_type!(ty, |a: f64, b: f64| if a < b
            || b.is_nan()
            || a == b && a.is_sign_negative()
        {
            a
        } else {
            b
        }),
        "max" => of_type!(ty, |a: f64, b: f64| if a > b
            || b.is_nan()
            || a == b && a.is_sign_positive()
        {
            a
        } else {
            b
        }),
        _ => return None,
    })
}

#[inline(always)]
fn exact_sum(a: f64, b: f64) -> f64 {
    let (sum, error) = two_sum(a, b);
    odd(sum, error)
}

fn fused(ty: Ty, relu: bool) -> Body {
    macro_rules! of_type {
        ($f:expr) => {
            match ty {
                Ty::F16 => lane!(
                    u16, u16, u16 => u16,
                    |a, b, c| narrow_f16($f(wide_f16(a), wide_f16(b), wide_f16(c)))),
                Ty::BF16 => lane!(
                    u16, u16, u16 => u16,
                    |a, b, c| narrow_bf16($f(wide_bf16(a), wide_bf16(b), wide_bf16(c)))),
                Ty::F16x2 => lane!(u32, u32, u32 => u32, |a, b, c| {
                    let one = |shift: u32| {
                        u32::from(
                            narrow_f16(
                            $f(wide_f16((a >> shift) as u16), wide_f16((b >> shift) as u16),
                            wide_f16((c >> shift) as u16))))
                    };
                    one(0) | one(16) << 16
                }),
                _ => lane!(u32, u32, u32 => u32, |a, b, c| {
                    let one = |shift: u32| {
                        u32::from(
                            narrow_bf16(
                            $f(wide_bf16((a >> shift) as u16), wide_bf16((b >> shift) as u16),
                            wide_bf16((c >> shift) as u16))))
                    };
                    one(0) | one(16) << 16
                }),
            }
        };
    }
    if relu {
        of_type!(|a: f64, b: f64, c: f64| {
            let value = exact_sum(a * b, c);
            if value.is_nan() || value > 0.0 { value } else { 0.0 }
        })
    } else {
        of_type!(|a: f64, b: f64, c: f64| exact_sum(a * b, c))
    }
}

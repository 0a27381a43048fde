//! f32 and f64 arithmetic. What PTX calls approximate is computed with functions of the host and is
//! closer to the true value than a device's, unless [`numerics`](crate::exec::numerics) says
//! otherwise; `.ftz` flushes operands and result.

use super::rounding::{Mode, flush, saturate, to_f32, two_sum};
use super::{Body, Opcode, OperandShape, lane, many};
use crate::exec::numerics::{approximation, exp2};
use crate::ptx::types::Ty;
#[cfg(target_arch = "x86_64")]
use crate::{exec::Cx, exec::lanes::map3, ptx::program::Inst};

pub(super) fn select(opcode: &mut Opcode) -> Option<OperandShape> {
    match (opcode.types.as_slice(), opcode.name.as_str()) {
        (&[Ty::F64], "rcp" | "sqrt" | "rsqrt") => double_special(opcode),
        (&[Ty::F64], _) => double(opcode),
        (&[Ty::F32], "ex2" | "lg2" | "sin" | "cos" | "tanh" | "rsqrt" | "rcp" | "sqrt") => {
            special(opcode)
        }
        (&[Ty::F32], _) => single(opcode),
        _ => None,
    }
}

/// The bodies for all choices of flushing and saturation; `$fast` picks the kind of body where
/// neither is asked for.
macro_rules! variants {
    ($fast:ident, $flush:expr, $saturate:expr, ($($x:ident),+), ($($ty:ty),+), $f:expr) => {
        match ($flush, $saturate) {
            (false, false) => $fast!($($ty),+ => f32, |$($x),+| $f($($x),+)),
            (true, false) => $fast!($($ty),+ => f32, |$($x),+| flush($f($(flush($x)),+))),
            (false, true) => lane!($($ty),+ => f32, |$($x),+| saturate($f($($x),+))),
            (true, true) => lane!($($ty),+ => f32, |$($x),+| saturate(flush($f($(flush($x)),+)))),
        }
    };
}

/// The same for every rounding mode; `$f` takes the mode after its operands.
macro_rules! rounded {
    ($mode:expr, $flush:expr, $saturate:expr, ($($x:ident),+), ($($ty:ty),+), $nearest:expr,
        $f:expr) => {
        match $mode {
            Mode::Nearest => variants!(many, $flush, $saturate, ($($x),+), ($($ty),+), $nearest),
            Mode::Zero => variants!(
                lane, $flush, $saturate, ($($x),+), ($($ty),+),
                |$($x: f32),+| $f($($x),+, Mode::Zero)),
            Mode::Down => variants!(
                lane, $flush, $saturate, ($($x),+), ($($ty),+),
                |$($x: f32),+| $f($($x),+, Mode::Down)),
            Mode::Up => variants!(
                lane, $flush, $saturate, ($($x),+), ($($ty),+),
                |$($x: f32),+| $f($($x),+, Mode::Up)),
        }
    };
}

fn single(opcode: &mut Opcode) -> Option<OperandShape> {
    let name = opcode.name.clone();
    if !matches!(
        name.as_str(),
        "add"
            | "sub"
            | "mul"
            | "fma"
            | "mad"
            | "div"
            | "min"
            | "max"
            | "abs"
            | "neg"
            | "copysign"
            | "testp"
    ) {
        return None;
    }
    if name == "testp" {
        return testp(opcode);
    }
    let mode = Mode::parse(opcode.take_any(&["rn", "rz", "rm", "rp"]).unwrap_or("rn"));
    let (ftz, sat) = (opcode.take("ftz"), opcode.take("sat"));
    let nan = opcode.take("NaN");
    let run =
        match name.as_str() {
            "add" => rounded!(mode, ftz, sat, (a, b), (f32, f32), |a: f32, b: f32| a + b, sum),
            "sub" => rounded!(
                mode,
                ftz,
                sat,
                (a, b),
                (f32, f32),
                |a: f32, b: f32| a - b,
                |a: f32, b: f32, mode| sum(a, -b, mode)
            ),
            "mul" => rounded!(mode, ftz, sat, (a, b), (f32, f32), |a: f32, b: f32| a * b, product),
            "fma" | "mad" if mode == Mode::Nearest && !ftz && !sat => {
                return Some(OperandShape::uniform(fused(), Ty::F32, 3));
            }
            "fma" | "mad" => {
                rounded!(
                    mode,
                    ftz,
                    sat,
                    (a, b, c),
                    (f32, f32, f32),
                    |a: f32, b: f32, c: f32| a.mul_add(b, c),
                    fused_mode
                )
            }
            "div" => {
                opcode.take_any(&["full", "approx"]);
                variants!(many, ftz, sat, (a, b), (f32, f32), |a: f32, b: f32| a / b)
            }
            "min" if nan => variants!(many, ftz, sat, (a, b), (f32, f32), |a: f32, b: f32| if a
                .is_nan()
                || b.is_nan()
            {
                canonical(f32::NAN)
            } else {
                least(a, b)
            }),
            "max" if nan => variants!(many, ftz, sat, (a, b), (f32, f32), |a: f32, b: f32| if a
                .is_nan()
                || b.is_nan()
            {
                canonical(f32::NAN)
            } else {
                max(a, b)
            }),
            "min" => variants!(many, ftz, sat, (a, b), (f32, f32), least),
            "max" => variants!(many, ftz, sat, (a, b), (f32, f32), max),
            "abs" => {
                return Some(OperandShape::uniform(
                    variants!(many, ftz, sat, (a), (f32), |a: f32| a.abs()),
                    Ty::F32,
                    1,
                ));
            }
            "neg" => {
                return Some(OperandShape::uniform(
                    variants!(many, ftz, sat, (a), (f32), |a: f32| -a),
                    Ty::F32,
                    1,
                ));
            }
            // The sign comes from the first operand.
            "copysign" => lane!(f32, f32 => f32, |a, b| b.copysign(a)),
            _ => return None,
        };
    let sources = if matches!(name.as_str(), "fma" | "mad") { 3 } else { 2 };
    Some(OperandShape::uniform(run, Ty::F32, sources))
}

#[inline(always)]
fn sum(a: f32, b: f32, mode: Mode) -> f32 {
    let (sum, error) = two_sum(f64::from(a), f64::from(b));
    to_f32(sum, error, mode)
}

#[inline(always)]
fn product(a: f32, b: f32, mode: Mode) -> f32 {
    to_f32(f64::from(a) * f64::from(b), 0.0, mode)
}

#[inline(always)]
fn fused_mode(a: f32, b: f32, c: f32, mode: Mode) -> f32 {
    let (sum, error) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
    to_f32(sum, error, mode)
}

/// `value`, of NaN the one that devices give.
#[inline(always)]
fn canonical(value: f32) -> f32 {
    if value.is_nan() { f32::from_bits(0x7fff_ffff) } else { value }
}

/// The lesser; the other when one is NaN; -0 is less than +0.
#[inline(always)]
fn least(a: f32, b: f32) -> f32 {
    if a < b || b.is_nan() {
        canonical(a)
    } else if a == b {
        f32::from_bits(a.to_bits() | b.to_bits())
    } else {
        b
    }
}

#[inline(always)]
fn least_double(a: f64, b: f64) -> f64 {
    let first = a < b || b.is_nan() || a == b && a.is_sign_negative();
    if first { a } else { b }
}

#[inline(always)]
fn max(a: f32, b: f32) -> f32 {
    if a > b || b.is_nan() {
        canonical(a)
    } else if a == b {
        f32::from_bits(a.to_bits() & b.to_bits())
    } else {
        b
    }
}

/// `fma.rn.f32`: by the instruction of the host where it has one.
fn fused() -> Body {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("fma") && is_x86_feature_detected!("avx2") {
        // SAFETY: the features are there.
        return Body::Lanes(|cx, i, mask| unsafe { fused_avx2(cx, i, mask) });
    }
    lane!(f32, f32, f32 => f32, |a, b, c| a.mul_add(b, c))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fused_avx2(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    map3::<f32, f32, f32, f32>(cx, i, mask, |a, b, c| a.mul_add(b, c));
}

fn special(opcode: &mut Opcode) -> Option<OperandShape> {
    let ftz_given = opcode.take("ftz");
    let approximate = opcode.take("approx");
    let mode = opcode.take_any(&["rn", "rz", "rm", "rp"]);
    if mode.is_some_and(|mode| mode != "rn") || !approximate && mode.is_none() {
        opcode.modifiers.extend(mode.map(str::to_owned));
        return None;
    }
    let run = match opcode.name.as_str() {
        "ex2" => variants!(lane, ftz_given, false, (a), (f32), exp2),
        "lg2" => variants!(lane, ftz_given, false, (a), (f32), |a: f32| {
            approximation(a, a.log2(), f64::log2, 2.0, 1.0)
        }),
        "sin" => variants!(lane, ftz_given, false, (a), (f32), |a: f32| {
            approximation(a, a.sin(), f64::sin, 6.0, 1.0)
        }),
        "cos" => variants!(lane, ftz_given, false, (a), (f32), |a: f32| {
            approximation(a, a.cos(), f64::cos, 6.0, 1.0)
        }),
        // 2^-11 of the value.
        "tanh" => variants!(lane, ftz_given, false, (a), (f32), |a: f32| {
            approximation(a, a.tanh(), f64::tanh, 4096.0, 0.0)
        }),
        "rsqrt" => variants!(lane, ftz_given, false, (a), (f32), |a: f32| {
            let nearest = (1.0 / f64::from(a).sqrt()) as f32;
            approximation(a, nearest, |a| a.sqrt().recip(), 2.0, 0.0)
        }),
        // Without `approx` the nearest.
        "rcp" if !approximate => variants!(lane, ftz_given, false, (a), (f32), |a: f32| 1.0 / a),
        "rcp" => variants!(lane, ftz_given, false, (a), (f32), |a: f32| {
            approximation(a, 1.0 / a, f64::recip, 1.0, 0.0)
        }),
        "sqrt" if !approximate => variants!(lane, ftz_given, false, (a), (f32), |a: f32| a.sqrt()),
        "sqrt" => variants!(lane, ftz_given, false, (a), (f32), |a: f32| {
            approximation(a, a.sqrt(), f64::sqrt, 1.0, 0.0)
        }),
        _ => return None,
    };
    Some(OperandShape::uniform(run, Ty::F32, 1))
}

fn double_special(opcode: &mut Opcode) -> Option<OperandShape> {
    opcode.take_any(&["rn", "approx"])?;
    opcode.take("ftz");
    let run = match opcode.name.as_str() {
        "rcp" => lane!(f64 => f64, |a| 1.0 / a),
        "sqrt" => lane!(f64 => f64, |a| a.sqrt()),
        _ => lane!(f64 => f64, |a| 1.0 / a.sqrt()),
    };
    Some(OperandShape::uniform(run, Ty::F64, 1))
}

/// f64, to nearest only.
fn double(opcode: &mut Opcode) -> Option<OperandShape> {
    opcode.take("rn");
    let two = |run| Some(OperandShape::uniform(run, Ty::F64, 2));
    match opcode.name.as_str() {
        "add" => two(lane!(f64, f64 => f64, |a, b| a + b)),
        "sub" => two(lane!(f64, f64 => f64, |a, b| a - b)),
        "mul" => two(lane!(f64, f64 => f64, |a, b| a * b)),
        "div" => two(lane!(f64, f64 => f64, |a, b| a / b)),
        "min" => two(lane!(f64, f64 => f64, least_double)),
        "max" => two(lane!(f64, f64 => f64, |a, b| -least_double(-a, -b))),
        "copysign" => two(lane!(f64, f64 => f64, |a, b| b.copysign(a))),
        "abs" => Some(OperandShape::uniform(lane!(f64 => f64, |a| a.abs()), Ty::F64, 1)),
        "neg" => Some(OperandShape::uniform(lane!(f64 => f64, |a| -a), Ty::F64, 1)),
        "fma" | "mad" => Some(OperandShape::uniform(
            lane!(f64, f64, f64 => f64, |a, b, c| a.mul_add(b, c)),
            Ty::F64,
            3,
        )),
        _ => None,
    }
}

fn testp(opcode: &mut Opcode) -> Option<OperandShape> {
    let body = match opcode.take_any(&[
        "finite",
        "infinite",
        "number",
        "notanumber",
        "normal",
        "subnormal",
    ])? {
        "finite" => lane!(f32 => bool, |a: f32| a.is_finite()),
        "infinite" => lane!(f32 => bool, |a: f32| a.is_infinite()),
        "number" => lane!(f32 => bool, |a: f32| !a.is_nan()),
        "notanumber" => lane!(f32 => bool, |a: f32| a.is_nan()),
        "normal" => lane!(f32 => bool, |a: f32| a.is_normal()),
        _ => lane!(f32 => bool, |a: f32| a.is_subnormal()),
    };
    Some(OperandShape::new(body, Ty::Pred, &[Ty::F32]))
}

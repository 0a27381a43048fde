//! `cvt`.

use half::{bf16, f16};

use super::rounding::{Mode, bf16_nearest, f16_nearest, flush, saturate, to_bf16, to_f16, to_f32};
use super::{Body, Opcode, OperandShape, lane, many};
use crate::ptx::types::Ty;

pub(super) fn select(opcode: &mut Opcode) -> Option<OperandShape> {
    let &[to, from] = opcode.types.as_slice() else { return None };
    if opcode.name != "cvt" {
        return None;
    }
    let rounding = opcode.take_any(&["rni", "rzi", "rmi", "rpi", "rna", "rn", "rz", "rm", "rp"]);
    let (ftz, sat, relu) = (opcode.take("ftz"), opcode.take("sat"), opcode.take("relu"));
    let mode = Mode::parse(rounding.unwrap_or("rn"));
    let one = |run: Body| Some(OperandShape::new(run, to, &[from]));
    if matches!(to, Ty::BF16x2 | Ty::F16x2) {
        return (from == Ty::F32 && !sat).then(|| packed(to, mode, relu)).flatten();
    }
    if to == Ty::TF32 {
        return if rounding == Some("rna") { one(lane!(f32 => u32, to_tf32)) } else { None };
    }
    if relu {
        let run = match (to, mode) {
            (Ty::BF16, Mode::Nearest) => {
                lane!(f32 => u16, |a| bf16_nearest(if a < 0.0 { 0.0 } else { a }) as u16)
            }
            (Ty::F16, Mode::Nearest) => {
                lane!(f32 => u16, |a| f16_nearest(if a < 0.0 { 0.0 } else { a }) as u16)
            }
            _ => return None,
        };
        return (from == Ty::F32).then(|| one(run)).flatten();
    }
    if let Some(body) = frequent(to, from, rounding, sat || ftz) {
        return one(body);
    }
    let integral = rounding.is_some_and(|rounding| rounding.len() == 3);
    match (is_float(to), is_float(from)) {
        (false, false) => one(integers(to, from, sat)?),
        (false, true) => one(to_integer(to, from, mode, ftz)?),
        (true, false) => one(from_integer(to, from, mode)?),
        (true, true) => one(floats(to, from, mode, integral, ftz, sat)?),
    }
}

/// The conversions that address and tile arithmetic is full of.
fn frequent(to: Ty, from: Ty, rounding: Option<&str>, changed: bool) -> Option<Body> {
    Some(match (to, from, rounding) {
        _ if changed => return None,
        (Ty::U64 | Ty::S64, Ty::U32, None) => many!(u32 => u64, u64::from),
        (Ty::U64 | Ty::S64, Ty::S32, None) => many!(i32 => i64, i64::from),
        (Ty::U32 | Ty::S32, Ty::U64 | Ty::S64, None) => many!(u64 => u32, |a| a as u32),
        (Ty::U32 | Ty::S32, Ty::U16, None) => many!(u16 => u32, u32::from),
        (Ty::U16 | Ty::S16, Ty::U32 | Ty::S32, None) => many!(u16 => u16, |a| a),
        (Ty::F32, Ty::S32, Some("rn")) => many!(i32 => f32, |a| a as f32),
        (Ty::F32, Ty::U32, Some("rn")) => many!(u32 => f32, |a| a as f32),
        (Ty::S32, Ty::F32, Some("rzi")) => many!(f32 => i32, |a| a as i32),
        (Ty::F32, Ty::F32, None) => many!(f32 => f32, |a| a),
        _ => return None,
    })
}

fn is_float(ty: Ty) -> bool {
    matches!(ty, Ty::F16 | Ty::BF16 | Ty::F32 | Ty::F64)
}

/// To nearest, ties away, 10 bits of fraction.
fn to_tf32(value: f32) -> u32 {
    let bits = value.to_bits();
    if value.is_finite() { bits.wrapping_add(0x1000) & !0x1FFF } else { bits }
}

/// `cvt.rn.bf16x2.f32 d, high, low`
fn packed(to: Ty, mode: Mode, relu: bool) -> Option<OperandShape> {
    let run = match (to, mode, relu) {
        (Ty::BF16x2, Mode::Nearest, false) => {
            many!(f32, f32 => u32, |a, b| bf16_nearest(a) << 16 | bf16_nearest(b))
        }
        (Ty::F16x2, Mode::Nearest, false) => {
            lane!(f32, f32 => u32, |a, b| f16_nearest(a) << 16 | f16_nearest(b))
        }
        (Ty::BF16x2, Mode::Nearest, true) => {
            lane!(f32, f32 => u32,
                |a, b| bf16_nearest(if a < 0.0 { 0.0 } else { a }) << 16
                | bf16_nearest(if b < 0.0 { 0.0 } else { b }))
        }
        (Ty::F16x2, Mode::Nearest, true) => {
            lane!(f32, f32 => u32,
                |a, b| f16_nearest(if a < 0.0 { 0.0 } else { a }) << 16
                | f16_nearest(if b < 0.0 { 0.0 } else { b }))
        }
        (Ty::BF16x2, Mode::Zero, false) => lane!(f32, f32 => u32, |a, b| {
            let one = |x: f32| u32::from(to_bf16(f64::from(x), Mode::Zero).to_bits());
            one(a) << 16 | one(b)
        }),
        (Ty::F16x2, Mode::Zero, false) => lane!(f32, f32 => u32, |a, b| {
            let one = |x: f32| u32::from(to_f16(f64::from(x), Mode::Zero).to_bits());
            one(a) << 16 | one(b)
        }),
        _ => return None,
    };
    Some(OperandShape::new(run, to, &[Ty::F32, Ty::F32]))
}

/// Conversion between integers, by way of i128, which holds all values.
fn integers(to: Ty, from: Ty, sat: bool) -> Option<Body> {
    macro_rules! from {
        ($to:ty, $from:ty) => {
            if sat {
                lane!($from => $to,
                    |a| i128::from(a).clamp(i128::from(<$to>::MIN), i128::from(<$to>::MAX)) as $to)
            } else {
                lane!($from => $to, |a| a as $to)
            }
        };
    }
    macro_rules! to {
        ($to:ty) => {
            match from {
                Ty::U8 | Ty::B8 => from!($to, u8),
                Ty::S8 => from!($to, i8),
                Ty::U16 | Ty::B16 => from!($to, u16),
                Ty::S16 => from!($to, i16),
                Ty::U32 | Ty::B32 => from!($to, u32),
                Ty::S32 => from!($to, i32),
                Ty::U64 | Ty::B64 => from!($to, u64),
                Ty::S64 => from!($to, i64),
                _ => return None,
            }
        };
    }
    Some(match to {
        Ty::U8 | Ty::B8 => to!(u8),
        Ty::S8 => to!(i8),
        Ty::U16 | Ty::B16 => to!(u16),
        Ty::S16 => to!(i16),
        Ty::U32 | Ty::B32 => to!(u32),
        Ty::S32 => to!(i32),
        Ty::U64 | Ty::B64 => to!(u64),
        Ty::S64 => to!(i64),
        _ => return None,
    })
}

#[inline(always)]
fn integral(value: f64, mode: Mode) -> f64 {
    match mode {
        Mode::Nearest => value.round_ties_even(),
        Mode::Zero => value.trunc(),
        Mode::Down => value.floor(),
        Mode::Up => value.ceil(),
    }
}

/// Out of range gives the nearest bound. NaN gives zero, or the highest bit alone where one of the
/// types has 64 bits (PTX ISA, cvt).
fn to_integer(to: Ty, from: Ty, mode: Mode, ftz: bool) -> Option<Body> {
    macro_rules! mode {
        ($to:ty, $from:ty, $wide:expr) => {{
            const IS_WIDE: bool = size_of::<$to>() == 8 || size_of::<$from>() == 8;
            const NAN: $to = if IS_WIDE { (1u64 << (<$to>::BITS - 1)) as $to } else { 0 };
            macro_rules! rounded {
                        ($mode:expr) => {
                            lane!($from => $to, |a| {
                                let value: f64 = $wide(a);
                                if value.is_nan() { NAN } else { integral(value, $mode) as $to }
                            })
                        };
                    }
            match mode {
                Mode::Nearest => rounded!(Mode::Nearest),
                Mode::Zero => rounded!(Mode::Zero),
                Mode::Down => rounded!(Mode::Down),
                Mode::Up => rounded!(Mode::Up),
            }
        }};
    }
    macro_rules! from {
        ($to:ty) => {
            match (from, ftz) {
                (Ty::F32, false) => mode!($to, f32, |a: f32| f64::from(a)),
                (Ty::F32, true) => mode!($to, f32, |a: f32| f64::from(flush(a))),
                (Ty::F64, _) => mode!($to, f64, |a: f64| a),
                (Ty::F16, _) => mode!($to, f16, |a: f16| a.to_f64()),
                (Ty::BF16, _) => mode!($to, bf16, |a: bf16| a.to_f64()),
                _ => return None,
            }
        };
    }
    Some(match to {
        Ty::U8 => from!(u8),
        Ty::S8 => from!(i8),
        Ty::U16 => from!(u16),
        Ty::S16 => from!(i16),
        Ty::U32 => from!(u32),
        Ty::S32 => from!(i32),
        Ty::U64 => from!(u64),
        Ty::S64 => from!(i64),
        _ => return None,
    })
}

/// An integer as f64 with what f64 lost of it.
#[inline(always)]
fn split(value: i128) -> (f64, f64) {
    let near = value as f64;
    (near, (value - near as i128) as f64)
}

fn from_integer(to: Ty, from: Ty, mode: Mode) -> Option<Body> {
    macro_rules! to {
        ($from:ty) => {
            match (to, mode) {
                (Ty::F32, Mode::Nearest) => lane!($from => f32, |a| a as f32),
                (Ty::F32, Mode::Zero) => lane!(
                    $from => f32, |a| {
                    let (s, e) = split(i128::from(a)); to_f32(s, e, Mode::Zero) }),
                (Ty::F32, Mode::Down) => lane!(
                    $from => f32, |a| {
                    let (s, e) = split(i128::from(a)); to_f32(s, e, Mode::Down) }),
                (Ty::F32, Mode::Up) => lane!(
                    $from => f32, |a| {
                    let (s, e) = split(i128::from(a)); to_f32(s, e, Mode::Up) }),
                (Ty::F64, Mode::Nearest) => lane!($from => f64, |a| a as f64),
                (Ty::F16, Mode::Nearest) => lane!(
                    $from => f16, |a| {
                    let (s, e) = split(i128::from(a));
                    to_f16(super::rounding::odd(s, e), Mode::Nearest) }),
                (Ty::BF16, Mode::Nearest) => lane!(
                    $from => bf16, |a| {
                    let (s, e) = split(i128::from(a));
                    to_bf16(super::rounding::odd(s, e), Mode::Nearest) }),
                _ => return None,
            }
        };
    }
    Some(match from {
        Ty::U8 => to!(u8),
        Ty::S8 => to!(i8),
        Ty::U16 => to!(u16),
        Ty::S16 => to!(i16),
        Ty::U32 => to!(u32),
        Ty::S32 => to!(i32),
        Ty::U64 => to!(u64),
        Ty::S64 => to!(i64),
        _ => return None,
    })
}

fn floats(
    to: Ty,
    from: Ty,
    mode: Mode,
    integral_value: bool,
    ftz: bool,
    sat: bool,
) -> Option<Body> {
    if integral_value {
        return rounded_to_integral(to, from, mode, ftz, sat);
    }
    Some(match (to, from, mode) {
        (Ty::F32, Ty::F32, _) => match (ftz, sat) {
            (false, false) => lane!(f32 => f32, |a| a),
            (true, false) => lane!(f32 => f32, flush),
            (false, true) => lane!(f32 => f32, saturate),
            (true, true) => lane!(f32 => f32, |a| saturate(flush(a))),
        },
        _ if sat => return None,
        (Ty::F32, Ty::F64, Mode::Nearest) => lane!(f64 => f32, |a| a as f32),
        (Ty::F32, Ty::F64, Mode::Zero) => lane!(f64 => f32, |a| to_f32(a, 0.0, Mode::Zero)),
        (Ty::F32, Ty::F64, Mode::Down) => lane!(f64 => f32, |a| to_f32(a, 0.0, Mode::Down)),
        (Ty::F32, Ty::F64, Mode::Up) => lane!(f64 => f32, |a| to_f32(a, 0.0, Mode::Up)),
        (Ty::F64, Ty::F32, _) => lane!(f32 => f64, f64::from),
        (Ty::F32, Ty::F16, _) => many!(f16 => f32, |a| a.to_f32()),
        (Ty::F32, Ty::BF16, _) => many!(u16 => u32, |a| u32::from(a) << 16),
        (Ty::F64, Ty::F16, _) => lane!(f16 => f64, |a| a.to_f64()),
        (Ty::F16, Ty::F32, Mode::Nearest) => lane!(f32 => u16, |a| f16_nearest(a) as u16),
        (Ty::F16, Ty::F32, Mode::Zero) => lane!(f32 => f16, |a| to_f16(f64::from(a), Mode::Zero)),
        (Ty::F16, Ty::F32, Mode::Down) => lane!(f32 => f16, |a| to_f16(f64::from(a), Mode::Down)),
        (Ty::F16, Ty::F32, Mode::Up) => lane!(f32 => f16, |a| to_f16(f64::from(a), Mode::Up)),
        (Ty::BF16, Ty::F32, Mode::Nearest) => lane!(f32 => u16, |a| bf16_nearest(a) as u16),
        (Ty::BF16, Ty::F32, Mode::Zero) => {
            lane!(f32 => bf16, |a| to_bf16(f64::from(a), Mode::Zero))
        }
        (Ty::F16, Ty::F64, Mode::Nearest) => lane!(f64 => f16, |a| to_f16(a, Mode::Nearest)),
        (Ty::BF16, Ty::F64, Mode::Nearest) => lane!(f64 => bf16, |a| to_bf16(a, Mode::Nearest)),
        (Ty::F16, Ty::F16, _) | (Ty::BF16, Ty::BF16, _) => lane!(u16 => u16, |a| a),
        _ => return None,
    })
}

fn rounded_to_integral(to: Ty, from: Ty, mode: Mode, ftz: bool, sat: bool) -> Option<Body> {
    if sat {
        return None;
    }
    macro_rules! mode {
        ($ty:ty, $wide:expr, $narrow:expr) => {
            match mode {
                Mode::Nearest => lane!($ty => $ty, |a| $narrow(integral($wide(a), Mode::Nearest))),
                Mode::Zero => lane!($ty => $ty, |a| $narrow(integral($wide(a), Mode::Zero))),
                Mode::Down => lane!($ty => $ty, |a| $narrow(integral($wide(a), Mode::Down))),
                Mode::Up => lane!($ty => $ty, |a| $narrow(integral($wide(a), Mode::Up))),
            }
        };
    }
    Some(match (to, from, ftz) {
        (Ty::F32, Ty::F32, false) => mode!(f32, |a: f32| f64::from(a), |a: f64| a as f32),
        (Ty::F32, Ty::F32, true) => mode!(f32, |a: f32| f64::from(flush(a)), |a: f64| a as f32),
        (Ty::F64, Ty::F64, _) => mode!(f64, |a: f64| a, |a: f64| a),
        (Ty::F16, Ty::F16, _) => mode!(f16, |a: f16| a.to_f64(), f16::from_f64),
        _ => return None,
    })
}

//! Integer arithmetic.

use super::{Body, Opcode, OperandShape, lane, many};
use crate::ptx::types::Ty;

pub(super) fn select(opcode: &mut Opcode) -> Option<OperandShape> {
    let ty = opcode.ty(0)?;
    if opcode.types.len() != 1 {
        return None;
    }
    let name = opcode.name.clone();
    match name.as_str() {
        "mul" | "mad"
            if matches!(ty, Ty::U16 | Ty::S16 | Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64) =>
        {
            product(opcode, &name, ty)
        }
        "mul24" | "mad24" => product24(opcode, &name, ty),
        "add" | "sub" if opcode.take("sat") => {
            let run = match (name.as_str(), ty) {
                ("add", Ty::S32) => lane!(i32, i32 => i32, |a, b| a.saturating_add(b)),
                ("sub", Ty::S32) => lane!(i32, i32 => i32, |a, b| a.saturating_sub(b)),
                _ => {
                    opcode.modifiers.push("sat".into());
                    return None;
                }
            };
            Some(OperandShape::uniform(run, ty, 2))
        }
        _ => one(&name, ty)
            .map(|run| OperandShape::uniform(run, ty, 1))
            .or_else(|| two(&name, ty).map(|run| OperandShape::uniform(run, ty, 2)))
            .or_else(|| shift(&name, ty).map(|run| OperandShape::new(run, ty, &[ty, Ty::U32])))
            .or_else(|| count(&name, ty).map(|run| OperandShape::new(run, Ty::U32, &[ty])))
            .or_else(|| field(opcode, &name, ty))
            .or_else(|| (name == "sad").then(|| sad(ty)).flatten()),
    }
}

fn one(name: &str, ty: Ty) -> Option<Body> {
    Some(match (name, ty) {
        ("neg", Ty::S16) => lane!(i16 => i16, |a| a.wrapping_neg()),
        ("neg", Ty::S32) => many!(i32 => i32, |a| a.wrapping_neg()),
        ("neg", Ty::S64) => lane!(i64 => i64, |a| a.wrapping_neg()),
        ("abs", Ty::S16) => lane!(i16 => i16, |a| a.wrapping_abs()),
        ("abs", Ty::S32) => lane!(i32 => i32, |a| a.wrapping_abs()),
        ("abs", Ty::S64) => lane!(i64 => i64, |a| a.wrapping_abs()),
        ("brev", Ty::B32) => lane!(u32 => u32, |a| a.reverse_bits()),
        ("brev", Ty::B64) => lane!(u64 => u64, |a| a.reverse_bits()),
        _ => return None,
    })
}

fn two(name: &str, ty: Ty) -> Option<Body> {
    Some(match (name, ty) {
        ("add", Ty::U16 | Ty::S16) => lane!(u16, u16 => u16, |a, b| a.wrapping_add(b)),
        ("add", Ty::U32 | Ty::S32) => many!(u32, u32 => u32, |a, b| a.wrapping_add(b)),
        ("add", Ty::U64 | Ty::S64) => many!(u64, u64 => u64, |a, b| a.wrapping_add(b)),
        ("sub", Ty::U16 | Ty::S16) => lane!(u16, u16 => u16, |a, b| a.wrapping_sub(b)),
        ("sub", Ty::U32 | Ty::S32) => many!(u32, u32 => u32, |a, b| a.wrapping_sub(b)),
        ("sub", Ty::U64 | Ty::S64) => many!(u64, u64 => u64, |a, b| a.wrapping_sub(b)),
        // Division by zero gives all ones, as the devices do.
        ("div", Ty::U16) => lane!(u16, u16 => u16, |a, b| a.checked_div(b).unwrap_or(u16::MAX)),
        ("div", Ty::U32) => lane!(u32, u32 => u32, |a, b| a.checked_div(b).unwrap_or(u32::MAX)),
        ("div", Ty::U64) => lane!(u64, u64 => u64, |a, b| a.checked_div(b).unwrap_or(u64::MAX)),
        ("div", Ty::S16) => {
            lane!(i16, i16 => i16, |a, b| if b == 0 { -1 } else { a.wrapping_div(b) })
        }
        ("div", Ty::S32) => {
            lane!(i32, i32 => i32, |a, b| if b == 0 { -1 } else { a.wrapping_div(b) })
        }
        ("div", Ty::S64) => {
            lane!(i64, i64 => i64, |a, b| if b == 0 { -1 } else { a.wrapping_div(b) })
        }
        ("rem", Ty::U16) => lane!(u16, u16 => u16, |a, b| a.checked_rem(b).unwrap_or(a)),
        ("rem", Ty::U32) => lane!(u32, u32 => u32, |a, b| a.checked_rem(b).unwrap_or(a)),
        ("rem", Ty::U64) => lane!(u64, u64 => u64, |a, b| a.checked_rem(b).unwrap_or(a)),
        ("rem", Ty::S16) => {
            lane!(i16, i16 => i16, |a, b| if b == 0 { a } else { a.wrapping_rem(b) })
        }
        ("rem", Ty::S32) => {
            lane!(i32, i32 => i32, |a, b| if b == 0 { a } else { a.wrapping_rem(b) })
        }
        ("rem", Ty::S64) => {
            lane!(i64, i64 => i64, |a, b| if b == 0 { a } else { a.wrapping_rem(b) })
        }
        ("min", Ty::U16) => lane!(u16, u16 => u16, |a, b| a.min(b)),
        ("min", Ty::U32) => many!(u32, u32 => u32, |a, b| a.min(b)),
        ("min", Ty::U64) => lane!(u64, u64 => u64, |a, b| a.min(b)),
        ("min", Ty::S16) => lane!(i16, i16 => i16, |a, b| a.min(b)),
        ("min", Ty::S32) => many!(i32, i32 => i32, |a, b| a.min(b)),
        ("min", Ty::S64) => lane!(i64, i64 => i64, |a, b| a.min(b)),
        ("max", Ty::U16) => lane!(u16, u16 => u16, |a, b| a.max(b)),
        ("max", Ty::U32) => many!(u32, u32 => u32, |a, b| a.max(b)),
        ("max", Ty::U64) => lane!(u64, u64 => u64, |a, b| a.max(b)),
        ("max", Ty::S16) => lane!(i16, i16 => i16, |a, b| a.max(b)),
        ("max", Ty::S32) => many!(i32, i32 => i32, |a, b| a.max(b)),
        ("max", Ty::S64) => lane!(i64, i64 => i64, |a, b| a.max(b)),
        _ => return None,
    })
}

/// Shifts by more than the width give zero, or the sign.
fn shift(name: &str, ty: Ty) -> Option<Body> {
    Some(match (name, ty) {
        ("shl", Ty::B16) => lane!(u16, u32 => u16, |a, b| if b > 15 { 0 } else { a << b }),
        ("shl", Ty::B32) => many!(u32, u32 => u32, |a, b| if b > 31 { 0 } else { a << b }),
        ("shl", Ty::B64) => many!(u64, u32 => u64, |a, b| if b > 63 { 0 } else { a << b }),
        ("shr", Ty::B16 | Ty::U16) => {
            lane!(u16, u32 => u16, |a, b| if b > 15 { 0 } else { a >> b })
        }
        ("shr", Ty::B32 | Ty::U32) => {
            many!(u32, u32 => u32, |a, b| if b > 31 { 0 } else { a >> b })
        }
        ("shr", Ty::B64 | Ty::U64) => {
            many!(u64, u32 => u64, |a, b| if b > 63 { 0 } else { a >> b })
        }
        ("shr", Ty::S16) => lane!(i16, u32 => i16, |a, b| a >> b.min(15)),
        ("shr", Ty::S32) => many!(i32, u32 => i32, |a, b| a >> b.min(31)),
        ("shr", Ty::S64) => many!(i64, u32 => i64, |a, b| a >> b.min(63)),
        _ => return None,
    })
}

fn count(name: &str, ty: Ty) -> Option<Body> {
    Some(match (name, ty) {
        ("popc", Ty::B32) => lane!(u32 => u32, |a| a.count_ones()),
        ("popc", Ty::B64) => lane!(u64 => u32, |a| a.count_ones()),
        ("clz", Ty::B32) => lane!(u32 => u32, |a| a.leading_zeros()),
        ("clz", Ty::B64) => lane!(u64 => u32, |a| a.leading_zeros()),
        _ => return None,
    })
}

/// `mul.lo`, `mul.hi`, `mul.wide` and the `mad` of each.
fn product(opcode: &mut Opcode, name: &str, ty: Ty) -> Option<OperandShape> {
    let part = opcode.take_any(&["lo", "hi", "wide"])?;
    let wide = match ty {
        Ty::U16 => Ty::U32,
        Ty::S16 => Ty::S32,
        Ty::U32 => Ty::U64,
        _ => Ty::S64,
    };
    let run = match (name, part, ty) {
        ("mul", "lo", Ty::U16 | Ty::S16) => lane!(u16, u16 => u16, |a, b| a.wrapping_mul(b)),
        ("mul", "lo", Ty::U32 | Ty::S32) => many!(u32, u32 => u32, |a, b| a.wrapping_mul(b)),
        ("mul", "lo", _) => many!(u64, u64 => u64, |a, b| a.wrapping_mul(b)),
        ("mul", "hi", Ty::U16) => {
            lane!(u16, u16 => u16, |a, b| ((u32::from(a) * u32::from(b)) >> 16) as u16)
        }
        ("mul", "hi", Ty::S16) => {
            lane!(i16, i16 => i16, |a, b| ((i32::from(a) * i32::from(b)) >> 16) as i16)
        }
        ("mul", "hi", Ty::U32) => {
            many!(u32, u32 => u32, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32)
        }
        ("mul", "hi", Ty::S32) => {
            many!(i32, i32 => i32, |a, b| ((i64::from(a) * i64::from(b)) >> 32) as i32)
        }
        ("mul", "hi", Ty::U64) => {
            lane!(u64, u64 => u64, |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64)
        }
        ("mul", "hi", Ty::S64) => {
            lane!(i64, i64 => i64, |a, b| ((i128::from(a) * i128::from(b)) >> 64) as i64)
        }
        ("mul", "wide", Ty::U16) => lane!(u16, u16 => u32, |a, b| u32::from(a) * u32::from(b)),
        ("mul", "wide", Ty::S16) => lane!(i16, i16 => i32, |a, b| i32::from(a) * i32::from(b)),
        ("mul", "wide", Ty::U32) => many!(u32, u32 => u64, |a, b| u64::from(a) * u64::from(b)),
        ("mul", "wide", Ty::S32) => many!(i32, i32 => i64, |a, b| i64::from(a) * i64::from(b)),
        ("mad", "lo", Ty::U16 | Ty::S16) => {
            lane!(u16, u16, u16 => u16, |a, b, c| a.wrapping_mul(b).wrapping_add(c))
        }
        ("mad", "lo", Ty::U32 | Ty::S32) => {
            many!(u32, u32, u32 => u32, |a, b, c| a.wrapping_mul(b).wrapping_add(c))
        }
        ("mad", "lo", _) => {
            many!(u64, u64, u64 => u64, |a, b, c| a.wrapping_mul(b).wrapping_add(c))
        }
        ("mad", "hi", Ty::U32) => {
            lane!(u32, u32, u32 => u32,
                |a, b, c| (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c))
        }
        ("mad", "hi", Ty::S32) => {
            lane!(i32, i32, i32 => i32,
                |a, b, c| (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c))
        }
        ("mad", "hi", Ty::U64) => {
            lane!(u64, u64, u64 => u64,
                |a, b, c| (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c))
        }
        ("mad", "wide", Ty::U16) => {
            lane!(u16, u16, u32 => u32, |a, b, c| (u32::from(a) * u32::from(b)).wrapping_add(c))
        }
        ("mad", "wide", Ty::S16) => {
            lane!(i16, i16, i32 => i32, |a, b, c| (i32::from(a) * i32::from(b)).wrapping_add(c))
        }
        ("mad", "wide", Ty::U32) => {
            many!(u32, u32, u64 => u64, |a, b, c| (u64::from(a) * u64::from(b)).wrapping_add(c))
        }
        ("mad", "wide", Ty::S32) => {
            many!(i32, i32, i64 => i64, |a, b, c| (i64::from(a) * i64::from(b)).wrapping_add(c))
        }
        _ => return None,
    };
    let result = if part == "wide" { wide } else { ty };
    let mut sources = vec![ty, ty];
    if name == "mad" {
        sources.push(result);
    }
    Some(OperandShape::new(run, result, &sources))
}

fn product24(opcode: &mut Opcode, name: &str, ty: Ty) -> Option<OperandShape> {
    if !opcode.take("lo") {
        return None;
    }
    Some(match (name, ty) {
        ("mul24", Ty::U32) => OperandShape::uniform(
            lane!(u32, u32 => u32, |a, b| (a & 0xFF_FFFF).wrapping_mul(b & 0xFF_FFFF)),
            ty,
            2,
        ),
        ("mul24", Ty::S32) => OperandShape::uniform(
            lane!(i32, i32 => i32, |a, b| (a << 8 >> 8).wrapping_mul(b << 8 >> 8)),
            ty,
            2,
        ),
        _ => return None,
    })
}

fn sad(ty: Ty) -> Option<OperandShape> {
    let run = match ty {
        Ty::U32 => lane!(u32, u32, u32 => u32, |a, b, c| c.wrapping_add(a.abs_diff(b))),
        Ty::S32 => lane!(i32, i32, u32 => u32, |a, b, c| c.wrapping_add(a.abs_diff(b))),
        _ => return None,
    };
    Some(OperandShape::uniform(run, ty, 3))
}

/// Bit fields and the like.
fn field(opcode: &mut Opcode, name: &str, ty: Ty) -> Option<OperandShape> {
    let four = Body::Lanes(|cx, i, mask| {
        let read = |at: usize| cx.warp.registers.narrow[i.s[at].index()];
        let (a, b, position, length) = (read(0), read(1), read(2), read(3));
        let values = std::array::from_fn(|lane| {
            insert(u64::from(a[lane]), u64::from(b[lane]), position[lane], length[lane], 32) as u32
        });
        crate::exec::memory::blend(&mut cx.warp.registers.narrow[i.d[0].index()], &values, mask);
    });
    let four_wide = Body::Lanes(|cx, i, mask| {
        let wide = |at: usize| cx.warp.registers.wide[i.s[at].index()];
        let narrow = |at: usize| cx.warp.registers.narrow[i.s[at].index()];
        let (a, b, position, length) = (wide(0), wide(1), narrow(2), narrow(3));
        let values =
            std::array::from_fn(|lane| insert(a[lane], b[lane], position[lane], length[lane], 64));
        crate::exec::memory::blend(&mut cx.warp.registers.wide[i.d[0].index()], &values, mask);
    });
    Some(match (name, ty) {
        ("bfe", Ty::U32) => OperandShape::new(
            lane!(u32, u32, u32 => u32, |a, p, l| extract(u64::from(a), p, l, 32) as u32),
            ty,
            &[ty, Ty::U32, Ty::U32],
        ),
        ("bfe", Ty::S32) => OperandShape::new(
            lane!(i32, u32, u32 => i32, |a, p, l| extract_signed(i64::from(a), p, l, 32) as i32),
            ty,
            &[ty, Ty::U32, Ty::U32],
        ),
        ("bfe", Ty::U64) => OperandShape::new(
            lane!(u64, u32, u32 => u64, |a, p, l| extract(a, p, l, 64)),
            ty,
            &[ty, Ty::U32, Ty::U32],
        ),
        ("bfe", Ty::S64) => OperandShape::new(
            lane!(i64, u32, u32 => i64, |a, p, l| extract_signed(a, p, l, 64)),
            ty,
            &[ty, Ty::U32, Ty::U32],
        ),
        ("bfi", Ty::B32) => OperandShape::new(four, ty, &[ty, ty, Ty::U32, Ty::U32]),
        ("bfi", Ty::B64) => OperandShape::new(four_wide, ty, &[ty, ty, Ty::U32, Ty::U32]),
        ("bfind", _) => {
            let shifted = opcode.take("shiftamt");
            let run = match (ty, shifted) {
                (Ty::U32, false) => lane!(u32 => u32, |a| 31u32.wrapping_sub(a.leading_zeros())),
                (Ty::U32, true) => {
                    lane!(u32 => u32, |a| if a == 0 { u32::MAX } else { a.leading_zeros() })
                }
                (Ty::S32, false) => {
                    lane!(i32 => u32, |a| 31u32.wrapping_sub((a ^ a >> 31).leading_zeros()))
                }
                (Ty::S32, true) => lane!(i32 => u32, |a| match (a ^ a >> 31).leading_zeros() {
                    32 => u32::MAX,
                    zeros => zeros,
                }),
                (Ty::U64, false) => lane!(u64 => u32, |a| 63u32.wrapping_sub(a.leading_zeros())),
                (Ty::S64, false) => {
                    lane!(i64 => u32, |a| 63u32.wrapping_sub((a ^ a >> 63).leading_zeros()))
                }
                _ => return None,
            };
            OperandShape::new(run, Ty::U32, &[ty])
        }
        ("fns", _) => return None,
        ("dp4a", _) => return None,
        _ => return None,
    })
}

fn insert(a: u64, b: u64, position: u32, length: u32, width: u32) -> u64 {
    let (position, length) = (position & 0xFF, length & 0xFF);
    if position >= width || length == 0 {
        return b;
    }
    let length = length.min(width - position);
    let ones = (u64::MAX >> (64 - length)) << position;
    b & !ones | a << position & ones
}

fn extract(a: u64, position: u32, length: u32, width: u32) -> u64 {
    let (position, length) = (position & 0xFF, length & 0xFF);
    if position >= width || length == 0 {
        return 0;
    }
    a >> position & (u64::MAX >> (64 - length.min(64)))
}

/// The sign bit of the field, or of `a` where the field passes its end, fills the result.
fn extract_signed(a: i64, position: u32, length: u32, width: u32) -> i64 {
    let (position, length) = (position & 0xFF, length & 0xFF);
    if length == 0 {
        return 0;
    }
    if position >= width {
        return a >> 63;
    }
    let length = length.min(width - position);
    (a >> position) << (64 - length) >> (64 - length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        assert_eq!(extract(0xABCD_1234, 8, 8, 32), 0x12);
        assert_eq!(extract(0xABCD_1234, 28, 8, 32), 0xA);
        assert_eq!(extract_signed(i64::from(0x0000_00F0i32), 4, 4, 32), -1);
        assert_eq!(extract_signed(i64::from(i32::MIN), 28, 8, 32), -8);
        assert_eq!(insert(0xF, 0, 30, 8, 32), 0xC000_0000);
        assert_eq!(insert(0x5, 0xFFFF, 4, 4, 32), 0xFF5F);
    }
}

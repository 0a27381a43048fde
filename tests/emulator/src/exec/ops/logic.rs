//! Bitwise logic, moves, selects, permutes, and the same on predicates.

use super::{Body, Opcode, OperandShape, lane, many};
use crate::exec::lanes::{LANES, Lane};
use crate::exec::memory::blend;
use crate::ptx::types::{Class, Ty};

pub(super) fn select(opcode: &mut Opcode) -> Option<OperandShape> {
    let ty = opcode.ty(0)?;
    if opcode.types.len() == 2 {
        return (opcode.name == "slct").then(|| slct(opcode)).flatten();
    }
    let name = opcode.name.clone();
    if let Some(run) = predicates(&name, ty) {
        return Some(OperandShape::uniform(
            run,
            ty,
            if matches!(name.as_str(), "not" | "mov") { 1 } else { 2 },
        ));
    }
    match name.as_str() {
        "mov" => Some(OperandShape::uniform(mov(ty), ty, 1)),
        "not" => one(ty).map(|run| OperandShape::uniform(run, ty, 1)),
        "cnot" => (ty == Ty::B32)
            .then(|| OperandShape::uniform(lane!(u32 => u32, |a| u32::from(a == 0)), ty, 1)),
        "and" | "or" | "xor" => two(&name, ty).map(|run| OperandShape::uniform(run, ty, 2)),
        "selp" => Some(OperandShape::new(selp(ty), ty, &[ty, ty, Ty::Pred])),
        "prmt" => prmt(opcode),
        "lop3" => (ty == Ty::B32).then(|| OperandShape::uniform(lop3(), ty, 4)),
        "shf" => shf(opcode),
        _ => None,
    }
}

fn predicates(name: &str, ty: Ty) -> Option<Body> {
    if ty != Ty::Pred {
        return None;
    }
    Some(match name {
        "mov" => Body::Lanes(|cx, i, mask| {
            cx.warp.registers.set_pred(i.d[0], cx.warp.registers.pred(i.s[0]), mask)
        }),
        "not" => Body::Lanes(|cx, i, mask| {
            cx.warp.registers.set_pred(i.d[0], !cx.warp.registers.pred(i.s[0]), mask)
        }),
        "and" => Body::Lanes(|cx, i, mask| {
            cx.warp.registers.set_pred(
                i.d[0],
                cx.warp.registers.pred(i.s[0]) & cx.warp.registers.pred(i.s[1]),
                mask,
            )
        }),
        "or" => Body::Lanes(|cx, i, mask| {
            cx.warp.registers.set_pred(
                i.d[0],
                cx.warp.registers.pred(i.s[0]) | cx.warp.registers.pred(i.s[1]),
                mask,
            )
        }),
        "xor" => Body::Lanes(|cx, i, mask| {
            cx.warp.registers.set_pred(
                i.d[0],
                cx.warp.registers.pred(i.s[0]) ^ cx.warp.registers.pred(i.s[1]),
                mask,
            )
        }),
        _ => return None,
    })
}

/// The handler of a move between registers of `ty`.
pub(crate) fn mov(ty: Ty) -> Body {
    match ty.class() {
        Class::Wide => many!(u64 => u64, |a| a),
        _ => match ty.bytes() {
            1 => lane!(u8 => u8, |a| a),
            2 => lane!(u16 => u16, |a| a),
            _ => many!(u32 => u32, |a| a),
        },
    }
}

fn one(ty: Ty) -> Option<Body> {
    Some(match ty {
        Ty::B16 => lane!(u16 => u16, |a| !a),
        Ty::B32 => many!(u32 => u32, |a| !a),
        Ty::B64 => many!(u64 => u64, |a| !a),
        _ => return None,
    })
}

fn two(name: &str, ty: Ty) -> Option<Body> {
    Some(match (name, ty) {
        ("and", Ty::B16) => lane!(u16, u16 => u16, |a, b| a & b),
        ("and", Ty::B32) => many!(u32, u32 => u32, |a, b| a & b),
        ("and", Ty::B64) => many!(u64, u64 => u64, |a, b| a & b),
        ("or", Ty::B16) => lane!(u16, u16 => u16, |a, b| a | b),
        ("or", Ty::B32) => many!(u32, u32 => u32, |a, b| a | b),
        ("or", Ty::B64) => many!(u64, u64 => u64, |a, b| a | b),
        ("xor", Ty::B16) => lane!(u16, u16 => u16, |a, b| a ^ b),
        ("xor", Ty::B32) => many!(u32, u32 => u32, |a, b| a ^ b),
        ("xor", Ty::B64) => many!(u64, u64 => u64, |a, b| a ^ b),
        _ => return None,
    })
}

fn selp(ty: Ty) -> Body {
    match ty.class() {
        Class::Wide => Body::Lanes(|cx, i, mask| {
            let (a, b) =
                (u64::read(&cx.warp.registers, i.s[0]), u64::read(&cx.warp.registers, i.s[1]));
            let pred = cx.warp.registers.pred(i.s[2]);
            let values =
                std::array::from_fn(|lane| if pred >> lane & 1 == 1 { a[lane] } else { b[lane] });
            blend(&mut cx.warp.registers.wide[i.d[0].index()], &values, mask);
        }),
        _ => Body::Lanes(|cx, i, mask| {
            let (a, b) =
                (u32::read(&cx.warp.registers, i.s[0]), u32::read(&cx.warp.registers, i.s[1]));
            let pred = cx.warp.registers.pred(i.s[2]);
            let values =
                std::array::from_fn(|lane| if pred >> lane & 1 == 1 { a[lane] } else { b[lane] });
            blend(&mut cx.warp.registers.narrow[i.d[0].index()], &values, mask);
        }),
    }
}

fn slct(opcode: &mut Opcode) -> Option<OperandShape> {
    let (ty, by) = (opcode.ty(0)?, opcode.ty(1)?);
    let run = match (ty.bytes(), by) {
        (4, Ty::S32) => lane!(u32, u32, i32 => u32, |a, b, c| if c >= 0 { a } else { b }),
        (4, Ty::F32) => lane!(u32, u32, f32 => u32, |a, b, c| if c >= 0.0 { a } else { b }),
        (8, Ty::S32) => lane!(u64, u64, i32 => u64, |a, b, c| if c >= 0 { a } else { b }),
        (8, Ty::F32) => lane!(u64, u64, f32 => u64, |a, b, c| if c >= 0.0 { a } else { b }),
        _ => return None,
    };
    Some(OperandShape::new(run, ty, &[ty, ty, by]))
}

fn lop3() -> Body {
    Body::Lanes(|cx, i, mask| {
        let read = |at: usize| cx.warp.registers.narrow[i.s[at].index()];
        let (a, b, c, table) = (read(0), read(1), read(2), read(3)[0]);
        let mut values = [0; LANES];
        for minterm in (0..8).filter(|minterm| table >> minterm & 1 == 1) {
            for lane in 0..LANES {
                let x = if minterm & 4 == 0 { !a[lane] } else { a[lane] };
                let y = if minterm & 2 == 0 { !b[lane] } else { b[lane] };
                let z = if minterm & 1 == 0 { !c[lane] } else { c[lane] };
                values[lane] |= x & y & z;
            }
        }
        blend(&mut cx.warp.registers.narrow[i.d[0].index()], &values, mask);
    })
}

fn shf(opcode: &mut Opcode) -> Option<OperandShape> {
    let (left, wrap) =
        (opcode.take_any(&["l", "r"])? == "l", opcode.take_any(&["wrap", "clamp"])? == "wrap");
    let run = match (left, wrap) {
        (true, true) => {
            many!(u32, u32, u32 => u32,
                |a, b, c| ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32)
        }
        (true, false) => {
            many!(u32, u32, u32 => u32,
                |a, b, c| ((u64::from(b) << 32 | u64::from(a)) << c.min(32) >> 32) as u32)
        }
        (false, true) => {
            many!(u32, u32, u32 => u32,
                |a, b, c| ((u64::from(b) << 32 | u64::from(a)) >> (c & 31)) as u32)
        }
        (false, false) => {
            many!(u32, u32, u32 => u32,
                |a, b, c| ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32)
        }
    };
    (opcode.ty(0) == Some(Ty::B32)).then(|| OperandShape::uniform(run, Ty::B32, 3))
}

fn prmt(opcode: &mut Opcode) -> Option<OperandShape> {
    let run = match opcode.take_any(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]) {
        None => many!(u32, u32, u32 => u32, permute),
        Some("f4e") => {
            lane!(u32, u32, u32 => u32,
                |a, b, c| ((u64::from(b) << 32 | u64::from(a)) >> (8 * (c & 3))) as u32)
        }
        Some("rc8") => {
            lane!(u32, u32, u32 => u32, |a, _, c| (a >> (8 * (c & 3)) & 0xFF) * 0x0101_0101)
        }
        Some("rc16") => {
            lane!(u32, u32, u32 => u32, |a, _, c| (a >> (16 * (c & 1)) & 0xFFFF) * 0x0001_0001)
        }
        Some(_) => return None,
    };
    (opcode.ty(0) == Some(Ty::B32)).then(|| OperandShape::uniform(run, Ty::B32, 3))
}

/// Four bytes picked from eight; bit 3 of a selector spreads the byte's sign instead.
#[inline(always)]
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let mut result = 0;
    for at in 0..4 {
        let pick = selector >> (4 * at);
        let byte = (bytes >> (8 * (pick & 7))) as u32 & 0xFF;
        let sign = (byte >> 7).wrapping_mul(0xFF);
        result |= (if pick & 8 == 0 { byte } else { sign }) << (8 * at);
    }
    result
}

#[cfg(test)]
mod tests {
    #[test]
    fn permutes() {
        assert_eq!(super::permute(0x3322_1100, 0x7766_5544, 0x7410), 0x7744_1100);
        assert_eq!(super::permute(0x0000_8000, 0, 0x0009), 0xFF);
    }
}

//! A warp's registers, lane by lane side by side, and loops over the lanes.

use half::{bf16, f16};

use super::Cx;
use crate::ptx::program::{Inst, Slot};

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;
/// All lanes.
pub(crate) const FULL: u32 = u32::MAX;

/// The three register files of a warp.
#[derive(Default)]
pub(crate) struct Registers {
    pub(crate) narrow: Vec<[u32; LANES]>,
    pub(crate) wide: Vec<[u64; LANES]>,
    pub(crate) preds: Vec<u32>,
}

impl Registers {
    /// Room for a kernel. Old values stay: a register that is read before it is written holds
    /// anything, as on the device.
    pub(crate) fn resize(&mut self, narrow: usize, wide: usize, preds: usize) {
        self.narrow.resize(narrow, [0; LANES]);
        self.wide.resize(wide, [0; LANES]);
        self.preds.resize(preds, 0);
    }

    #[inline(always)]
    pub(crate) fn pred(&self, slot: Slot) -> u32 {
        self.preds[slot.index()]
    }

    /// Sets the bits of `mask` to `bits`.
    #[inline(always)]
    pub(crate) fn set_pred(&mut self, slot: Slot, bits: u32, mask: u32) {
        let old = &mut self.preds[slot.index()];
        *old = *old & !mask | bits & mask;
    }
}

/// A type that a register holds.
pub(crate) trait Lane: Copy + Default {
    fn read(from: &Registers, slot: Slot) -> [Self; LANES];
    /// Stores the lanes of `mask`.
    fn write(to: &mut Registers, slot: Slot, values: &[Self; LANES], mask: u32);
}

macro_rules! lane {
    ($ty:ty, $file:ident, $word:ty, $get:expr, $put:expr) => {
        impl Lane for $ty {
            #[inline(always)]
            fn read(from: &Registers, slot: Slot) -> [Self; LANES] {
                let words = &from.$file[slot.index()];
                let mut values = [Self::default(); LANES];
                for lane in 0..LANES {
                    values[lane] = ($get)(words[lane]);
                }
                values
            }

            #[inline(always)]
            fn write(to: &mut Registers, slot: Slot, values: &[Self; LANES], mask: u32) {
                let words = &mut to.$file[slot.index()];
                if mask == FULL {
                    for lane in 0..LANES {
                        words[lane] = ($put)(values[lane]);
                    }
                } else {
                    for lane in 0..LANES {
                        let word: $word = ($put)(values[lane]);
                        words[lane] = if mask >> lane & 1 == 1 { word } else { words[lane] };
                    }
                }
            }
        }
    };
}

lane!(u32, narrow, u32, |w: u32| w, |v: u32| v);
lane!(i32, narrow, u32, |w: u32| w as i32, |v: i32| v as u32);
lane!(f32, narrow, u32, f32::from_bits, |v: f32| v.to_bits());
lane!(u16, narrow, u32, |w: u32| w as u16, |v: u16| u32::from(v));
lane!(i16, narrow, u32, |w: u32| w as i16, |v: i16| i32::from(v) as u32);
lane!(u8, narrow, u32, |w: u32| w as u8, |v: u8| u32::from(v));
lane!(i8, narrow, u32, |w: u32| w as i8, |v: i8| i32::from(v) as u32);
lane!(f16, narrow, u32, |w: u32| f16::from_bits(w as u16), |v: f16| u32::from(v.to_bits()));
lane!(bf16, narrow, u32, |w: u32| bf16::from_bits(w as u16), |v: bf16| u32::from(v.to_bits()));
lane!(u64, wide, u64, |w: u64| w, |v: u64| v);
lane!(i64, wide, u64, |w: u64| w as i64, |v: i64| v as u64);
lane!(f64, wide, u64, f64::from_bits, |v: f64| v.to_bits());

/// `d = f(a)`
#[inline(always)]
pub(crate) fn map1<A: Lane, R: Lane>(cx: &mut Cx<'_>, i: &Inst, mask: u32, f: impl Fn(A) -> R) {
    let a = A::read(&cx.warp.registers, i.s[0]);
    let mut r = [R::default(); LANES];
    for lane in 0..LANES {
        r[lane] = f(a[lane]);
    }
    R::write(&mut cx.warp.registers, i.d[0], &r, mask);
}

/// `d = f(a, b)`
#[inline(always)]
pub(crate) fn map2<A: Lane, B: Lane, R: Lane>(
    cx: &mut Cx<'_>,
    i: &Inst,
    mask: u32,
    f: impl Fn(A, B) -> R,
) {
    let a = A::read(&cx.warp.registers, i.s[0]);
    let b = B::read(&cx.warp.registers, i.s[1]);
    let mut r = [R::default(); LANES];
    for lane in 0..LANES {
        r[lane] = f(a[lane], b[lane]);
    }
    R::write(&mut cx.warp.registers, i.d[0], &r, mask);
}

/// `d = f(a, b, c)`
#[inline(always)]
pub(crate) fn map3<A: Lane, B: Lane, C: Lane, R: Lane>(
    cx: &mut Cx<'_>,
    i: &Inst,
    mask: u32,
    f: impl Fn(A, B, C) -> R,
) {
    let a = A::read(&cx.warp.registers, i.s[0]);
    let b = B::read(&cx.warp.registers, i.s[1]);
    let c = C::read(&cx.warp.registers, i.s[2]);
    let mut r = [R::default(); LANES];
    for lane in 0..LANES {
        r[lane] = f(a[lane], b[lane], c[lane]);
    }
    R::write(&mut cx.warp.registers, i.d[0], &r, mask);
}

/// One bit a lane: `f(a, b)`.
#[inline(always)]
pub(crate) fn bits2<A: Lane, B: Lane>(cx: &Cx<'_>, i: &Inst, f: impl Fn(A, B) -> bool) -> u32 {
    let a = A::read(&cx.warp.registers, i.s[0]);
    let b = B::read(&cx.warp.registers, i.s[1]);
    let mut bits = 0;
    for lane in 0..LANES {
        bits |= u32::from(f(a[lane], b[lane])) << lane;
    }
    bits
}

/// The lanes of a mask, lowest first.
#[inline(always)]
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let lane = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}

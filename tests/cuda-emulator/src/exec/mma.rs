//! `mma.sync.aligned`: D = A * B + C for one warp. The 32 words of one A or B register are 8 rows of 16 bytes (see [`super::matrix`]),
//! so fragments unpack row by row. Products are exact in f32; they are added to C one by one, k ascending, each sum rounded to
//! nearest. Hardware adds groups of products with fewer roundings in an order of its own.

use half::f16;

use super::Cx;
use super::lanes::{FULL, LANES, Lane};
use super::matrix::whole;
use crate::ptx::program::{Handler, Inst, Slot};
use crate::ptx::types::Ty;

const M: usize = 16;
const N: usize = 8;

/// The handler of `m16n8kK` with A and B of `ty` and an f32 accumulator; with its number of A registers.
pub(crate) fn select(k: usize, ty: Ty) -> Option<(Handler, usize)> {
    Some(match (k, ty) {
        (16, Ty::BF16) => (|cx, i, mask| multiply::<16, 2>(cx, i, mask, |word| pair(word, bf16)), 4),
        (8, Ty::BF16) => (|cx, i, mask| multiply::<8, 2>(cx, i, mask, |word| pair(word, bf16)), 2),
        (16, Ty::F16) => (|cx, i, mask| multiply::<16, 2>(cx, i, mask, |word| pair(word, half)), 4),
        (8, Ty::F16) => (|cx, i, mask| multiply::<8, 2>(cx, i, mask, |word| pair(word, half)), 2),
        (8, Ty::TF32) => (|cx, i, mask| multiply::<8, 1>(cx, i, mask, |word| [tf32(word), 0.0]), 4),
        (4, Ty::TF32) => (|cx, i, mask| multiply::<4, 1>(cx, i, mask, |word| [tf32(word), 0.0]), 2),
        _ => return None,
    })
}

#[inline(always)]
fn bf16(bits: u32) -> f32 {
    f32::from_bits(bits << 16)
}

#[inline(always)]
fn half(bits: u32) -> f32 {
    f16::from_bits(bits as u16).to_f32()
}

#[inline(always)]
fn pair(word: u32, f: impl Fn(u32) -> f32) -> [f32; 2] {
    [f(word & 0xFFFF), f(word >> 16)]
}

/// The tensor core reads the upper 19 bits.
#[inline(always)]
fn tf32(word: u32) -> f32 {
    f32::from_bits(word & !0x1FFF)
}

/// `K` columns of A; a register word holds `PER` elements.
#[inline(always)]
fn multiply<const K: usize, const PER: usize>(cx: &mut Cx<'_>, i: &Inst, mask: u32, unpack: impl Fn(u32) -> [f32; 2] + Copy) {
    if !whole(cx, mask) {
        return;
    }
    // Columns that one register covers: 4 lanes of a row, PER elements each.
    let span = 4 * PER;
    let column_tiles = K / span;
    let registers = &cx.warp.registers;
    let mut a = [[0f32; 16]; M];
    for tile in 0..2 * column_tiles {
        let words = &registers.narrow[i.s[tile].index()];
        let (row0, column0) = (tile % 2 * 8, tile / 2 * span);
        for (lane, &word) in words.iter().enumerate() {
            let values = unpack(word);
            let at = column0 + lane % 4 * PER;
            a[row0 + lane / 4][at..at + PER].copy_from_slice(&values[..PER]);
        }
    }
    let mut b = [[0f32; N]; K];
    for tile in 0..column_tiles {
        let words = &registers.narrow[i.s[2 * column_tiles + tile].index()];
        for (lane, &word) in words.iter().enumerate() {
            let values = unpack(word);
            for (part, &value) in values[..PER].iter().enumerate() {
                b[tile * span + lane % 4 * PER + part][lane / 4] = value;
            }
        }
    }
    let first = 3 * column_tiles;
    let c: [&[u32; LANES]; 4] = std::array::from_fn(|r| &registers.narrow[i.s[first + r].index()]);
    let mut d = [[0f32; N]; M];
    for lane in 0..LANES {
        for (r, words) in c.iter().enumerate() {
            d[lane / 4 + r / 2 * 8][lane % 4 * 2 + r % 2] = f32::from_bits(words[lane]);
        }
    }
    for (row, sums) in a.iter().zip(&mut d) {
        for (&left, right) in row.iter().zip(&b) {
            for (sum, &value) in sums.iter_mut().zip(right) {
                *sum += left * value;
            }
        }
    }
    for r in 0..4 {
        let mut out = [0f32; LANES];
        for (lane, value) in out.iter_mut().enumerate() {
            *value = d[lane / 4 + r / 2 * 8][lane % 4 * 2 + r % 2];
        }
        let slot: Slot = i.d[r];
        f32::write(&mut cx.warp.registers, slot, &out, FULL);
    }
}

//! `mma.sync.aligned`: D = A * B + C for one warp. The 32 words of one A or B register are 8 rows
//! of 16 bytes (see [`super::matrix`]), so fragments unpack row by row. Products are exact in f32;
//! they are added to C one by one, k ascending, each sum rounded to nearest. Hardware adds groups
//! of products with fewer roundings, in another order: [`super::numerics`]. Accumulators of f16 are
//! summed in f32, too, and rounded once at the end of the instruction.

use half::f16;

use super::Cx;
use super::lanes::{FULL, LANES, Lane};
use super::matrix::whole;
use super::numerics;
use crate::ptx::program::{Handler, Inst};
use crate::ptx::types::Ty;

const M: usize = 16;
const N: usize = numerics::COLUMNS;

/// Element type of an instruction's operands.
pub(super) trait Element {
    /// Elements of a register.
    const PER: usize;
    /// A register of a warp as 32 * PER values, row after row.
    fn unpack(words: &[u32; LANES], values: &mut [f32; 64]);
}

pub(super) struct Brain;
pub(super) struct Half;
struct Tensor;

/// Two halves a register, the lower one first.
#[inline(always)]
fn halves(words: &[u32; LANES], values: &mut [f32; 64], value: impl Fn(u16) -> f32) {
    for (two, &word) in values.chunks_exact_mut(2).zip(words) {
        two[0] = value(word as u16);
        two[1] = value((word >> 16) as u16);
    }
}

impl Element for Brain {
    const PER: usize = 2;

    #[inline(always)]
    fn unpack(words: &[u32; LANES], values: &mut [f32; 64]) {
        halves(words, values, |bits| f32::from_bits(u32::from(bits) << 16));
    }
}

impl Element for Half {
    const PER: usize = 2;

    #[inline(always)]
    fn unpack(words: &[u32; LANES], values: &mut [f32; 64]) {
        halves(words, values, |bits| f16::from_bits(bits).to_f32());
    }
}

impl Element for Tensor {
    const PER: usize = 1;

    /// The tensor core reads the upper 19 bits.
    #[inline(always)]
    fn unpack(words: &[u32; LANES], values: &mut [f32; 64]) {
        for (value, &word) in values.iter_mut().zip(words) {
            *value = f32::from_bits(word & !0x1FFF);
        }
    }
}

/// A form of the instruction.
pub(crate) struct Form {
    pub(crate) run: Handler,
    /// Registers of A, and of each of C and D.
    pub(crate) a_registers: usize,
    pub(crate) sums: usize,
}

/// The form `m16n8kK` with A and B of `ty` and accumulators of `sums`.
pub(crate) fn select(k: usize, ty: Ty, sums: Ty) -> Option<Form> {
    let (run, a_registers) = match (k, ty, sums) {
        (16, Ty::BF16, Ty::F32) => (handler::<16, Brain, false>(), 4),
        (8, Ty::BF16, Ty::F32) => (handler::<8, Brain, false>(), 2),
        (16, Ty::F16, Ty::F32) => (handler::<16, Half, false>(), 4),
        (8, Ty::F16, Ty::F32) => (handler::<8, Half, false>(), 2),
        (16, Ty::F16, Ty::F16) => (handler::<16, Half, true>(), 4),
        (8, Ty::F16, Ty::F16) => (handler::<8, Half, true>(), 2),
        (8, Ty::TF32, Ty::F32) => (handler::<8, Tensor, false>(), 4),
        (4, Ty::TF32, Ty::F32) => (handler::<4, Tensor, false>(), 2),
        _ => return None,
    };
    Some(Form { run, a_registers, sums: if sums == Ty::F16 { 2 } else { 4 } })
}

/// The fastest form that this host can run.
fn handler<const K: usize, E: Element, const HALF_SUMS: bool>() -> Handler {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
    {
        // SAFETY: the features are there.
        return |cx, i, mask| unsafe { multiply_avx2::<K, E, HALF_SUMS>(cx, i, mask) };
    }
    multiply::<K, E, HALF_SUMS>
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_avx2<const K: usize, E: Element, const HALF_SUMS: bool>(
    cx: &mut Cx<'_>,
    i: &Inst,
    mask: u32,
) {
    multiply::<K, E, HALF_SUMS>(cx, i, mask);
}

#[inline(always)]
fn multiply<const K: usize, E: Element, const HALF_SUMS: bool>(
    cx: &mut Cx<'_>,
    i: &Inst,
    mask: u32,
) {
    if !whole(cx, mask) {
        return;
    }
    // Columns that one register covers: 4 lanes of a row, PER elements each.
    let span = 4 * E::PER;
    let tiles = K / span;
    let registers = &cx.warp.registers.narrow;
    let mut values = [0f32; 64];
    let mut a = [[0f32; K]; M];
    for tile in 0..2 * tiles {
        E::unpack(&registers[i.s[tile].index()], &mut values);
        let (row, column) = (tile % 2 * 8, tile / 2 * span);
        for (row, values) in a[row..row + 8].iter_mut().zip(values.chunks_exact(span)) {
            row[column..column + span].copy_from_slice(values);
        }
    }
    let mut b = [[0f32; N]; K];
    for tile in 0..tiles {
        E::unpack(&registers[i.s[2 * tiles + tile].index()], &mut values);
        for k in 0..span {
            for n in 0..N {
                b[tile * span + k][n] = values[n * span + k];
            }
        }
    }
    let c = |r: usize| &registers[i.s[3 * tiles + r].index()];
    let mut d = [[0f32; N]; M];
    for (row, sums) in d.iter_mut().enumerate() {
        for t in 0..4 {
            let lane = row % 8 * 4 + t;
            if HALF_SUMS {
                [sums[2 * t], sums[2 * t + 1]] = unpack_half(c(row / 8)[lane]);
            } else {
                sums[2 * t] = f32::from_bits(c(row / 8 * 2)[lane]);
                sums[2 * t + 1] = f32::from_bits(c(row / 8 * 2 + 1)[lane]);
            }
        }
    }
    if numerics::is_device() {
        match cx.grid.is_hopper {
            true => add_as_devices::<K, { numerics::HOPPER_STEP }>(&a, &b, &mut d),
            false => add_as_devices::<K, { numerics::AMPERE_STEP }>(&a, &b, &mut d),
        }
    } else {
        add_in_order(&a, &b, &mut d);
    }
    if HALF_SUMS {
        for r in 0..2 {
            let row = |lane: usize| &d[lane / 4 + r * 8][lane % 4 * 2..];
            let out: [u32; LANES] =
                std::array::from_fn(|lane| pack_half(row(lane)[0], row(lane)[1]));
            u32::write(&mut cx.warp.registers, i.d[r], &out, FULL);
        }
        return;
    }
    for r in 0..4 {
        let out: [f32; LANES] =
            std::array::from_fn(|lane| d[lane / 4 + r / 2 * 8][lane % 4 * 2 + r % 2]);
        f32::write(&mut cx.warp.registers, i.d[r], &out, FULL);
    }
}

/// Adds `STEP` products at a time.
fn add_as_devices<const K: usize, const STEP: usize>(
    a: &[[f32; K]; M],
    b: &[[f32; N]; K],
    d: &mut [[f32; N]; M],
) {
    for (row, sums) in a.iter().zip(d) {
        for (row, b) in row.chunks(STEP).zip(b.chunks(STEP)) {
            numerics::add_step::<STEP>(row, b, sums);
        }
    }
}

/// Adds the products one by one.
#[inline(always)]
fn add_in_order<const K: usize>(a: &[[f32; K]; M], b: &[[f32; N]; K], d: &mut [[f32; N]; M]) {
    // Four rows at a time: their sums stay in registers.
    for (rows, sums) in a.chunks_exact(4).zip(d.chunks_exact_mut(4)) {
        let mut four: [[f32; N]; 4] = [sums[0], sums[1], sums[2], sums[3]];
        for k in 0..K {
            for (row, sum) in rows.iter().zip(&mut four) {
                for n in 0..N {
                    sum[n] += row[k] * b[k][n];
                }
            }
        }
        sums.copy_from_slice(&four);
    }
}

/// Two f16 of a register, the lower one first.
pub(super) fn unpack_half(word: u32) -> [f32; 2] {
    [word as u16, (word >> 16) as u16].map(|bits| f16::from_bits(bits).to_f32())
}

pub(super) fn pack_half(low: f32, high: f32) -> u32 {
    let [low, high] = [low, high].map(|value| u32::from(f16::from_f32(value).to_bits()));
    low | high << 16
}

//! bf16 weights multiplied with activations in bf16, a pair of each in a lane.
//!
//! A pair takes the place of an f32: rows have half the length, and blocks, tiles and order of sums
//! are those of [`Product`] with f32 weights. Nothing is converted, so that both operands are read
//! in memory order.

use std::marker::PhantomData;

use crate::Dtype;
use trail_platform::simd::{PairDot, Simd};

use super::product::{Block, K_BLOCK, few_rows};
use super::stored::{Stored, TILE_COLS};
use super::tile::{Ahead, Columns, prefetch_step, rest_of_row};
use super::{Packing, Product};

/// [`Stored`] form of pairs of bf16, multiplied by the instruction `D`. Its values are pairs.
pub(super) struct Pairs<D>(PhantomData<D>);

impl<V: Simd, D: PairDot<V>> Stored<V> for Pairs<D> {
    /// A pair has the size of an f32.
    const DTYPE: Dtype = Dtype::F32;

    #[inline(always)]
    fn step() -> usize {
        2 * V::LANES
    }

    #[inline(always)]
    unsafe fn add_step<const ROWS: usize>(
        sums: &mut [[V; TILE_COLS]; ROWS],
        x: *const f32,
        x_stride: usize,
        weights: [*const u8; TILE_COLS],
    ) {
        // SAFETY: the caller guarantees readable rows and the instructions of `V` and `D`.
        unsafe {
            for at in [0, V::LANES] {
                let mut pairs = [V::splat(0.0); ROWS];
                for (m, pairs) in pairs.iter_mut().enumerate() {
                    *pairs = V::load(x.add(m * x_stride + at));
                }
                for (j, &row) in weights.iter().enumerate() {
                    let w = V::load_f32(row.add(4 * at));
                    for m in 0..ROWS {
                        sums[m][j] = D::dot(sums[m][j], w, pairs[m]);
                    }
                }
            }
        }
    }
}

impl Product<'_> {
    /// The product of pairs: `k` is their number, and `dtype` is f32, whose size they have.
    ///
    /// # Safety
    ///
    /// The CPU must have the instruction of `L`.
    pub(super) unsafe fn run_pairs<L: PairLoops>(mut self) {
        assert!(self.dtype == Dtype::F32);
        let few_rows = self.rows <= few_rows(self.dtype, 2 * L::V::LANES);
        // Longer rows are read in blocks, which lie apart: no stream.
        let is_stream = self.rows == 1 && self.k <= K_BLOCK;
        self.for_each_block(few_rows, |product, block, rows, to_next| {
            // SAFETY: every row has `k_len` pairs, by `for_each_block`; the caller guarantees the
            // instruction.
            unsafe {
                if is_stream {
                    let sums = L::one_row(product.x.as_ptr(), rows, to_next, block.k_len);
                    product.put(&block, 0, sums);
                } else {
                    let weights = Columns { rows, ahead: Ahead::Weights(to_next) };
                    L::block(product, &block, weights);
                }
            }
        });
    }
}

/// The loops of a product, compiled for one instruction.
///
/// # Safety
///
/// The functions require the CPU to have the instruction.
pub(super) trait PairLoops {
    /// Registers.
    type V: Simd;
    /// See [`Product::block`].
    unsafe fn block(product: &mut Product<'_>, block: &Block, weights: Columns);
    /// See [`one_row`].
    unsafe fn one_row(
        x: *const f32,
        rows: [*const u8; TILE_COLS],
        to_next: isize,
        k: usize,
    ) -> [f32; TILE_COLS];
}

/// One row of activations times [`TILE_COLS`] rows of weights, one after the other: the memory is
/// read as one stream, where a tile has a stream for each row. The bits are those of a tile.
///
/// # Safety
///
/// As [`tiles`](super::tile::tiles), with the instructions of `V` and `D`.
#[inline(always)]
pub(super) unsafe fn one_row<V: Simd, D: PairDot<V>>(
    x: *const f32,
    rows: [*const u8; TILE_COLS],
    to_next: isize,
    k: usize,
) -> [f32; TILE_COLS] {
    let step = 2 * V::LANES;
    let whole = k - k % step;
    // SAFETY: whole steps are within the rows; the tail of the weights is copied to a zeroed buffer
    // of a whole step first.
    unsafe {
        let mut sums = [V::splat(0.0); TILE_COLS];
        for (j, sum) in sums.iter_mut().enumerate() {
            let row = rows[j];
            let next = rows.get(j + 1).map_or(rows[0].wrapping_offset(to_next), |next| *next);
            let to_next = next as isize - row as isize;
            let dot = |sum: V, at: usize, weights: *const u8| {
                D::dot(sum, V::load_f32(weights), V::load(x.add(at)))
            };
            for at in (0..whole).step_by(step) {
                let row = row.add(4 * at);
                prefetch_step::<V, Pairs<D>>(row, to_next);
                *sum = dot(dot(*sum, at, row), at + V::LANES, row.add(4 * V::LANES));
            }
            if whole < k {
                let rest = rest_of_row::<V, Pairs<D>>(row, whole, k);
                let (at, rest) = (whole, rest.as_ptr());
                *sum = dot(dot(*sum, at, rest), at + V::LANES, rest.add(4 * V::LANES));
            }
        }
        V::sum4(sums)
    }
}

/// Number of pairs of a row of `len` activations.
pub fn pairs_of(len: usize) -> usize {
    len.div_ceil(2)
}

/// Rounds a row of activations to bf16, to the nearest and to even, and clears the rest of `out`,
/// of [`Packing::stride`] pairs.
#[inline(always)]
pub(super) fn round_row(x: &[f32], out: &mut [f32]) {
    assert!(out.len() == Packing::stride(pairs_of(x.len())));
    let (pairs, rest) = x.as_chunks::<2>();
    let (out, padding) = out.split_at_mut(pairs.len());
    for (out, pair) in out.iter_mut().zip(pairs) {
        let [low, high] = pair.map(bf16_bits);
        *out = f32::from_bits(low >> 16 | high);
    }
    padding.fill(0.0);
    if let [last] = rest {
        padding[0] = f32::from_bits(bf16_bits(*last) >> 16);
    }
}

/// The bits of `x` rounded to bf16, in the upper half.
#[inline(always)]
fn bf16_bits(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    // The addition could make a number of a NaN.
    if x.is_nan() { 0x7fc0_0000 } else { rounded }
}

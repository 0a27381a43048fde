//! Matrix product of a few rows of activations in 8 bits with quantized weights: each word of
//! weights is multiplied with all rows as it is unpacked. The order of the sums, and so the bits,
//! are those of [`Q8Product`]'s tiles.

use std::marker::PhantomData;
use std::ops::Range;

use trail_platform::simd::{ByteDot, Bytes};

use crate::Dtype;

use super::Q8Product;
use super::ahead::{Ahead, LINE};
use super::byte_tile::{GROUP_WORDS, Scaling, Sink};
use super::q8::{Q8_VALUES, Q8Block};
use super::q8_product::{Q8Loops, offset_dot, store};
use super::unpack::{Interleaved, Layout, RowMajor, Unpack};

/// Most rows of activations with which weights are multiplied while they are unpacked.
const PART: usize = 4;

/// Most rows of activations whose products take no tile, by instructions that multiply bytes.
/// Measured: up to [`PART`] rows that is faster, and two parts are where a block has scales and
/// minima of 6 bits, if the registers hold the sums. Each number of rows is code for every type and
/// instruction, which takes its time to compile: hence not by all instructions.
pub(super) const fn few_rows<L: Q8Loops>(dtype: Dtype) -> usize {
    match (dtype, L::PARTS) {
        (_, 0) => 1,
        (Dtype::Q4K | Dtype::Q5K, parts) => parts * PART,
        _ => PART,
    }
}

impl Q8Product<'_> {
    /// A few rows of activations times the columns from `col`: in one part, or in two of about
    /// equal length, where the second finds the weights in L1.
    ///
    /// # Safety
    ///
    /// As `columns`.
    pub(super) unsafe fn few_by<L: Q8Loops, U: Unpack>(&mut self, col: usize) {
        let part = self.rows.div_ceil(self.rows.div_ceil(PART));
        for row in (0..self.rows).step_by(part) {
            let rows = row..self.rows.min(row + part);
            // SAFETY: the caller guarantees all.
            unsafe {
                if const { few_rows::<L>(U::DTYPE) == 1 } || rows.len() == 1 {
                    L::few_rows::<U, 1>(self, rows, col);
                } else if rows.len() == 2 {
                    L::few_rows::<U, 2>(self, rows, col);
                } else {
                    L::few_rows::<U, PART>(self, rows, col);
                }
            }
        }
    }

    /// Rows `rows` of activations, up to `ROWS`, times two registers of columns from `col`.
    ///
    /// # Safety
    ///
    /// As `columns`.
    #[inline(always)]
    pub(super) unsafe fn few_rows<V: Bytes, D: ByteDot<V>, U: Unpack, const ROWS: usize>(
        &mut self,
        rows: Range<usize>,
        col: usize,
    ) {
        // SAFETY: the caller guarantees all.
        unsafe {
            match self.interleaved {
                true => self.few_rows_by::<V, D, Interleaved, U, ROWS>(rows, col),
                false => self.few_rows_by::<V, D, RowMajor, U, ROWS>(rows, col),
            }
        }
    }

    /// The same for the weights' layout.
    ///
    /// # Safety
    ///
    /// As `columns`.
    #[inline(always)]
    unsafe fn few_rows_by<V: Bytes, D: ByteDot<V>, L: Layout, U: Unpack, const ROWS: usize>(
        &mut self,
        rows: Range<usize>,
        col: usize,
    ) {
        let cols = (2 * V::LANES).min(self.cols - col);
        // A number that the compiler does not know: each body is compiled once, not per register.
        let registers = cols.div_ceil(V::LANES);
        let mut ahead = self.ahead::<U>(col + cols, cols);
        let weights = [0, V::LANES].map(|lane| L::rows::<V>(self, U::DTYPE, col + lane, 0));
        let (per_row, blocks) = (Q8Block::per_row(self.k), self.k / U::DTYPE.block_values());
        // In place of missing rows the last one is multiplied again.
        let x = std::array::from_fn(|index| {
            let row = (rows.start + index).min(rows.end - 1);
            self.x[row * per_row..][..per_row].as_ptr()
        });
        // SAFETY: the caller guarantees the instructions.
        let mut sums = unsafe { [[V::splat(0.0); ROWS]; 2] };
        // A macro, as a closure need not be inlined.
        macro_rules! add {
            ($sums:expr, $register:ident, $block:ident) => {
                // SAFETY: the rows have `blocks` blocks; the caller guarantees the rest.
                unsafe {
                    let weights = &weights[$register];
                    add_block::<V, D, L, U, ROWS>($sums, x, weights, $block, &mut ahead)
                }
            };
        }
        if L::SHARES_LINES {
            for block in 0..blocks {
                for register in 0..registers {
                    add!(&mut sums[register], register, block);
                }
            }
        } else {
            for register in 0..registers {
                let mut register_sums = sums[register];
                for block in 0..blocks {
                    add!(&mut register_sums, register, block);
                }
                sums[register] = register_sums;
            }
        }
        for (index, row) in rows.enumerate() {
            let (sums, out) = ([sums[0][index], sums[1][index]], row * self.cols + col);
            // SAFETY: the result has the columns; the caller guarantees the instructions.
            unsafe { store(cols, sums, self.out.as_mut_ptr().add(out)) }
        }
    }
}

/// Adds the products of block `block` of a register's rows of weights with that of each row of `x`
/// to `sums`.
///
/// # Safety
///
/// The rows must have the block, and the CPU have the instructions of `V` and `D`.
#[inline(always)]
unsafe fn add_block<V: Bytes, D: ByteDot<V>, L: Layout, U: Unpack, const ROWS: usize>(
    sums: &mut [V; ROWS],
    mut x: [*const Q8Block; ROWS],
    weights: &L::Rows,
    block: usize,
    ahead: &mut Ahead,
) {
    let groups = U::DTYPE.block_values() / Q8_VALUES;
    // SAFETY: the caller guarantees the block.
    unsafe {
        for x in &mut x {
            *x = x.add(block * groups);
        }
        let mut dots = Dots::<V, D, U, ROWS>::new(x, groups, ahead);
        U::unpack::<V, L, _>(weights, block * U::DTYPE.block_bytes(), &mut dots);
        dots.add_to(sums, groups);
    }
}

/// Most groups of 32 values of a block.
const MAX_GROUPS: usize = 8;

/// Integer sums of `ROWS` rows of activations with a block of one register of columns.
struct Dots<'a, V: Bytes, D, U, const ROWS: usize> {
    /// Blocks of each row.
    x: [*const Q8Block; ROWS],
    ahead: &'a mut Ahead,
    /// `[groups][32 / SCALE_VALUES][rows]`
    dots: [[V::Words; ROWS]; 2 * MAX_GROUPS],
    scales: [V; 2 * MAX_GROUPS],
    mins: [V; MAX_GROUPS],
    types: PhantomData<(D, U)>,
}

impl<'a, V: Bytes, D: ByteDot<V>, U: Unpack, const ROWS: usize> Dots<'a, V, D, U, ROWS> {
    /// Parts of a group, each with a scale.
    const PARTS: usize = Q8_VALUES / U::Scaling::SCALE_VALUES;
    /// Words of a row in a block.
    const WORDS: usize = U::DTYPE.block_values() / 4;
    /// Cache lines that a block of one register of columns takes.
    const LINES: usize = (V::LANES * U::DTYPE.block_bytes()).div_ceil(LINE);

    /// Cache lines prefetched with the first `words` words of a block.
    const fn lines(words: usize) -> usize {
        words * Self::LINES / Self::WORDS
    }

    /// Sums with the `groups` blocks of activations of each row.
    ///
    /// # Safety
    ///
    /// The blocks must be readable, and the CPU have the instructions of `V` and `D`.
    #[inline(always)]
    unsafe fn new(x: [*const Q8Block; ROWS], groups: usize, ahead: &'a mut Ahead) -> Self {
        // SAFETY: the caller guarantees the blocks and the instructions.
        unsafe {
            let mut dots = [[V::splat_word([0; 4].as_ptr()); ROWS]; 2 * MAX_GROUPS];
            for (index, dots) in dots.iter_mut().enumerate().take(groups * Self::PARTS) {
                let (group, part) = (index / Self::PARTS, index % Self::PARTS);
                for (row, dot) in dots.iter_mut().enumerate() {
                    *dot = offset_dot::<V, U::Scaling>(x[row].add(group), part, U::OFFSET);
                }
            }
            let (scales, mins) = ([V::splat(0.0); 2 * MAX_GROUPS], [V::splat(0.0); MAX_GROUPS]);
            Dots { x, ahead, dots, scales, mins, types: PhantomData }
        }
    }

    /// Adds the products of `groups` groups to `sums`, in the order of `add_group`.
    ///
    /// # Safety
    ///
    /// As `new`.
    #[inline(always)]
    unsafe fn add_to(self, sums: &mut [V; ROWS], groups: usize) {
        for group in 0..groups {
            for (row, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the caller guarantees the blocks and the instructions.
                let (scale, q_sum) = unsafe {
                    let x = &*self.x[row].add(group);
                    (V::splat(x.scale), V::splat(x.sum))
                };
                for index in group * Self::PARTS..(group + 1) * Self::PARTS {
                    let dot = V::to_f32(self.dots[index][row]).mul(scale);
                    *sum = dot.mul_add(self.scales[index], *sum);
                }
                if U::Scaling::MINS {
                    *sum = q_sum.mul_add(self.mins[group], *sum);
                }
            }
        }
    }
}

impl<V: Bytes, D: ByteDot<V>, U: Unpack, const ROWS: usize> Sink<V> for Dots<'_, V, D, U, ROWS> {
    #[inline(always)]
    unsafe fn put(&mut self, group: usize, word: usize, q: V::Words) {
        // A block's prefetches are spread evenly over its words: a core has few buffers for misses.
        let position = group * GROUP_WORDS + word;
        self.ahead.prefetch_lines::<V>(Self::lines(position + 1) - Self::lines(position));
        let index = group * Self::PARTS + word * 4 / U::Scaling::SCALE_VALUES;
        for (row, dot) in self.dots[index].iter_mut().enumerate() {
            // SAFETY: the group is one of the block's; the caller guarantees the instructions.
            unsafe {
                let x = self.x[row].add(group).cast::<u8>();
                *dot = D::dot(*dot, q, V::splat_word(x.add(4 * word)), U::Scaling::WIDE);
            }
        }
    }

    #[inline(always)]
    unsafe fn put_scale(&mut self, index: usize, scale: V) {
        self.scales[index] = scale;
    }

    #[inline(always)]
    unsafe fn put_min(&mut self, index: usize, min: V) {
        self.mins[index] = min;
    }
}

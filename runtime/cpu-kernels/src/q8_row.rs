//! Matrix product of one row of activations in 8 bits with quantized weights: each word of weights
//! is multiplied as it is unpacked. The order of the sums, and so the bits, are those of
//! [`Q8Product`]'s tiles.

use std::marker::PhantomData;

use trail_platform::simd::{ByteDot, Bytes};

use super::Q8Product;
use super::ahead::{Ahead, LINE};
use super::byte_tile::{GROUP_WORDS, Scaling, Sink};
use super::q8::{Q8_VALUES, Q8Block};
use super::q8_product::{offset_dot, store};
use super::unpack::{Interleaved, Layout, RowMajor, Unpack};

impl Q8Product<'_> {
    /// One row of activations times two registers of columns from `col`.
    ///
    /// # Safety
    ///
    /// As `columns`.
    #[inline(always)]
    pub(super) unsafe fn one_row<V: Bytes, D: ByteDot<V>, U: Unpack>(&mut self, col: usize) {
        // SAFETY: the caller guarantees all.
        unsafe {
            match self.interleaved {
                true => self.one_row_by::<V, D, Interleaved, U>(col),
                false => self.one_row_by::<V, D, RowMajor, U>(col),
            }
        }
    }

    /// The same for the weights' layout.
    ///
    /// # Safety
    ///
    /// As `columns`.
    #[inline(always)]
    unsafe fn one_row_by<V: Bytes, D: ByteDot<V>, L: Layout, U: Unpack>(&mut self, col: usize) {
        let cols = (2 * V::LANES).min(self.cols - col);
        let mut ahead = self.ahead::<U>(col + cols, cols);
        let rows = [0, V::LANES].map(|lane| L::rows::<V>(self, U::DTYPE, col + lane, 0));
        let blocks = self.k / U::DTYPE.block_values();
        // SAFETY: the caller guarantees the instructions.
        let mut sums = unsafe { [V::splat(0.0); 2] };
        // A macro, as a closure need not be inlined.
        macro_rules! add {
            ($register:ident, $block:ident) => {{
                let (sum, rows) = (&mut sums[$register], &rows[$register]);
                // SAFETY: the rows have `blocks` blocks; the caller guarantees the rest.
                unsafe { self.add_block::<V, D, L, U>(sum, rows, $block, &mut ahead) }
            }};
        }
        if L::SHARES_LINES {
            for block in 0..blocks {
                for register in 0..2 {
                    add!(register, block);
                }
            }
        } else {
            for register in 0..2 {
                for block in 0..blocks {
                    add!(register, block);
                }
            }
        }
        // SAFETY: the result has the columns; the caller guarantees the instructions.
        unsafe { store(cols, sums, self.out.as_mut_ptr().add(col)) }
    }

    /// Adds the products of block `block` of a register's rows to `sum`.
    ///
    /// # Safety
    ///
    /// As `columns`; the rows must have the block.
    #[inline(always)]
    unsafe fn add_block<V: Bytes, D: ByteDot<V>, L: Layout, U: Unpack>(
        &self,
        sum: &mut V,
        rows: &L::Rows,
        block: usize,
        ahead: &mut Ahead,
    ) {
        let groups = U::DTYPE.block_values() / Q8_VALUES;
        let x = self.x[block * groups..][..groups].as_ptr();
        // SAFETY: `x` has the groups; the caller guarantees the rest.
        unsafe {
            let mut dots = Dots::<V, D, U>::new(x, groups, ahead);
            U::unpack::<V, L, _>(rows, block * U::DTYPE.block_bytes(), &mut dots);
            *sum = dots.add_to(*sum, groups);
        }
    }
}

/// Most groups of 32 values of a block.
const MAX_GROUPS: usize = 8;

/// Integer sums of one row of activations with a block of one register of columns.
struct Dots<'a, V: Bytes, D, U> {
    x: *const Q8Block,
    ahead: &'a mut Ahead,
    /// `[groups][32 / SCALE_VALUES]`
    dots: [V::Words; 2 * MAX_GROUPS],
    scales: [V; 2 * MAX_GROUPS],
    mins: [V; MAX_GROUPS],
    types: PhantomData<(D, U)>,
}

impl<'a, V: Bytes, D: ByteDot<V>, U: Unpack> Dots<'a, V, D, U> {
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

    /// Sums with the `groups` blocks of activations from `x`.
    ///
    /// # Safety
    ///
    /// The blocks must be readable, and the CPU have the instructions of `V` and `D`.
    #[inline(always)]
    unsafe fn new(x: *const Q8Block, groups: usize, ahead: &'a mut Ahead) -> Self {
        // SAFETY: the caller guarantees the blocks and the instructions.
        unsafe {
            let mut dots = [V::splat_word([0; 4].as_ptr()); 2 * MAX_GROUPS];
            for (index, dot) in dots.iter_mut().enumerate().take(groups * Self::PARTS) {
                let (group, part) = (index / Self::PARTS, index % Self::PARTS);
                *dot = offset_dot::<V, U::Scaling>(x.add(group), part, U::OFFSET);
            }
            let (scales, mins) = ([V::splat(0.0); 2 * MAX_GROUPS], [V::splat(0.0); MAX_GROUPS]);
            Dots { x, ahead, dots, scales, mins, types: PhantomData }
        }
    }

    /// Adds the products of `groups` groups to `sum`, in the order of `add_group`.
    ///
    /// # Safety
    ///
    /// As `new`.
    #[inline(always)]
    unsafe fn add_to(self, mut sum: V, groups: usize) -> V {
        for group in 0..groups {
            // SAFETY: the caller guarantees the blocks and the instructions.
            let (scale, q_sum) = unsafe {
                let x = &*self.x.add(group);
                (V::splat(x.scale), V::splat(x.sum))
            };
            for index in group * Self::PARTS..(group + 1) * Self::PARTS {
                let dot = V::to_f32(self.dots[index]).mul(scale);
                sum = dot.mul_add(self.scales[index], sum);
            }
            if U::Scaling::MINS {
                sum = q_sum.mul_add(self.mins[group], sum);
            }
        }
        sum
    }
}

impl<V: Bytes, D: ByteDot<V>, U: Unpack> Sink<V> for Dots<'_, V, D, U> {
    #[inline(always)]
    unsafe fn put(&mut self, group: usize, word: usize, q: V::Words) {
        // A block's prefetches are spread evenly over its words: a core has few buffers for misses.
        let position = group * GROUP_WORDS + word;
        self.ahead.prefetch_lines::<V>(Self::lines(position + 1) - Self::lines(position));
        let index = group * Self::PARTS + word * 4 / U::Scaling::SCALE_VALUES;
        // SAFETY: the group is one of the block's; the caller guarantees the instructions.
        unsafe {
            let x = V::splat_word(self.x.add(group).cast::<u8>().add(4 * word));
            self.dots[index] = D::dot(self.dots[index], q, x, U::Scaling::WIDE);
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

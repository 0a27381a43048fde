//! Matrix product of activations in 8 bits with quantized weights.
//!
//! A lane of a register is a row of weights: `out[m][n]` is the sum over blocks of 32 values, first
//! to last, of `scale_x * scale_w * dot`, where `dot` is an exact sum of integers. So the order of
//! the roundings depends on neither the rows in a call nor the tile.
//!
//! With more than a few rows of activations, weights are unpacked once per call, [`TILE_VALUES`]
//! values of a tile's columns at a time, and multiplied with all rows of activations while they are
//! in L1.

use std::ops::Range;

use crate::Dtype;
use trail_platform::simd::{ByteDot, Bytes, MAX_LANES};

use super::ahead::Ahead;
use super::byte_tile::{ByteTile, Scaling, TILE_VALUES, Unpacked};
use super::interleave::INTERLEAVED_ROWS;
use super::q8::{Q8_VALUES, Q8Block};
use super::q8_rows::few_rows;
use super::unpack::{
    BytesMxFp4, BytesQ4_0, BytesQ4_1, BytesQ4K, BytesQ5_0, BytesQ5_1, BytesQ5K, BytesQ6K,
    BytesQ8_0, Interleaved, Layout, RowMajor, Unpack, unpack_rows,
};

/// Operands of one product.
pub struct Q8Product<'a> {
    /// Activations `[rows][Q8Block::per_row(k)]`.
    pub x: &'a [Q8Block],
    /// Rows of activations.
    pub rows: usize,
    /// Weights: `[cols][k]` of `dtype`.
    pub weights: &'a [u8],
    /// True if the weights are interleaved, false if they are row-major. Interleaved ones begin
    /// with a group of [`INTERLEAVED_ROWS`], and their number is a multiple of it.
    pub interleaved: bool,
    /// Storage type of the weights, a quantized one.
    pub dtype: Dtype,
    /// Rows of weights.
    pub cols: usize,
    /// Length of a dot product.
    pub k: usize,
    /// Distance from `weights` to those that this thread will probably multiply next, bytes: they
    /// are prefetched.
    pub next: usize,
    /// Result: `[rows][cols]`.
    pub out: &'a mut [f32],
}

/// The loops of a product that run on registers, compiled for one instruction set.
///
/// # Safety
///
/// The function requires the CPU to have the instruction set.
pub(super) trait Q8Loops {
    /// Columns of a tile.
    const COLS: usize;
    /// The same with few rows of activations.
    const FEW_ROWS_COLS: usize;
    /// Most parts of up to [`PART`] rows of activations without a tile; 0: single rows alone.
    const PARTS: usize;
    /// See [`Q8Product::columns`].
    unsafe fn columns<U: Unpack>(product: &mut Q8Product<'_>, col: usize, tile: &mut ByteTile);
    /// See [`Q8Product::multiply`]. One function for all types with the same scaling: it takes no
    /// part in unpacking.
    unsafe fn multiply<S: Scaling>(
        product: &Q8Product<'_>,
        block: &Block,
        offset: i16,
        out: *mut f32,
    );
    /// See [`Q8Product::few_rows`].
    unsafe fn few_rows<U: Unpack, const ROWS: usize>(
        product: &mut Q8Product<'_>,
        rows: Range<usize>,
        col: usize,
    );
}

/// Evaluates an expression with the [`Unpack`] type of a [`Dtype`] as `U`: the list of all types.
macro_rules! by_type {
    ($dtype:expr, $U:ident => $body:expr) => {
        by_type!(@ $U, $body, $dtype,
            (Q8_0, BytesQ8_0), (Q4_0, BytesQ4_0), (Q4_1, BytesQ4_1), (Q5_0, BytesQ5_0),
            (Q5_1, BytesQ5_1), (Q4K, BytesQ4K), (Q5K, BytesQ5K), (Q6K, BytesQ6K),
            (MxFp4, BytesMxFp4))
    };
    (@ $U:ident, $body:expr, $dtype:expr, $(($name:ident, $unpack:ty)),*) => {
        match $dtype {
            $(Dtype::$name => {
                type $U = $unpack;
                $body
            })*
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => unreachable!("not quantized"),
        }
    };
}

impl Q8Product<'_> {
    /// # Safety
    ///
    /// The CPU must have the instruction set of `L`.
    pub(super) unsafe fn run<L: Q8Loops>(mut self) {
        assert!(self.k > 0 && self.k.is_multiple_of(self.dtype.block_values()));
        assert!(self.x.len() >= self.rows * Q8Block::per_row(self.k));
        assert!(self.weights.len() >= self.dtype.bytes_of(self.cols * self.k));
        assert!(self.out.len() >= self.rows * self.cols);
        assert!(!self.interleaved || self.cols.is_multiple_of(INTERLEAVED_ROWS));
        if self.rows == 0 {
            return;
        }
        let mut tile = ByteTile::new();
        let is_few = self.rows <= few_rows::<L>(self.dtype);
        let step = if is_few { L::FEW_ROWS_COLS } else { L::COLS };
        for col in (0..self.cols).step_by(step) {
            // SAFETY: the lengths are checked above; the caller guarantees the instruction set.
            unsafe {
                if is_few {
                    by_type!(self.dtype, U => self.few_by::<L, U>(col));
                } else {
                    by_type!(self.dtype, U => L::columns::<U>(&mut self, col, &mut tile));
                }
            }
        }
    }

    /// All rows of activations times the columns of a tile from `col`.
    ///
    /// # Safety
    ///
    /// The lengths must be those of `run`, and the CPU have the instructions of `V` and `L`.
    #[inline(always)]
    pub(super) unsafe fn columns<V: Bytes, L: Q8Loops, U: Unpack>(
        &mut self,
        col: usize,
        tile: &mut ByteTile,
    ) {
        let cols = (2 * V::LANES).min(self.cols - col);
        let mut ahead = self.ahead::<U>(col + cols, cols);
        let unpacked = tile.unpacked();
        for k in (0..self.k).step_by(TILE_VALUES) {
            let values = TILE_VALUES.min(self.k - k);
            let block = Block { col, cols, k, groups: values / Q8_VALUES, unpacked };
            // SAFETY: the rows have `values` values from `k`; the caller guarantees the rest.
            unsafe {
                match self.interleaved {
                    true => self.unpack::<V, Interleaved, U>(&block, values, &mut ahead),
                    false => self.unpack::<V, RowMajor, U>(&block, values, &mut ahead),
                }
            }
            let out = self.out.as_mut_ptr();
            // SAFETY: as above.
            unsafe { L::multiply::<U::Scaling>(self, &block, U::OFFSET, out) };
        }
    }

    /// Unpacks `values` values of the rows of `block`.
    ///
    /// # Safety
    ///
    /// As `columns`.
    #[inline(always)]
    unsafe fn unpack<V: Bytes, L: Layout, U: Unpack>(
        &self,
        block: &Block,
        values: usize,
        ahead: &mut Ahead,
    ) {
        let &Block { col, k, unpacked, .. } = block;
        let a = L::rows::<V>(self, U::DTYPE, col, k);
        let b = L::rows::<V>(self, U::DTYPE, col + V::LANES, k);
        // SAFETY: the rows have the values; the caller guarantees the rest.
        unsafe {
            unpack_rows::<V, L, U>(&a, values, ahead, unpacked);
            unpack_rows::<V, L, U>(&b, values, ahead, unpacked.second::<V>());
        }
    }

    /// The prefetch of the weights after those of a tile of `cols` columns, which ends at `end`.
    #[inline(always)]
    pub(super) fn ahead<U: Unpack>(&self, end: usize, cols: usize) -> Ahead {
        let row_bytes = U::DTYPE.bytes_of(self.k);
        let next = if end < self.cols { end * row_bytes } else { self.next };
        let next = self.weights.as_ptr().wrapping_add(next);
        Ahead::new(next, cols * row_bytes, 2 * self.k / U::DTYPE.block_values())
    }

    /// All rows of activations times one block of unpacked weights, added to `out`.
    ///
    /// # Safety
    ///
    /// As `columns`; `block` must be unpacked, and `out` be the result.
    #[inline(always)]
    pub(super) unsafe fn multiply<V: Bytes, D: ByteDot<V>, S: Scaling>(
        &self,
        block: &Block,
        offset: i16,
        out: *mut f32,
    ) {
        /// Instantiates one number of rows.
        macro_rules! rows {
            ($rows:literal, $row:expr) => {
                // SAFETY: the loop below stays within the rows; the caller guarantees the rest.
                unsafe { self.tile::<V, D, S, $rows>(block, offset, $row, out) }
            };
        }
        let mut row = 0;
        while row < self.rows {
            let rows = V::BYTE_TILE_ROWS.min(self.rows - row);
            match rows {
                1 => rows!(1, row),
                2 => rows!(2, row),
                3 if V::BYTE_TILE_ROWS >= 3 => rows!(3, row),
                4 if V::BYTE_TILE_ROWS >= 4 => rows!(4, row),
                5 if V::BYTE_TILE_ROWS >= 5 => rows!(5, row),
                6 if V::BYTE_TILE_ROWS >= 6 => rows!(6, row),
                _ => unreachable!("tiles have up to six rows"),
            }
            row += rows;
        }
    }

    /// `ROWS` rows of activations from `row` times one block of unpacked weights.
    ///
    /// # Safety
    ///
    /// As `multiply`, for `ROWS` rows.
    #[inline(always)]
    unsafe fn tile<V: Bytes, D: ByteDot<V>, S: Scaling, const ROWS: usize>(
        &self,
        block: &Block,
        offset: i16,
        row: usize,
        out: *mut f32,
    ) {
        let per_row = Q8Block::per_row(self.k);
        let x = self.x[row * per_row + block.k / Q8_VALUES..].as_ptr();
        let out = out.wrapping_add(row * self.cols + block.col);
        // SAFETY: the rows, the tile and the result have the values, by the caller's guarantee.
        unsafe {
            let mut sums = [[V::splat(0.0); 2]; ROWS];
            if block.k > 0 {
                for (m, sums) in sums.iter_mut().enumerate() {
                    *sums = load(block.cols, out.add(m * self.cols));
                }
            }
            for group in 0..block.groups {
                let weights = block.unpacked.skip::<V, S>(group * Q8_VALUES);
                add_group::<V, D, S, ROWS>(&mut sums, x.add(group), per_row, weights, offset);
            }
            for (m, &sums) in sums.iter().enumerate() {
                store(block.cols, sums, out.add(m * self.cols));
            }
        }
    }
}

/// A block of output columns and of `k`, and its unpacked weights.
pub(super) struct Block {
    col: usize,
    cols: usize,
    k: usize,
    /// Number of groups of 32 values.
    groups: usize,
    unpacked: Unpacked,
}

/// Reads the first `cols` of two registers' columns of one row of the result.
///
/// # Safety
///
/// `out` must be readable for the columns, and the CPU have `V`'s instructions.
#[inline(always)]
unsafe fn load<V: Bytes>(cols: usize, out: *const f32) -> [V; 2] {
    // SAFETY: the caller guarantees the columns; the copy has two registers.
    unsafe {
        if cols == 2 * V::LANES {
            return [V::load(out), V::load(out.add(V::LANES))];
        }
        let mut row = [0.0; 2 * MAX_LANES];
        out.copy_to_nonoverlapping(row.as_mut_ptr(), cols);
        [V::load(row.as_ptr()), V::load(row.as_ptr().add(V::LANES))]
    }
}

/// Writes the first `cols` of two registers' columns of one row of the result.
///
/// # Safety
///
/// `out` must be writable for the columns.
#[inline(always)]
pub(super) unsafe fn store<V: Bytes>(cols: usize, [a, b]: [V; 2], out: *mut f32) {
    // SAFETY: the caller guarantees the columns; the copy has two registers.
    unsafe {
        if cols == 2 * V::LANES {
            a.store(out);
            b.store(out.add(V::LANES));
            return;
        }
        let mut row = [0.0; 2 * MAX_LANES];
        a.store(row.as_mut_ptr());
        b.store(row.as_mut_ptr().add(V::LANES));
        out.copy_from_nonoverlapping(row.as_ptr(), cols);
    }
}

/// Adds the products of one group of 32 values: `ROWS` blocks of activations from `x`, `per_row`
/// blocks apart, and two registers of columns.
///
/// # Safety
///
/// The blocks and the group must be readable, and the CPU have the instructions of `V` and `D`.
#[inline(always)]
unsafe fn add_group<V: Bytes, D: ByteDot<V>, S: Scaling, const ROWS: usize>(
    sums: &mut [[V; 2]; ROWS],
    x: *const Q8Block,
    per_row: usize,
    weights: Unpacked,
    offset: i16,
) {
    let words = S::SCALE_VALUES / 4;
    // SAFETY: the caller guarantees the blocks and the group.
    unsafe {
        for part in 0..Q8_VALUES / S::SCALE_VALUES {
            let mut dots = [[V::splat_word([0; 4].as_ptr()); 2]; ROWS];
            for (m, dots) in dots.iter_mut().enumerate() {
                *dots = [offset_dot::<V, S>(x.add(m * per_row), part, offset); 2];
            }
            for word in part * words..(part + 1) * words {
                let q = weights.q.add(word * 2 * V::LANES);
                let (a, b) = (V::load_words(q), V::load_words(q.add(V::LANES)));
                for (m, dots) in dots.iter_mut().enumerate() {
                    let x = V::splat_word(x.add(m * per_row).cast::<u8>().add(4 * word));
                    dots[0] = D::dot(dots[0], a, x, S::WIDE);
                    dots[1] = D::dot(dots[1], b, x, S::WIDE);
                }
            }
            let scales = weights.scales.add(part * 2 * V::LANES);
            let scales = [V::load(scales), V::load(scales.add(V::LANES))];
            for (m, dots) in dots.into_iter().enumerate() {
                let scale = V::splat((*x.add(m * per_row)).scale);
                for (i, dot) in dots.into_iter().enumerate() {
                    sums[m][i] = V::to_f32(dot).mul(scale).mul_add(scales[i], sums[m][i]);
                }
            }
        }
        if S::MINS {
            let mins = [V::load(weights.mins), V::load(weights.mins.add(V::LANES))];
            for (m, sums) in sums.iter_mut().enumerate() {
                let sum = V::splat((*x.add(m * per_row)).sum);
                for (sums, min) in sums.iter_mut().zip(mins) {
                    *sums = sum.mul_add(min, *sums);
                }
            }
        }
    }
}

/// `offset` times the sum of the activations of part `part` of a block: the first term of the
/// integer sums of types without minima.
///
/// # Safety
///
/// The block must be readable, and the CPU have `V`'s instructions.
#[inline(always)]
pub(super) unsafe fn offset_dot<V: Bytes, S: Scaling>(
    x: *const Q8Block,
    part: usize,
    offset: i16,
) -> V::Words {
    // SAFETY: the caller guarantees the block and the instructions.
    unsafe {
        if S::MINS {
            return V::splat_word([0; 4].as_ptr());
        }
        let factors = match (S::SCALE_VALUES, part) {
            (16, 0) => [offset, 0],
            (16, _) => [0, offset],
            _ => [offset, offset],
        };
        V::dot_halves(V::splat_word((&raw const (*x).half_sums).cast()), factors)
    }
}

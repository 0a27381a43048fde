//! Matrix product: `out[m][n] = sum over k of x[m][k] * w[n][k]`.
//!
//! One kernel for a single decode row and for a long prefill chunk. A register tile is some rows of
//! activations by [`TILE_COLS`] rows of weights; each output has one register of partial sums.
//! Weights stay in memory in their stored dtype and are converted in registers. A block of four
//! weight rows by [`K_BLOCK`] stays in L1 for all rows of activations, so weights are read from
//! memory once per call.

use std::mem::MaybeUninit;

use crate::Dtype;
use trail_platform::simd::{MAX_LANES, Simd};

use super::Packing;
use super::quantized::{
    StoredMxFp4, StoredQ4_0, StoredQ4_1, StoredQ4K, StoredQ5_0, StoredQ5_1, StoredQ5K, StoredQ6K,
    StoredQ8_0,
};
use super::stored::{
    Stored, StoredBf16, StoredBf16ByParity, StoredF16, StoredF32, TILE_COLS, Widen,
};
use super::tile::{Ahead, Columns, Rows, prefetch_step, rest_of_row, tiles};

/// K block: longest dot product that is accumulated in registers. The sums of the K blocks are
/// added first to last.
pub(super) const K_BLOCK: usize = 1024;

/// Maximum number of rows (decode) for which weights are converted in registers for every tile, and
/// read in memory order. With more rows (prefill) it pays to convert a block of weights once, and
/// to process all blocks of the same `k` together, so that these activations stay in L2.
pub(super) const fn few_rows(dtype: Dtype, step: usize) -> usize {
    match dtype {
        // Five and six bits in two places: the conversion takes longer than the products of a tile.
        Dtype::Q5K | Dtype::Q6K => 4,
        // AVX-512 converts twice as many weights at once.
        _ if step > 16 => 24,
        _ => 12,
    }
}

/// Distance between the rows of a converted block, floats: not a power of two, so that the rows map
/// to different L1 sets.
const WIDE_STRIDE: usize = K_BLOCK + 2 * MAX_LANES;

const _: () = assert!(K_BLOCK.is_multiple_of(2 * MAX_LANES));

/// Evaluates an expression with the [`Stored`] type of a [`Dtype`] as `S`: the list of all types.
macro_rules! by_type {
    ($dtype:expr, $by_parity:expr, $S:ident => $body:expr) => {
        by_type!(@ $S, $body, $dtype,
            (Dtype::F32, StoredF32), (Dtype::F16, StoredF16),
            (Dtype::Bf16 if $by_parity, StoredBf16ByParity), (Dtype::Bf16, StoredBf16),
            (Dtype::Q8_0, StoredQ8_0), (Dtype::Q4_0, StoredQ4_0), (Dtype::Q4_1, StoredQ4_1),
            (Dtype::Q5_0, StoredQ5_0), (Dtype::Q5_1, StoredQ5_1), (Dtype::Q4K, StoredQ4K),
            (Dtype::Q5K, StoredQ5K), (Dtype::Q6K, StoredQ6K), (Dtype::MxFp4, StoredMxFp4))
    };
    (@ $S:ident, $body:expr, $dtype:expr,
        $(($pattern:pat $(if $guard:expr)?, $stored:ty)),*) => {
        match $dtype {
            $($pattern $(if $guard)? => {
                type $S = $stored;
                $body
            })*
        }
    };
}

/// Operands of one product.
pub struct Product<'a> {
    /// Activations: `[rows][Packing::stride(k)]`, zero beyond `k`.
    pub x: &'a [f32],
    /// Storage order of the activations; by parity with bf16 weights only.
    pub packing: Packing,
    /// Rows of activations.
    pub rows: usize,
    /// Weights, row-major: `[cols][k]` of `dtype`.
    pub weights: &'a [u8],
    /// Storage type of the weights.
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

/// The loops of a product that run on registers, compiled for one instruction set: a function for
/// each storage type, since the compiler's time grows faster than a function's length.
///
/// # Safety
///
/// The functions require the CPU to have the instruction set.
pub(super) trait Loops {
    /// Registers.
    type V: Simd;
    /// See [`Product::block`].
    unsafe fn block<S: Stored<Self::V>>(product: &mut Product<'_>, block: &Block, weights: Columns);
    /// See [`WideTile::fill`].
    unsafe fn fill<S: Widen<Self::V>>(
        wide: &mut WideTile,
        rows: [*const u8; TILE_COLS],
        to_next: isize,
        k_len: usize,
    ) -> Columns;
}

impl Product<'_> {
    /// # Safety
    ///
    /// The CPU must have the instruction set of `L`.
    pub(super) unsafe fn run<L: Loops>(mut self) {
        assert!(!self.packing.by_parity() || self.dtype == Dtype::Bf16);
        let (dtype, by_parity) = (self.dtype, self.packing.by_parity());
        let step = 2 * L::V::LANES;
        let few_rows = self.rows <= few_rows(dtype, step);
        let mut wide = WideTile::new();
        self.for_each_block(few_rows, |product, block, rows, to_next| {
            let weights = Columns { rows, ahead: Ahead::Weights(to_next) };
            // SAFETY: every row has `k_len` values, by `for_each_block`; the caller guarantees the
            // instruction set.
            unsafe {
                if few_rows || dtype == Dtype::F32 {
                    by_type!(dtype, by_parity, S => L::block::<S>(product, &block, weights));
                } else {
                    let k_len = block.k_len;
                    let block = Block { k_len: k_len.next_multiple_of(step), ..block };
                    let weights = by_type!(
                        dtype, by_parity, S => L::fill::<S>(&mut wide, rows, to_next, k_len)
                    );
                    L::block::<StoredF32>(product, &block, weights);
                }
            }
        });
    }

    /// Calls `each(product, block, rows, to_next)` for all blocks of the result, with the block's
    /// rows of weights, readable for its `k_len` values, and the distance in bytes to those of the
    /// next block. `few_rows`: in the order of memory, else all blocks of the same `k` together.
    pub(super) fn for_each_block(
        &mut self,
        few_rows: bool,
        mut each: impl FnMut(&mut Self, Block, [*const u8; TILE_COLS], isize),
    ) {
        assert!(self.k > 0 && self.k.is_multiple_of(self.dtype.block_values()));
        assert!(self.x.len() >= self.rows * Packing::stride(self.k));
        assert!(self.weights.len() >= self.dtype.bytes_of(self.cols * self.k));
        assert!(self.out.len() >= self.rows * self.cols);
        let (dtype, row_bytes) = (self.dtype, self.dtype.bytes_of(self.k));
        let (tiles, ks) = (self.cols.div_ceil(TILE_COLS), self.k.div_ceil(K_BLOCK));
        let place = |i: usize| {
            let (col, k) = if few_rows { (i / ks, i % ks) } else { (i % tiles, i / tiles) };
            (col * TILE_COLS, k * K_BLOCK)
        };
        let first_byte = |(col, k): (usize, usize)| (col * row_bytes + dtype.bytes_of(k)) as isize;
        for i in 0..tiles * ks {
            let (col, k) = place(i);
            let cols = TILE_COLS.min(self.cols - col);
            let block = Block { col, cols, k, k_len: K_BLOCK.min(self.k - k) };
            let rows = std::array::from_fn(|j| {
                let row = col + j.min(cols - 1);
                self.weights[row * row_bytes + dtype.bytes_of(k)..].as_ptr()
            });
            let next =
                if i + 1 < tiles * ks { first_byte(place(i + 1)) } else { self.next as isize };
            let to_next = next - first_byte((col, k));
            each(self, block, rows, to_next);
        }
    }

    /// All rows of activations times one block of weights.
    ///
    /// # Safety
    ///
    /// Each row of `weights` must be readable for `k_len` values of `S`, and the CPU have `V`'s
    /// instructions.
    #[inline(always)]
    pub(super) unsafe fn block<V: Simd, S: Stored<V>>(&mut self, block: &Block, weights: Columns) {
        let first = self.x[block.k..].as_ptr();
        let x = Rows { first, stride: Packing::stride(self.k), len: self.rows };
        // SAFETY: the rows of `x` have `k_len` values from `k`, and are padded.
        unsafe { tiles::<V, S>(x, weights, block.k_len, |row, sums| self.put(block, row, sums)) };
    }

    /// Stores the sums of the first block of K, and adds those of the others.
    #[inline(always)]
    pub(super) fn put(&mut self, block: &Block, row: usize, sums: [f32; TILE_COLS]) {
        let Block { col, cols, k, .. } = *block;
        let out = &mut self.out[row * self.cols + col..][..cols];
        match (<&mut [f32; TILE_COLS]>::try_from(&mut *out), k) {
            (Ok(out), 0) => *out = sums,
            (_, 0) => out.copy_from_slice(&sums[..cols]),
            _ => out.iter_mut().zip(&sums).for_each(|(out, sum)| *out += sum),
        }
    }
}

/// A block of output columns and of K.
pub(super) struct Block {
    col: usize,
    cols: usize,
    k: usize,
    pub(super) k_len: usize,
}

/// Weights of a block, converted to f32 once for many rows of activations.
#[repr(align(64))]
pub(super) struct WideTile([[MaybeUninit<f32>; WIDE_STRIDE]; TILE_COLS]);

impl WideTile {
    #[inline(always)]
    fn new() -> Self {
        WideTile([[MaybeUninit::uninit(); WIDE_STRIDE]; TILE_COLS])
    }

    /// Converts `k_len` values of each row, zero-padded to a whole step, and prefetches the values
    /// `to_next` bytes ahead. As f32, the result has the order in which `S` is multiplied.
    ///
    /// # Safety
    ///
    /// Each of `rows` must be readable for `k_len` values of `S`, and the CPU have `V`'s
    /// instructions.
    #[inline(always)]
    pub(super) unsafe fn fill<V: Simd, S: Widen<V>>(
        &mut self,
        rows: [*const u8; TILE_COLS],
        to_next: isize,
        k_len: usize,
    ) -> Columns {
        let step = S::step();
        let whole = k_len - k_len % step;
        for (row, wide) in rows.into_iter().zip(&mut self.0) {
            let wide = wide.as_mut_ptr().cast::<f32>();
            // SAFETY: whole steps are within the row; K_BLOCK is a multiple of a step, so `wide`
            // has room for the last.
            unsafe {
                for at in (0..whole).step_by(step) {
                    let row = row.add(S::DTYPE.bytes_of(at));
                    prefetch_step::<V, S>(row, to_next);
                    S::widen_step(row, wide.add(at));
                }
                if whole < k_len {
                    let rest = rest_of_row::<V, S>(row, whole, k_len);
                    S::widen_step(rest.as_ptr(), wide.add(whole));
                }
            }
        }
        Columns { rows: self.0.each_ref().map(|wide| wide.as_ptr().cast()), ahead: Ahead::Rows }
    }
}

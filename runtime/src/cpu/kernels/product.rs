//! Matrix product: `out[m][n] = sum over k of x[m][k] * w[n][k]`.
//!
//! One kernel for a single decode row and for a long prefill chunk. A register tile is some rows of
//! activations by [`TILE_COLS`] rows of weights; each output has one register of partial sums.
//! Weights stay in memory in their stored dtype and are converted in registers. A block of four
//! weight rows by [`K_BLOCK`] stays in L1 for all rows of activations, so weights are read from
//! memory once per call.

use std::mem::MaybeUninit;

use crate::cpu::simd::{MAX_LANES, Simd};
use crate::model::Dtype;

use super::Packing;
use super::stored::{Stored, StoredBf16, StoredF16, StoredF32};
use super::tile::{Ahead, Columns, Rows, TILE_COLS, rest_of_row, tiles};

/// K block: longest dot product that is accumulated in registers. The sums of the K blocks are
/// added first to last.
const K_BLOCK: usize = 1024;

/// Maximum number of rows (decode) for which weights are converted in registers for every tile, and
/// read in memory order. With more rows (prefill) it pays to convert a block of weights once, and
/// to process all blocks of the same `k` together, so that these activations stay in L2.
const FEW_ROWS: usize = 12;

/// Distance between the rows of a converted block, floats: not a power of two, so that the rows map
/// to different L1 sets.
const WIDE_STRIDE: usize = K_BLOCK + 2 * MAX_LANES;

const _: () = assert!(K_BLOCK.is_multiple_of(2 * MAX_LANES));

/// Operands of one product.
pub(crate) struct Product<'a> {
    /// Activations, packed for `dtype`: `[rows][Packing::stride(k)]`, zero beyond `k`.
    pub(crate) x: &'a [f32],
    /// Rows of activations.
    pub(crate) rows: usize,
    /// Weights, row-major: `[cols][k]` of `dtype`.
    pub(crate) weights: &'a [u8],
    /// Storage type of the weights.
    pub(crate) dtype: Dtype,
    /// Rows of weights.
    pub(crate) cols: usize,
    /// Length of a dot product.
    pub(crate) k: usize,
    /// Result: `[rows][cols]`.
    pub(crate) out: &'a mut [f32],
}

impl Product<'_> {
    /// # Safety
    ///
    /// The CPU must have `V`'s instructions.
    #[inline(always)]
    pub(super) unsafe fn run<V: Simd>(self) {
        assert!(self.k > 0);
        assert!(self.x.len() >= self.rows * Packing::stride(self.k));
        assert!(self.weights.len() >= self.dtype.bytes_of(self.cols * self.k));
        assert!(self.out.len() >= self.rows * self.cols);
        // SAFETY: the lengths are checked above; the caller guarantees `V`'s instructions.
        unsafe {
            match self.dtype {
                Dtype::F32 => self.blocks::<V, StoredF32>(),
                Dtype::F16 => self.blocks::<V, StoredF16>(),
                Dtype::Bf16 => self.blocks::<V, StoredBf16>(),
                quantized => unreachable!("no product with {quantized} weights"),
            }
        }
    }

    /// # Safety
    ///
    /// The operands must have the lengths `run` checks, and the CPU `V`'s instructions.
    #[inline(always)]
    unsafe fn blocks<V: Simd, S: Stored>(mut self) {
        let row_bytes = self.k * S::BYTES;
        let (cols, ks) = (self.cols.div_ceil(TILE_COLS), self.k.div_ceil(K_BLOCK));
        let few_rows = self.rows <= FEW_ROWS;
        let place = |i: usize| {
            let (col, k) = if few_rows { (i / ks, i % ks) } else { (i % cols, i / cols) };
            (col * TILE_COLS, k * K_BLOCK)
        };
        let first_byte = |(col, k): (usize, usize)| (col * row_bytes + k * S::BYTES) as isize;
        let mut wide = WideTile::new();
        for i in 0..cols * ks {
            let (col, k) = place(i);
            let cols = TILE_COLS.min(self.cols - col);
            let mut block = Block { col, cols, k, k_len: K_BLOCK.min(self.k - k) };
            let rows = std::array::from_fn(|j| {
                let row = col + j.min(cols - 1);
                self.weights[row * row_bytes + k * S::BYTES..].as_ptr()
            });
            let to_next = first_byte(place(i + 1)) - first_byte((col, k));
            let weights = Columns { rows, ahead: Ahead::Weights(to_next) };
            // SAFETY: every row has `k_len` values.
            unsafe {
                if S::IS_WIDE {
                    self.block::<V, S>(&block, weights, V::TILE_ROWS);
                } else if few_rows {
                    self.block::<V, S>(&block, weights, V::NARROW_TILE_ROWS);
                } else {
                    let weights = wide.fill::<V, S>(rows, to_next, block.k_len);
                    block.k_len = block.k_len.next_multiple_of(2 * V::LANES);
                    self.block::<V, StoredF32>(&block, weights, V::TILE_ROWS);
                }
            }
        }
    }

    /// All rows of activations times one block of weights.
    ///
    /// # Safety
    ///
    /// Each row of `weights` must be readable for `k_len` values of `S`, and the CPU have `V`'s
    /// instructions.
    #[inline(always)]
    unsafe fn block<V: Simd, S: Stored>(
        &mut self,
        block: &Block,
        weights: Columns,
        tile_rows: usize,
    ) {
        let Block { col, cols, k, k_len } = *block;
        let x =
            Rows { first: self.x[k..].as_ptr(), stride: Packing::stride(self.k), len: self.rows };
        let put = |row: usize, sums: [f32; TILE_COLS]| {
            let out = &mut self.out[row * self.cols + col..][..cols];
            match (<&mut [f32; TILE_COLS]>::try_from(&mut *out), k) {
                (Ok(out), 0) => *out = sums,
                (_, 0) => out.copy_from_slice(&sums[..cols]),
                _ => out.iter_mut().zip(&sums).for_each(|(out, sum)| *out += sum),
            }
        };
        // SAFETY: the rows of `x` have `k_len` values from `k`, and are padded.
        unsafe { tiles::<V, S>(x, tile_rows, weights, k_len, put) };
    }
}

/// A block of output columns and of K.
struct Block {
    col: usize,
    cols: usize,
    k: usize,
    k_len: usize,
}

/// Weights of a block, converted to f32 once for many rows of activations.
#[repr(align(64))]
struct WideTile([[MaybeUninit<f32>; WIDE_STRIDE]; TILE_COLS]);

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
    unsafe fn fill<V: Simd, S: Stored>(
        &mut self,
        rows: [*const u8; TILE_COLS],
        to_next: isize,
        k_len: usize,
    ) -> Columns {
        let step = 2 * V::LANES;
        let whole = k_len - k_len % step;
        for (row, wide) in rows.into_iter().zip(&mut self.0) {
            let wide = wide.as_mut_ptr().cast::<f32>();
            // SAFETY: whole steps are within the row; K_BLOCK is a multiple of a step, so `wide`
            // has room for the last.
            unsafe {
                for at in (0..whole).step_by(step) {
                    let row = row.add(at * S::BYTES);
                    V::prefetch_far(row.wrapping_offset(to_next));
                    widen_step::<V, S>(row, wide.add(at));
                }
                if whole < k_len {
                    let rest = rest_of_row::<S>(row, whole, k_len);
                    widen_step::<V, S>(rest.as_ptr(), wide.add(whole));
                }
            }
        }
        Columns { rows: self.0.each_ref().map(|wide| wide.as_ptr().cast()), ahead: Ahead::Rows }
    }
}

/// Converts `2 * V::LANES` values.
///
/// # Safety
///
/// `row` must be readable for as many values of `S`, `wide` writable for as many f32; the CPU must
/// have `V`'s instructions.
#[inline(always)]
unsafe fn widen_step<V: Simd, S: Stored>(row: *const u8, wide: *mut f32) {
    // SAFETY: the caller guarantees the pointers and `V`'s instructions.
    unsafe {
        S::first::<V>(row).store(wide);
        S::second::<V>(row).store(wide.add(V::LANES));
    }
}

//! Activations times weights: `out[m][n] = sum over k of x[m][k] * w[n][k]`.
//!
//! One kernel for a single decode row and for a long prefill. A tile is [`Simd::TILE_ROWS`] rows
//! of activations by [`TILE_COLS`] rows of weights; each of its outputs has one register of partial
//! sums. Weights stay in their stored dtype and are widened on the way into the registers.
//!
//! Four weight rows times [`K_BLOCK`] (16 KiB of bf16) stay in L1 while all rows of activations
//! pass, so weights come from memory once a call.

use std::mem::MaybeUninit;

use crate::cpu::simd::{MAX_LANES, Simd};
use crate::model::Dtype;

use super::Packing;
use super::stored::{Stored, StoredBf16, StoredF16, StoredF32};
use super::tile::{Columns, Rows, TILE_COLS, rest_of_row, tiles};

/// Longest dot product kept in registers. The sums of longer ones' blocks are added first to last.
const K_BLOCK: usize = 1024;

/// Up to so many rows of activations take the weights as they are stored. For more it pays to widen a
/// tile of weights first: the tile has then registers for more rows.
const NARROW_ROWS: usize = 2;

/// Floats between the rows of a widened tile: not a power of two, whose rows would compete for the
/// same places in L1.
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
        assert!(self.weights.len() >= self.cols * self.k * self.dtype.bytes());
        assert!(self.out.len() >= self.rows * self.cols);
        // SAFETY: the lengths are checked above; the instructions are the caller's.
        unsafe {
            match self.dtype {
                Dtype::F32 => self.blocks::<V, StoredF32>(),
                Dtype::F16 => self.blocks::<V, StoredF16>(),
                Dtype::Bf16 => self.blocks::<V, StoredBf16>(),
            }
        }
    }

    /// # Safety
    ///
    /// The operands must have the lengths `run` checks, and the CPU `V`'s instructions.
    #[inline(always)]
    unsafe fn blocks<V: Simd, S: Stored>(mut self) {
        let row_bytes = self.k * S::BYTES;
        let mut wide = WideTile::new();
        for col in (0..self.cols).step_by(TILE_COLS) {
            let cols = TILE_COLS.min(self.cols - col);
            for k in (0..self.k).step_by(K_BLOCK) {
                let mut block = Block { col, cols, k, k_len: K_BLOCK.min(self.k - k) };
                let first_byte = k * S::BYTES;
                let rows = std::array::from_fn(|j| {
                    let row = col + j.min(cols - 1);
                    self.weights[row * row_bytes + first_byte..].as_ptr()
                });
                let last = k + K_BLOCK >= self.k;
                let to_next =
                    if last { TILE_COLS * row_bytes - first_byte } else { K_BLOCK * S::BYTES };
                let weights = Columns { rows, to_next: to_next as isize };
                // SAFETY: each of the rows holds `k_len` values.
                unsafe {
                    if self.rows <= NARROW_ROWS {
                        self.block::<V, S>(&block, weights);
                    } else {
                        let weights = wide.fill::<V, S>(weights, block.k_len);
                        block.k_len = block.k_len.next_multiple_of(2 * V::LANES);
                        self.block::<V, StoredF32>(&block, weights);
                    }
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
    unsafe fn block<V: Simd, S: Stored>(&mut self, block: &Block, weights: Columns) {
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
        // SAFETY: the rows of `x` hold `k_len` values from `k`, and are padded.
        unsafe { tiles::<V, S>(x, weights, k_len, put) };
    }
}

/// Some columns of the output, and a part of the dot products.
struct Block {
    col: usize,
    cols: usize,
    k: usize,
    k_len: usize,
}

/// Weights of a block, widened once for many rows of activations.
#[repr(align(64))]
struct WideTile([[MaybeUninit<f32>; WIDE_STRIDE]; TILE_COLS]);

impl WideTile {
    #[inline(always)]
    fn new() -> Self {
        WideTile([[MaybeUninit::uninit(); WIDE_STRIDE]; TILE_COLS])
    }

    /// Widens `k_len` values of each row, and zeros up to a whole step. Read as f32, the rows of the
    /// result meet the activations in the order that `S` would.
    ///
    /// # Safety
    ///
    /// Each row of `weights` must be readable for `k_len` values of `S`, and the CPU have `V`'s
    /// instructions.
    #[inline(always)]
    unsafe fn fill<V: Simd, S: Stored>(&mut self, weights: Columns, k_len: usize) -> Columns {
        let step = 2 * V::LANES;
        let whole = k_len - k_len % step;
        for (row, wide) in weights.rows.into_iter().zip(&mut self.0) {
            let wide = wide.as_mut_ptr().cast::<f32>();
            // SAFETY: whole steps lie within the row; K_BLOCK is whole steps, so `wide` holds the last.
            unsafe {
                for at in (0..whole).step_by(step) {
                    let row = row.add(at * S::BYTES);
                    V::prefetch(row.wrapping_offset(weights.to_next));
                    widen_step::<V, S>(row, wide.add(at));
                }
                if whole < k_len {
                    let rest = rest_of_row::<S>(row, whole, k_len);
                    widen_step::<V, S>(rest.as_ptr(), wide.add(whole));
                }
            }
        }
        // The widened tile is in L1; what follows it has been asked for above.
        Columns { rows: self.0.each_ref().map(|wide| wide.as_ptr().cast()), to_next: 0 }
    }
}

/// Widens `2 * V::LANES` values.
///
/// # Safety
///
/// `row` must be readable for as many values of `S`, `wide` writable for as many f32; the CPU must
/// have `V`'s instructions.
#[inline(always)]
unsafe fn widen_step<V: Simd, S: Stored>(row: *const u8, wide: *mut f32) {
    // SAFETY: the caller's.
    unsafe {
        S::first::<V>(row).store(wide);
        S::second::<V>(row).store(wide.add(V::LANES));
    }
}

//! Activations times weights: `out[m][n] = sum over k of x[m][k] * w[n][k]`.
//!
//! One kernel for a single decode row and for a long prefill. A tile is [`Simd::TILE_ROWS`] rows
//! of activations by [`TILE_COLS`] rows of weights; each of its outputs has one register of partial
//! sums. Weights stay in their stored dtype and are widened on the way into the registers.
//!
//! Four weight rows times [`K_BLOCK`] (16 KiB of bf16) stay in L1 while all rows of activations
//! pass, so weights come from memory once a call.

use crate::cpu::simd::{MAX_LANES, Simd};
use crate::model::Dtype;

use super::Packing;

/// Rows of weights in a tile.
pub(crate) const TILE_COLS: usize = 4;

/// Longest dot product kept in registers. The sums of longer ones' blocks are added first to last.
const K_BLOCK: usize = 2048;

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
    unsafe fn blocks<V: Simd, S: Stored>(self) {
        let stride = Packing::stride(self.k);
        let row_bytes = self.k * S::BYTES;
        for col in (0..self.cols).step_by(TILE_COLS) {
            let cols = TILE_COLS.min(self.cols - col);
            for k in (0..self.k).step_by(K_BLOCK) {
                let k_len = K_BLOCK.min(self.k - k);
                // The last tile of a ragged edge repeats its last row of weights.
                let weights = std::array::from_fn(|j| {
                    let row = col + j.min(cols - 1);
                    self.weights[row * row_bytes + k * S::BYTES..].as_ptr()
                });
                let mut row = 0;
                while row < self.rows {
                    let rows = V::TILE_ROWS.min(self.rows - row);
                    let x = self.x[row * stride + k..].as_ptr();
                    let out = &mut self.out[row * self.cols + col..];
                    let place = Place { out, stride: self.cols, cols, first: k == 0 };
                    // SAFETY: `rows` rows of `x` and TILE_COLS of weights hold `k_len` values from
                    // `k`; `x` is padded.
                    unsafe {
                        match rows {
                            1 => place.put(tile::<V, S, 1>(x, stride, weights, k_len)),
                            2 => place.put(tile::<V, S, 2>(x, stride, weights, k_len)),
                            3 => place.put(tile::<V, S, 3>(x, stride, weights, k_len)),
                            4 => place.put(tile::<V, S, 4>(x, stride, weights, k_len)),
                            5 => place.put(tile::<V, S, 5>(x, stride, weights, k_len)),
                            _ => place.put(tile::<V, S, 6>(x, stride, weights, k_len)),
                        }
                    }
                    row += rows;
                }
            }
        }
    }
}

/// Where a tile's sums go.
struct Place<'a> {
    out: &'a mut [f32],
    stride: usize,
    cols: usize,
    /// The first block of `k` stores, the later ones add.
    first: bool,
}

impl Place<'_> {
    #[inline(always)]
    fn put<const ROWS: usize>(self, sums: [[f32; TILE_COLS]; ROWS]) {
        for (m, row) in sums.iter().enumerate() {
            let out = &mut self.out[m * self.stride..][..self.cols];
            for (out, &sum) in out.iter_mut().zip(row) {
                *out = if self.first { sum } else { *out + sum };
            }
        }
    }
}

/// `ROWS` x [`TILE_COLS`] dot products of length `k`.
///
/// # Safety
///
/// Each of the `ROWS` rows of `x`, `x_stride` floats apart, must be readable for `k` floats rounded up
/// to `2 * V::LANES`, and be zero (or finite) beyond `k`; each row of `weights` for `k` values of `S`.
/// The CPU must have `V`'s instructions.
#[inline(always)]
pub(super) unsafe fn tile<V: Simd, S: Stored, const ROWS: usize>(
    x: *const f32,
    x_stride: usize,
    weights: [*const u8; TILE_COLS],
    k: usize,
) -> [[f32; TILE_COLS]; ROWS] {
    let step = 2 * V::LANES;
    // SAFETY: whole steps lie within the rows; the ragged rest of the weights is copied to a
    // zeroed buffer of a whole step first.
    unsafe {
        let mut sums = [[V::splat(0.0); TILE_COLS]; ROWS];
        let whole = k - k % step;
        for at in (0..whole).step_by(step) {
            add_step::<V, S, ROWS>(
                &mut sums,
                x.add(at),
                x_stride,
                weights.map(|w| w.add(at * S::BYTES)),
            );
        }
        if whole < k {
            let mut rest = [[0_u8; 2 * MAX_LANES * 4]; TILE_COLS];
            for (rest, row) in rest.iter_mut().zip(weights) {
                let bytes = (k - whole) * S::BYTES;
                row.add(whole * S::BYTES).copy_to_nonoverlapping(rest.as_mut_ptr(), bytes);
            }
            let rest = std::array::from_fn(|j| rest[j].as_ptr());
            add_step::<V, S, ROWS>(&mut sums, x.add(whole), x_stride, rest);
        }
        sums.map(V::sum4)
    }
}

/// Adds `2 * LANES` products to each sum: the step's first register, then its second.
///
/// # Safety
///
/// As [`tile`], for `2 * V::LANES` values of each row.
#[inline(always)]
unsafe fn add_step<V: Simd, S: Stored, const ROWS: usize>(
    sums: &mut [[V; TILE_COLS]; ROWS],
    x: *const f32,
    x_stride: usize,
    weights: [*const u8; TILE_COLS],
) {
    // SAFETY: the caller's.
    unsafe {
        let first: [V; ROWS] = std::array::from_fn(|m| V::load(x.add(m * x_stride)));
        for (j, &row) in weights.iter().enumerate() {
            V::prefetch(row.wrapping_add(PREFETCH_BYTES));
            let w = S::first::<V>(row);
            for m in 0..ROWS {
                sums[m][j] = first[m].mul_add(w, sums[m][j]);
            }
        }
        let second: [V; ROWS] = std::array::from_fn(|m| V::load(x.add(m * x_stride + V::LANES)));
        for (j, &row) in weights.iter().enumerate() {
            let w = S::second::<V>(row);
            for m in 0..ROWS {
                sums[m][j] = second[m].mul_add(w, sums[m][j]);
            }
        }
    }
}

/// How far ahead in its row a tile asks for weights.
const PREFETCH_BYTES: usize = 512;

/// A storage type of weights: how `2 * LANES` values become two registers.
///
/// # Safety
///
/// The functions require `p` readable for `2 * V::LANES * BYTES` bytes and `V`'s instructions.
pub(super) trait Stored {
    /// Bytes of a value.
    const BYTES: usize;
    /// The register met by the first half of a step's activations.
    unsafe fn first<V: Simd>(p: *const u8) -> V;
    /// The register met by the second half.
    unsafe fn second<V: Simd>(p: *const u8) -> V;
}

/// f32, natural order.
pub(super) struct StoredF32;
/// IEEE half precision, natural order.
pub(super) struct StoredF16;
/// bf16: even places, then odd ones.
pub(super) struct StoredBf16;

/// Implements [`Stored`]: the loads of the first and of the second register.
macro_rules! stored {
    ($name:ident, $bytes:literal, |$p:ident, $V:ident| $first:expr, $second:expr) => {
        impl Stored for $name {
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn first<$V: Simd>($p: *const u8) -> $V {
                // SAFETY: the caller's.
                unsafe { $first }
            }

            #[inline(always)]
            unsafe fn second<$V: Simd>($p: *const u8) -> $V {
                // SAFETY: the caller's.
                unsafe { $second }
            }
        }
    };
}

stored!(StoredF32, 4, |p, V| V::load_f32(p), V::load_f32(p.add(V::LANES * 4)));
stored!(StoredF16, 2, |p, V| V::load_f16(p), V::load_f16(p.add(V::LANES * 2)));
stored!(StoredBf16, 2, |p, V| V::load_bf16_even(p), V::load_bf16_odd(p));

//! Storage types of weights as the product kernel reads them: steps that are converted in
//! registers and multiplied. The block types of GGUF are in [`quantized`](super::quantized).

use std::marker::PhantomData;

use crate::Dtype;
use trail_platform::simd::Simd;

/// Rows of weights in a tile; it has up to [`Simd::TILE_ROWS`] rows of activations.
pub(super) const TILE_COLS: usize = 4;

/// A storage type of weights, and how registers of `V` multiply it. A new type is an implementation
/// of this trait and of [`Widen`], or of one of their two forms ([`Float`] and
/// [`Block`](super::quantized::Block)), and an arm of [`Product::run`](super::Product).
///
/// # Safety
///
/// The functions require rows of weights readable for a step's values and `V`'s instructions.
pub(super) trait Stored<V: Simd> {
    /// Type of the stored bytes.
    const DTYPE: Dtype;

    /// Values of a step, a multiple of `DTYPE`'s block and of `2 * V::LANES` or a divisor of
    /// `K_BLOCK` that needs no padding.
    fn step() -> usize;

    /// Adds a step's products of `ROWS` rows of activations, from `x` with distance `x_stride`, and
    /// of [`TILE_COLS`] rows of weights. Each sum gets its registers in ascending order.
    unsafe fn add_step<const ROWS: usize>(
        sums: &mut [[V; TILE_COLS]; ROWS],
        x: *const f32,
        x_stride: usize,
        weights: [*const u8; TILE_COLS],
    );
}

/// A type that is multiplied with activations in f32.
///
/// # Safety
///
/// As [`Stored`].
pub(super) trait Widen<V: Simd>: Stored<V> {
    /// Converts the values of a step of one row to f32, in the order in which they are multiplied,
    /// with the bits that `add_step` multiplies.
    unsafe fn widen_step(row: *const u8, wide: *mut f32);
}

/// A type of cached keys and values, whose vectors are read a register at a time.
///
/// # Safety
///
/// As [`Stored`]; `at` is a multiple of `V::LANES`.
pub(super) trait Cached<V: Simd>: Stored<V> {
    /// Offset in a vector of the bytes that [`load`](Cached::load) reads first.
    fn offset(at: usize) -> usize;
    /// Register of the values `at..at + V::LANES` of a vector.
    unsafe fn load(vector: *const u8, at: usize) -> V;
}

/// A type of single values: converts `2 * LANES` values to two registers.
///
/// # Safety
///
/// The functions require `p` readable for `2 * V::LANES` values and `V`'s instructions.
pub(super) trait Float {
    /// Type of the stored bytes.
    const DTYPE: Dtype;
    /// Register that is multiplied with the first half of a step's activations.
    unsafe fn first<V: Simd>(p: *const u8) -> V;
    /// Register that is multiplied with the second half.
    unsafe fn second<V: Simd>(p: *const u8) -> V;
}

/// [`Stored`] form of a [`Float`].
pub(super) struct Floats<T>(PhantomData<T>);

impl<V: Simd, T: Float> Stored<V> for Floats<T> {
    const DTYPE: Dtype = T::DTYPE;

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
        // SAFETY: the caller guarantees readable rows and `V`'s instructions.
        unsafe {
            let mut halves = [V::splat(0.0); ROWS];
            for (m, half) in halves.iter_mut().enumerate() {
                *half = V::load(x.add(m * x_stride));
            }
            for (j, &row) in weights.iter().enumerate() {
                let w = T::first::<V>(row);
                for m in 0..ROWS {
                    sums[m][j] = halves[m].mul_add(w, sums[m][j]);
                }
            }
            for (m, half) in halves.iter_mut().enumerate() {
                *half = V::load(x.add(m * x_stride + V::LANES));
            }
            for (j, &row) in weights.iter().enumerate() {
                let w = T::second::<V>(row);
                for m in 0..ROWS {
                    sums[m][j] = halves[m].mul_add(w, sums[m][j]);
                }
            }
        }
    }
}

impl<V: Simd, T: Float> Cached<V> for Floats<T> {
    #[inline(always)]
    fn offset(at: usize) -> usize {
        at * T::DTYPE.block_bytes()
    }

    #[inline(always)]
    unsafe fn load(vector: *const u8, at: usize) -> V {
        // SAFETY: the caller guarantees a readable vector and `V`'s instructions.
        unsafe { T::first(vector.add(<Self as Cached<V>>::offset(at))) }
    }
}

impl<V: Simd, T: Float> Widen<V> for Floats<T> {
    #[inline(always)]
    unsafe fn widen_step(row: *const u8, wide: *mut f32) {
        // SAFETY: the caller guarantees the pointers and `V`'s instructions.
        unsafe {
            T::first::<V>(row).store(wide);
            T::second::<V>(row).store(wide.add(V::LANES));
        }
    }
}

/// f32, natural order.
pub(super) type StoredF32 = Floats<F32>;
/// IEEE half precision, natural order.
pub(super) type StoredF16 = Floats<F16>;
/// bf16, natural order.
pub(super) type StoredBf16 = Floats<Bf16>;
/// bf16: even indices first, then odd ones.
pub(super) type StoredBf16ByParity = Floats<Bf16ByParity>;

/// Implements [`Float`]: the loads of the first and of the second register.
macro_rules! floats {
    ($name:ident, $dtype:expr, |$p:ident, $V:ident| $first:expr, $second:expr) => {
        pub(super) struct $name;

        impl Float for $name {
            const DTYPE: Dtype = $dtype;

            #[inline(always)]
            unsafe fn first<$V: Simd>($p: *const u8) -> $V {
                // SAFETY: the caller guarantees a readable `p` and `V`'s instructions.
                unsafe { $first }
            }

            #[inline(always)]
            unsafe fn second<$V: Simd>($p: *const u8) -> $V {
                // SAFETY: the caller guarantees a readable `p` and `V`'s instructions.
                unsafe { $second }
            }
        }
    };
}

floats!(F32, Dtype::F32, |p, V| V::load_f32(p), V::load_f32(p.add(V::LANES * 4)));
floats!(F16, Dtype::F16, |p, V| V::load_f16(p), V::load_f16(p.add(V::LANES * 2)));
floats!(Bf16, Dtype::Bf16, |p, V| V::load_bf16(p), V::load_bf16(p.add(V::LANES * 2)));
floats!(Bf16ByParity, Dtype::Bf16, |p, V| V::load_bf16_even(p), V::load_bf16_odd(p));

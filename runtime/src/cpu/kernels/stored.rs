//! Conversion of stored weights to f32 registers.

use crate::cpu::simd::Simd;

/// A storage type of weights: converts `2 * LANES` values to two registers.
///
/// # Safety
///
/// The functions require `p` readable for `2 * V::LANES * BYTES` bytes and `V`'s instructions.
pub(super) trait Stored {
    /// Size of a value, bytes.
    const BYTES: usize;
    /// True if the values are f32 and need no conversion.
    const IS_WIDE: bool = Self::BYTES == 4;
    /// Register that is multiplied with the first half of a step's activations.
    unsafe fn first<V: Simd>(p: *const u8) -> V;
    /// Register that is multiplied with the second half.
    unsafe fn second<V: Simd>(p: *const u8) -> V;
}

/// f32, natural order.
pub(super) struct StoredF32;
/// IEEE half precision, natural order.
pub(super) struct StoredF16;
/// bf16: even indices first, then odd ones.
pub(super) struct StoredBf16;

/// Implements [`Stored`]: the loads of the first and of the second register.
macro_rules! stored {
    ($name:ident, $bytes:literal, |$p:ident, $V:ident| $first:expr, $second:expr) => {
        impl Stored for $name {
            const BYTES: usize = $bytes;

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

stored!(StoredF32, 4, |p, V| V::load_f32(p), V::load_f32(p.add(V::LANES * 4)));
stored!(StoredF16, 2, |p, V| V::load_f16(p), V::load_f16(p.add(V::LANES * 2)));
stored!(StoredBf16, 2, |p, V| V::load_bf16_even(p), V::load_bf16_odd(p));

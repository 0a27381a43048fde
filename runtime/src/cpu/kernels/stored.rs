//! How stored weights become registers.

use crate::cpu::simd::Simd;

/// A storage type of weights: how `2 * LANES` values become two registers.
///
/// # Safety
///
/// The functions require `p` readable for `2 * V::LANES * BYTES` bytes and `V`'s instructions.
pub(super) trait Stored {
    /// Bytes of a value.
    const BYTES: usize;
    /// Whether it is f32 already.
    const IS_WIDE: bool = Self::BYTES == 4;
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

//! Types of packed weights, as the inner loop loads them.

use trail_platform::simd::Simd;

use crate::line::LANES;
use crate::packed::PAIR;

/// A type of `crate::packed`.
pub(super) trait Format {
    /// Bytes of a panel's 16 columns at two inputs.
    const PAIR_BYTES: usize;

    /// Loads the weights of `V::LANES` columns from `column` of the panel on, for both inputs.
    ///
    /// # Safety
    ///
    /// The CPU has V's feature; `pair` is readable for [`Self::PAIR_BYTES`], and the columns are
    /// below 16.
    unsafe fn load<V: Simd>(pair: *const u8, column: usize) -> [V; PAIR];
}

/// 32 floats.
pub(super) struct F32;
/// 16 words of two bf16.
pub(super) struct Bf16;
/// 32 bytes.
pub(super) struct Int8;

impl Format for F32 {
    const PAIR_BYTES: usize = 4 * PAIR * LANES;

    #[inline(always)]
    unsafe fn load<V: Simd>(pair: *const u8, column: usize) -> [V; PAIR] {
        // SAFETY: the caller's contract.
        unsafe { [V::load_f32(pair.add(4 * column)), V::load_f32(pair.add(4 * (LANES + column)))] }
    }
}

impl Format for Bf16 {
    const PAIR_BYTES: usize = 2 * PAIR * LANES;

    #[inline(always)]
    unsafe fn load<V: Simd>(pair: *const u8, column: usize) -> [V; PAIR] {
        // SAFETY: the caller's contract.
        unsafe {
            let words = pair.add(4 * column);
            [V::load_bf16_even(words), V::load_bf16_odd(words)]
        }
    }
}

impl Format for Int8 {
    const PAIR_BYTES: usize = PAIR * LANES;

    #[inline(always)]
    unsafe fn load<V: Simd>(pair: *const u8, column: usize) -> [V; PAIR] {
        // SAFETY: the caller's contract.
        unsafe {
            let both = [V::load_i8(pair.add(column)), V::load_i8(pair.add(LANES + column))];
            [V::to_f32(both[0]), V::to_f32(both[1])]
        }
    }
}

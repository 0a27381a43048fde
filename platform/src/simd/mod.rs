//! Vector registers of f32: one trait, one file per instruction set.
//!
//! Every CPU kernel is written once, generic over [`Simd`]; an instruction set only defines the
//! register. A `Simd` value is made by `unsafe` constructors alone, whose caller guarantees that
//! the CPU has the instructions. So *holding* one is the proof, and the arithmetic is safe.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_dot;
mod portable;

#[cfg(target_arch = "x86_64")]
pub use avx2::{Avx2, Avx512VlVnni, AvxVnni, Maddubs};
#[cfg(target_arch = "x86_64")]
pub use avx512::{Avx512, Avx512Bf16, Avx512Vnni, Maddubs512};
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
#[cfg(target_arch = "aarch64")]
pub use neon_dot::{NeonDotprod, NeonI8mm, NeonMull};
pub use portable::{PlainDot, PlainPairs, Portable};

/// Lanes of the widest register: buffers shared by all instruction sets are padded to it.
pub const MAX_LANES: usize = 16;

/// A register of [`Simd::LANES`] f32, and one of as many integers ([`Simd::Words`]), which unpacks
/// quantized weights.
///
/// Every constructor (the `unsafe` functions) requires that the CPU has the implementor's
/// instructions. Pointers need no alignment.
pub trait Simd: Copy {
    /// A register of `LANES` 32-bit integers. Like a register of f32, it is made by `unsafe`
    /// constructors alone.
    type Words: Copy;
    /// A linear function of integers 0..16: a table of its values where the CPU can look up a
    /// register's lanes, else scale and minimum.
    type NibbleTable: Copy;

    /// f32 values in a register.
    const LANES: usize;
    /// Rows of activations in a tile of the model's products with f32 weights: as many as the
    /// registers hold, with one sum per row and each of four weights, the row, and a weight.
    const TILE_ROWS: usize;
    /// The same where the tile widens the weights, which takes registers too.
    const NARROW_TILE_ROWS: usize;

    /// `x` in all lanes.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions.
    unsafe fn splat(x: f32) -> Self;
    /// Reads `LANES` f32.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions; `p` is readable for `LANES` f32.
    unsafe fn load(p: *const f32) -> Self;
    /// Reads `LANES` f32 from a pointer of any alignment.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions; `p` is readable for `4 * LANES` bytes.
    unsafe fn load_f32(p: *const u8) -> Self;
    /// Reads and widens `LANES` IEEE half-precision values.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions; `p` is readable for `2 * LANES` bytes.
    unsafe fn load_f16(p: *const u8) -> Self;
    /// Reads one IEEE half-precision value and widens it to all lanes.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions; `p` is readable for 2 bytes.
    unsafe fn splat_f16(p: *const u8) -> Self;
    /// Reads and widens `LANES` bf16.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions; `p` is readable for `2 * LANES` bytes.
    unsafe fn load_bf16(p: *const u8) -> Self;
    /// Reads `2 * LANES` bf16 and widens those at even places.
    ///
    /// Splitting by parity needs one shift (or one mask) and no shuffle, because a bf16 is the
    /// upper half of an f32; the activations are stored in the same order instead (`Packing`).
    ///
    /// # Safety
    ///
    /// The CPU has the instructions; `p` is readable for `4 * LANES` bytes.
    unsafe fn load_bf16_even(p: *const u8) -> Self;
    /// Reads `2 * LANES` bf16 and widens those at odd places.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions; `p` is readable for `4 * LANES` bytes.
    unsafe fn load_bf16_odd(p: *const u8) -> Self;
    /// Reads `LANES` unsigned bytes.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions; `p` is readable for `LANES` bytes.
    unsafe fn load_u8(p: *const u8) -> Self::Words;
    /// Reads `LANES` signed bytes.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions; `p` is readable for `LANES` bytes.
    unsafe fn load_i8(p: *const u8) -> Self::Words;
    /// Writes `LANES` f32.
    ///
    /// # Safety
    ///
    /// `p` is writable for `LANES` f32.
    unsafe fn store(self, p: *mut f32);

    /// `self + other`
    fn add(self, other: Self) -> Self;
    /// `self - other`
    fn sub(self, other: Self) -> Self;
    /// `self * other`
    fn mul(self, other: Self) -> Self;
    /// `self / other`
    fn div(self, other: Self) -> Self;
    /// The larger of each pair.
    fn max(self, other: Self) -> Self;
    /// The smaller of each pair.
    fn min(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once where the CPU can.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// `2^n` where `self = n + 1.5 * 2^23`, n an integer in -126..=127: the bits of such a sum hold
    /// n in their lowest places.
    fn pow2_of_biased(self) -> Self;
    /// `words >> bits` of each lane, filled with zeros; `bits` is below 32.
    fn shift_right(words: Self::Words, bits: u32) -> Self::Words;
    /// `words << bits` of each lane; `bits` is below 32.
    fn shift_left(words: Self::Words, bits: u32) -> Self::Words;
    /// `words & mask` of each lane.
    fn and(words: Self::Words, mask: u32) -> Self::Words;
    /// `a | b` of each lane.
    fn or(a: Self::Words, b: Self::Words) -> Self::Words;
    /// `words | value` of the lanes whose bit is set in `lanes`: lane i has bit i.
    fn or_where(words: Self::Words, lanes: u32, value: u32) -> Self::Words;
    /// Prepares [`nibble_values`](Self::nibble_values).
    fn nibble_table(scale: Self, min: Self) -> Self::NibbleTable;
    /// `scale * (words & 15) + min`, rounded once where the CPU can.
    fn nibble_values(table: Self::NibbleTable, words: Self::Words) -> Self;
    /// The byte of `table` with the index of each byte of `words`, which is below 16.
    fn lookup(words: Self::Words, table: [u8; 16]) -> Self::Words;
    /// Signed integers as f32: exact up to 2^24.
    fn to_f32(words: Self::Words) -> Self;
    /// The sum of the lanes of each of four registers. The four trees are the same, so a sum does
    /// not depend on which of the four places its register has.
    fn sum4(registers: [Self; 4]) -> [f32; 4];
    /// The largest lane.
    fn max_lane(self) -> f32;

    /// Prefetches the cache line of `p`, which need not be a valid address, into L2: for data in
    /// memory. Measured faster than into L1, whose few line buffers the demand loads need.
    #[inline(always)]
    fn prefetch_far(p: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: prefetching never faults, and SSE is part of x86-64.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(p.cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: prefetching never faults.
        unsafe {
            std::arch::asm!("prfm pldl2keep, [{p}]", p = in(reg) p,
                            options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = p;
    }

    /// Prefetches the cache line of `p`, which need not be a valid address, into L1: for data in
    /// L2.
    #[inline(always)]
    fn prefetch_near(p: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: prefetching never faults, and SSE is part of x86-64.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(p.cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: prefetching never faults.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{p}]", p = in(reg) p,
                            options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = p;
    }
}

/// Operations on registers of bytes, four in each 32-bit lane. In products of bytes a lane is a row
/// of weights.
pub trait Bytes: Simd {
    /// Rows of activations in a tile of products of bytes, which has two registers of sums per row.
    const BYTE_TILE_ROWS: usize;

    /// Reads 16 bytes of each of the first `LANES` rows, from byte `at`: register d holds bytes
    /// `4 d..4 d + 4` of every row.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions; the rows are readable for `at + 16` bytes.
    unsafe fn load_columns(rows: &[*const u8; MAX_LANES], at: usize) -> [Self::Words; 4];
    /// The lower half of each lane, an IEEE half-precision value, widened.
    fn low_half(words: Self::Words) -> Self;
    /// Reads `LANES` integers.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions; `p`, of any alignment, is readable for `LANES` integers.
    unsafe fn load_words(p: *const u32) -> Self::Words;
    /// Writes `LANES` integers.
    ///
    /// # Safety
    ///
    /// `p` is writable for `LANES` integers.
    unsafe fn store_words(words: Self::Words, p: *mut u32);
    /// Four bytes at `p`, of any alignment, in all lanes.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions; `p` is readable for 4 bytes.
    unsafe fn splat_word(p: *const u8) -> Self::Words;
    /// `words ^ mask` of each lane.
    fn xor(words: Self::Words, mask: u32) -> Self::Words;
    /// The signed byte `byte` (0..4) of each lane.
    fn signed_byte(words: Self::Words, byte: u32) -> Self::Words;
    /// Bit i of each lane, for i in 0..4, as bit 4 of the lane's byte i; all others are zero.
    #[inline(always)]
    fn spread_bits(words: Self::Words) -> Self::Words {
        // Bit i moves to bit 8 i + 4; the others that a shift brings are masked out.
        let words = Self::and(words, 15);
        let low = Self::or(Self::shift_left(words, 4), Self::shift_left(words, 11));
        let high = Self::or(Self::shift_left(words, 18), Self::shift_left(words, 25));
        Self::and(Self::or(low, high), 0x1010_1010)
    }
    /// The sum of the products of each lane's two signed halves with `factors`.
    fn dot_halves(words: Self::Words, factors: [i16; 2]) -> Self::Words;
}

/// An instruction that multiplies bytes.
pub trait ByteDot<V: Bytes> {
    /// `sum + q0 x0 + q1 x1 + q2 x2 + q3 x3` of each lane's bytes, exactly; q is unsigned, x signed
    /// and above -128. `wide`: a q can exceed 127; a constant.
    ///
    /// # Safety
    ///
    /// The CPU has the instruction.
    unsafe fn dot(sum: V::Words, q: V::Words, x: V::Words, wide: bool) -> V::Words;
}

/// An instruction that multiplies pairs of bf16.
pub trait PairDot<V: Simd> {
    /// `sum + w0 x0 + w1 x1` of each lane, whose 32 bits are two bf16 (value 0 in the lower half).
    /// Between one rounding and three; subnormal numbers may count as zero.
    ///
    /// # Safety
    ///
    /// The CPU has the instruction.
    unsafe fn dot(sum: V, w: V, x: V) -> V;
}

#[cfg(test)]
mod tests;

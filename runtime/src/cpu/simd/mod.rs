//! SIMD register type of the kernels: one trait, one file per instruction set.
//!
//! Every kernel is written once, generic over [`Simd`]; an instruction set only defines a register.
//! A value of a `Simd` type is made by an `unsafe` constructor whose caller guarantees the
//! instructions, so *having* one proves them, and the arithmetic is safe.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use portable::Portable;

/// Lanes of the widest register: buffers shared by all instruction sets are padded to it.
pub(crate) const MAX_LANES: usize = 16;

/// A register of [`Simd::LANES`] f32.
///
/// # Safety
///
/// Every constructor (the `unsafe` functions) requires that the CPU has the implementor's
/// instructions. Those that take a pointer require it to be readable (or writable) for the stated
/// number of elements; no alignment is required.
pub(crate) trait Simd: Copy {
    /// Number of f32 values in a register.
    const LANES: usize;
    /// Maximum rows of activations in a tile of f32 weights. Limited by registers: four sums and
    /// the activation of each row, and one weight.
    const TILE_ROWS: usize;
    /// Maximum rows where the tile converts the weights, which takes registers too.
    const NARROW_TILE_ROWS: usize;

    /// `x` in all lanes.
    unsafe fn splat(x: f32) -> Self;
    /// Reads `LANES` f32.
    unsafe fn load(p: *const f32) -> Self;
    /// Reads `LANES` f32 from a pointer of any alignment.
    unsafe fn load_f32(p: *const u8) -> Self;
    /// Reads `LANES` IEEE half-precision values as f32.
    unsafe fn load_f16(p: *const u8) -> Self;
    /// Reads `2 * LANES` bf16 and converts those at even indices.
    ///
    /// Splitting by parity needs one shift (or one mask) and no shuffle, because a bf16 is the
    /// upper half of an f32; the activations are stored in the same order instead (`Packing`).
    unsafe fn load_bf16_even(p: *const u8) -> Self;
    /// Reads `2 * LANES` bf16 and converts those at odd indices.
    unsafe fn load_bf16_odd(p: *const u8) -> Self;
    /// Writes `LANES` f32.
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
    /// `2^n` where `self = n + 1.5 * 2^23` and n is an integer in -126..=127: the lowest bits of
    /// such a sum are n.
    fn pow2_of_biased(self) -> Self;
    /// Sums of the lanes of four registers. The four reduction trees are the same, so a sum does
    /// not depend on the index of its register.
    fn sum4(registers: [Self; 4]) -> [f32; 4];
    /// Maximum over the lanes.
    fn max_lane(self) -> f32;

    /// Prefetches the cache line of `p`, which need not be a valid address, into L2. For data from
    /// memory this was measured better than L1, whose few line fill buffers the demand loads need.
    #[inline(always)]
    fn prefetch_far(p: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: prefetching never faults, and SSE is part of x86-64.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(p.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
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
        #[cfg(not(target_arch = "x86_64"))]
        let _ = p;
    }
}

#[cfg(test)]
mod tests;

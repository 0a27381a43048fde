//! AVX2 with FMA: tiles of 6 rows x 16 columns, 12 of the 16 registers being accumulators.

use std::arch::x86_64::{
    __m256, _mm256_and_si256, _mm256_castsi256_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32, _mm256_storeu_ps,
};

use super::Product;
use super::tile::{UPPER_HALF, Vector, sweep};
use crate::line::PAIR;

/// Rows of a full tile.
const ROWS: usize = 6;

impl Vector for __m256 {
    const WIDTH: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller vouches for AVX2.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches for AVX2 and for eight readable values.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_pairs(from: *const u32) -> [Self; PAIR] {
        // SAFETY: the caller vouches for AVX2 and for eight readable words.
        unsafe {
            let pairs = _mm256_loadu_si256(from.cast());
            let upper = _mm256_and_si256(pairs, _mm256_set1_epi32(UPPER_HALF));
            [_mm256_slli_epi32::<16>(pairs), upper].map(|bits| _mm256_castsi256_ps(bits))
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller vouches for AVX2 and for eight writable values.
        unsafe { _mm256_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: the caller vouches for FMA.
        unsafe { _mm256_fmadd_ps(self, b, c) }
    }
}

/// Adds A B to C.
///
/// # Safety
///
/// The CPU has AVX2 and FMA; the operands passed `Product::check`.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn multiply_add(mut product: Product<'_>) {
    let rows = product.rows;
    let full = rows - rows % ROWS;
    // SAFETY: the caller vouches for the CPU and the operands; the two ranges are 0..rows.
    unsafe {
        sweep::<__m256, ROWS, 2, 2>(&mut product, 0..full);
        match rows - full {
            1 => sweep::<__m256, 1, 8, 2>(&mut product, full..rows),
            2 => sweep::<__m256, 2, 4, 2>(&mut product, full..rows),
            3 => sweep::<__m256, 3, 4, 2>(&mut product, full..rows),
            4 => sweep::<__m256, 4, 2, 2>(&mut product, full..rows),
            5 => sweep::<__m256, 5, 2, 2>(&mut product, full..rows),
            _ => {}
        }
    }
}

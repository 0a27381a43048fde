//! AVX-512: tiles of 12 rows x 32 columns, 24 of the 32 registers being accumulators.
//! Only the foundation instructions are used.

use std::arch::x86_64::{
    __m512, _mm512_and_si512, _mm512_castsi512_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_set1_epi32, _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps,
};

use super::Product;
use super::tile::{UPPER_HALF, Vector, sweep};
use crate::line::PAIR;

/// Rows of a full tile.
const ROWS: usize = 12;

impl Vector for __m512 {
    const WIDTH: usize = 16;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller vouches for AVX-512F.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches for AVX-512F and for sixteen readable values.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_pairs(from: *const u32) -> [Self; PAIR] {
        // SAFETY: the caller vouches for AVX-512F and for sixteen readable words.
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            let upper = _mm512_and_si512(pairs, _mm512_set1_epi32(UPPER_HALF));
            [_mm512_slli_epi32::<16>(pairs), upper].map(|bits| _mm512_castsi512_ps(bits))
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller vouches for AVX-512F and for sixteen writable values.
        unsafe { _mm512_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: the caller vouches for AVX-512F.
        unsafe { _mm512_fmadd_ps(self, b, c) }
    }
}

/// Adds A B to C.
///
/// # Safety
///
/// The CPU has AVX-512F; the operands passed `Product::check`.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn multiply_add(mut product: Product<'_>) {
    let rows = product.rows;
    let full = rows - rows % ROWS;
    // SAFETY: the caller vouches for the CPU and the operands; the two ranges are 0..rows.
    unsafe {
        sweep::<__m512, ROWS, 2, 1>(&mut product, 0..full);
        match rows - full {
            1 => sweep::<__m512, 1, 4, 1>(&mut product, full..rows),
            2 => sweep::<__m512, 2, 4, 1>(&mut product, full..rows),
            3 => sweep::<__m512, 3, 4, 1>(&mut product, full..rows),
            4 => sweep::<__m512, 4, 4, 1>(&mut product, full..rows),
            5 => sweep::<__m512, 5, 2, 1>(&mut product, full..rows),
            6 => sweep::<__m512, 6, 2, 1>(&mut product, full..rows),
            7 => sweep::<__m512, 7, 2, 1>(&mut product, full..rows),
            8 => sweep::<__m512, 8, 2, 1>(&mut product, full..rows),
            9 => sweep::<__m512, 9, 2, 1>(&mut product, full..rows),
            10 => sweep::<__m512, 10, 2, 1>(&mut product, full..rows),
            11 => sweep::<__m512, 11, 2, 1>(&mut product, full..rows),
            _ => {}
        }
    }
}

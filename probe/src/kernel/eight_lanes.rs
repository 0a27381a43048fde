//! Instruction sets with 8 lanes and as many names of registers: AVX2 with FMA, and NEON, whose
//! registers count in pairs. Tiles of 6 rows x 16 columns: 12 of 16 registers are accumulators.

#[cfg(target_arch = "x86_64")]
use trail_platform::simd::Avx2;
#[cfg(target_arch = "aarch64")]
use trail_platform::simd::Neon;
use trail_platform::simd::Simd;

use super::Product;
use super::tile::sweep;

/// Rows of a full tile.
const ROWS: usize = 6;

/// Adds A B to C.
///
/// # Safety
///
/// The CPU has AVX2 and FMA; the operands passed `Product::check`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn multiply_add_avx2(product: Product<'_>) {
    // SAFETY: this function's contract is that of `multiply_add`.
    unsafe { multiply_add::<Avx2>(product) }
}

/// Adds A B to C.
///
/// # Safety
///
/// The CPU has NEON; the operands passed `Product::check`.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
pub(super) unsafe fn multiply_add_neon(product: Product<'_>) {
    // SAFETY: this function's contract is that of `multiply_add`.
    unsafe { multiply_add::<Neon>(product) }
}

/// # Safety
///
/// The CPU has the feature of V; the operands passed `Product::check`.
#[inline(always)]
unsafe fn multiply_add<V: Simd>(mut product: Product<'_>) {
    let rows = product.rows;
    let full = rows - rows % ROWS;
    // SAFETY: this function's contract is the kernel's: the CPU has the feature, the operands were
    // checked. The two ranges are 0..rows.
    unsafe {
        sweep::<V, ROWS, 2, 2>(&mut product, 0..full);
        match rows - full {
            1 => sweep::<V, 1, 8, 2>(&mut product, full..rows),
            2 => sweep::<V, 2, 4, 2>(&mut product, full..rows),
            3 => sweep::<V, 3, 4, 2>(&mut product, full..rows),
            4 => sweep::<V, 4, 2, 2>(&mut product, full..rows),
            5 => sweep::<V, 5, 2, 2>(&mut product, full..rows),
            _ => {}
        }
    }
}

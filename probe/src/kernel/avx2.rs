//! AVX2 with FMA: tiles of 6 rows x 16 columns, 12 of the 16 registers being accumulators.

use trail_base::simd::Avx2;

use super::Product;
use super::tile::sweep;

/// Rows of a full tile.
const ROWS: usize = 6;

/// Adds A B to C.
///
/// # Safety
///
/// The CPU has AVX2 and FMA; the operands passed `Product::check`.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn multiply_add(mut product: Product<'_>) {
    let rows = product.rows;
    let full = rows - rows % ROWS;
    // SAFETY: this function's contract is the kernel's: the CPU has AVX2 and FMA, the operands were
    // checked. The two ranges are 0..rows.
    unsafe {
        sweep::<Avx2, ROWS, 2, 2>(&mut product, 0..full);
        match rows - full {
            1 => sweep::<Avx2, 1, 8, 2>(&mut product, full..rows),
            2 => sweep::<Avx2, 2, 4, 2>(&mut product, full..rows),
            3 => sweep::<Avx2, 3, 4, 2>(&mut product, full..rows),
            4 => sweep::<Avx2, 4, 2, 2>(&mut product, full..rows),
            5 => sweep::<Avx2, 5, 2, 2>(&mut product, full..rows),
            _ => {}
        }
    }
}

//! AVX-512: tiles of 12 rows x 32 columns, 24 of the 32 registers being accumulators.
//! Only the foundation instructions are used.

use trail_platform::simd::Avx512;

use super::Product;
use super::tile::sweep;

/// Rows of a full tile.
const ROWS: usize = 12;

/// Adds A B to C.
///
/// # Safety
///
/// The CPU has AVX-512F; the operands passed `Product::check`.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn multiply_add(mut product: Product<'_>) {
    let rows = product.rows;
    let full = rows - rows % ROWS;
    // SAFETY: this function's contract is the kernel's: the CPU has AVX-512F, the operands were
    // checked. The two ranges are 0..rows.
    unsafe {
        sweep::<Avx512, ROWS, 2, 1>(&mut product, 0..full);
        match rows - full {
            1 => sweep::<Avx512, 1, 4, 1>(&mut product, full..rows),
            2 => sweep::<Avx512, 2, 4, 1>(&mut product, full..rows),
            3 => sweep::<Avx512, 3, 4, 1>(&mut product, full..rows),
            4 => sweep::<Avx512, 4, 4, 1>(&mut product, full..rows),
            5 => sweep::<Avx512, 5, 2, 1>(&mut product, full..rows),
            6 => sweep::<Avx512, 6, 2, 1>(&mut product, full..rows),
            7 => sweep::<Avx512, 7, 2, 1>(&mut product, full..rows),
            8 => sweep::<Avx512, 8, 2, 1>(&mut product, full..rows),
            9 => sweep::<Avx512, 9, 2, 1>(&mut product, full..rows),
            10 => sweep::<Avx512, 10, 2, 1>(&mut product, full..rows),
            11 => sweep::<Avx512, 11, 2, 1>(&mut product, full..rows),
            _ => {}
        }
    }
}

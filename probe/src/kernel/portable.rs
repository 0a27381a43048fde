//! Plain arithmetic, which the compiler maps to the registers of the baseline CPU (SSE2, NEON):
//! tiles of 3 rows x 16 columns, 12 accumulators of four lanes.

use trail_platform::simd::Portable;

use super::Product;
use super::tile::sweep;

/// Rows of a full tile.
const ROWS: usize = 3;

/// Adds A B to C.
///
/// # Safety
///
/// The operands passed `Product::check`.
pub(super) unsafe fn multiply_add(mut product: Product<'_>) {
    let rows = product.rows;
    let full = rows - rows % ROWS;
    // SAFETY: the operands were checked (this function's contract), and the two ranges are 0..rows.
    unsafe {
        sweep::<Portable, ROWS, 1, 1>(&mut product, 0..full);
        match rows - full {
            1 => sweep::<Portable, 1, 1, 1>(&mut product, full..rows),
            2 => sweep::<Portable, 2, 1, 1>(&mut product, full..rows),
            _ => {}
        }
    }
}

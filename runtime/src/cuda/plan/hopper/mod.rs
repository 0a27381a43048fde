//! Plans of the kernels for Hopper alone (kernels/hopper): off until a GPU has measured them.

pub mod attention;
pub mod bulk;
pub mod wgmma;

use super::Chip;
use super::gemm::{GemmPlan, Product};
use trail_ptx::Target;

/// The plan of `product` by Hopper's own kernels, as the forecast prefers them: `bulk_*` up to 32
/// rows, where a wgmma tile would be half empty, `wgmma_*` beyond. Logits have `bulk_*` alone.
/// `None` on other chips, and for logits of more than 64 rows.
pub fn gemm(chip: &Chip, product: Product) -> Option<GemmPlan> {
    if chip.target != Some(Target::Sm90a) {
        return None;
    }
    let many = (product.rows > wgmma::LEAST_ROWS).then(|| wgmma::gemm(chip, product)).flatten();
    many.or_else(|| bulk::gemm(chip, product))
}

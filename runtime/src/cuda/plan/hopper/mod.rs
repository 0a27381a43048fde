//! Plans of the kernels for Hopper alone (kernels/hopper).

pub mod attention;
pub mod wgmma;

use super::Chip;
use super::gemm::{GemmPlan, Product};
use super::order::Order;
use trail_ptx::Target;

/// The plan of `product` by Hopper's own kernels, `wgmma_*`. `None` on other chips, below
/// [`wgmma::LEAST_ROWS`] rows, where `skinny_*` is faster, and for logits.
pub fn gemm(chip: &Chip, product: Product, orders: &[Order]) -> Option<GemmPlan> {
    (chip.target == Some(Target::Sm90a)).then(|| wgmma::gemm(chip, product, orders)).flatten()
}

//! Launches of the matrix products, one function an epilogue. Of the operands the caller gives the
//! addresses; extents and tile order are the plan's.

use super::Launch;
use crate::cuda::plan::gemm::GemmPlan;
use trail_ptx::DevicePtr;
use trail_ptx::params::{GemmOperands, LogitsParams, QkvParams, ResidualParams, SwigluParams};

/// Inverse frequencies (radians per token) as the kernels want them: turns per token, as fractions
/// of 2^64.
pub fn rope_freqs(inverse_frequencies: &[f64]) -> Vec<u64> {
    let fraction = |frequency: &f64| {
        // In two halves, because an f64 holds 53 bits: what is left is below 2^-85 turns.
        let scaled = frequency / std::f64::consts::TAU * 2f64.powi(32);
        let high = scaled.floor();
        ((high as u64) << 32) + ((scaled - high) * 2f64.powi(32)) as u64
    };
    inverse_frequencies.iter().map(fraction).collect()
}

/// `partials` has room for `plan.partial_floats`; `tile_counters` are `plan.tile_counters`, zero
/// before the first launch, and every launch leaves them zero. The kernel gives a block one piece
/// where it has counters.
fn operands(plan: &GemmPlan, gemm: GemmOperands) -> GemmOperands {
    let tile_counters = if plan.tile_counters == 0 { DevicePtr::NULL } else { gemm.tile_counters };
    GemmOperands {
        tile_counters,
        rows: plan.product.rows as i32,
        n: plan.features as i32,
        k: plan.product.width as i32,
        k_padded: plan.width as i32,
        tile_swizzle: plan.tile_swizzle as i32,
        pieces: plan.order.pieces as i32,
        ..gemm
    }
}

/// Query, key and value projection: weights in order `RotationPairs`.
pub fn qkv(plan: &GemmPlan, params: QkvParams) -> Launch<QkvParams> {
    let params = QkvParams { gemm: operands(plan, params.gemm), ..params };
    Launch { plan: plan.launch, params }
}

/// O or down projection, added to the residual stream: weights in order `Plain`.
pub fn residual(plan: &GemmPlan, params: ResidualParams) -> Launch<ResidualParams> {
    let d = plan.product.features as i32;
    let params = ResidualParams { gemm: operands(plan, params.gemm), d, ..params };
    Launch { plan: plan.launch, params }
}

/// Gate and up projection: weights in order `Alternating`.
pub fn swiglu(plan: &GemmPlan, params: SwigluParams) -> Launch<SwigluParams> {
    let ff = (plan.product.features / 2) as i32;
    let params = SwigluParams { gemm: operands(plan, params.gemm), ff, ..params };
    Launch { plan: plan.launch, params }
}

/// Output projection of listed rows: weights in order `Plain`.
pub fn logits(plan: &GemmPlan, params: LogitsParams) -> Launch<LogitsParams> {
    let params = LogitsParams { gemm: operands(plan, params.gemm), ..params };
    Launch { plan: plan.launch, params }
}

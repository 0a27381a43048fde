//! Launch of the megakernel: all layers of a decode step at once.

use super::{Launch, attention_decode, qkv, residual, swiglu};
use crate::cuda::plan::megakernel::MegakernelPlan;
use std::ops::Range;
use trail_ptx::params::MegakernelParams;

/// Layers `range` of a decode step. The parameters of products and attention are those of their own
/// launches, without what differs between layers.
pub fn megakernel(
    plan: &MegakernelPlan,
    range: &Range<usize>,
    params: MegakernelParams,
) -> Launch<MegakernelParams> {
    let products = &plan.products;
    let [splits, columns, rows] = plan.attention.launch.grid;
    let params = MegakernelParams {
        qkv: qkv(&products.qkv, params.qkv).params,
        attention: attention_decode(&plan.attention, params.attention).params,
        o: residual(&products.o, params.o).params,
        gate_up: swiglu(&products.gate_up, params.gate_up).params,
        down: residual(&products.down, params.down).params,
        first_layer: range.start as i32,
        end_layer: range.end as i32,
        qkv_blocks: products.qkv.launch.grid[0] as i32,
        o_blocks: products.o.launch.grid[0] as i32,
        gate_up_blocks: products.gate_up.launch.grid[0] as i32,
        down_blocks: products.down.launch.grid[0] as i32,
        attention_columns: columns as i32,
        attention_pieces: (splits * columns * rows) as i32,
        o_units: plan.o_units as i32,
        ..params
    };
    Launch { plan: plan.launch, params }
}

//! Launch of the megakernel: all layers of a decode step at once.

use super::attention::{decode_params, window};
use super::gemm::{head_terms, qkv_params, residual_params, swiglu_params};
use super::{DecodeRows, KvView, Launch, Norm, Operands, QkvOutput, ResidualOutput};
use crate::cuda::plan::megakernel::MegakernelPlan;
use crate::cuda::weights::LayerAddresses;
use cudarc::driver::sys::CUdeviceptr;
use std::ops::Range;
use trail_ptx::params::{MegakernelLayer, MegakernelParams};

/// Buffers of the stages of every layer. Values that differ between layers come from `layers`, and
/// are ignored here.
#[derive(Clone, Copy, Debug)]
pub struct MegakernelBuffers {
    /// `[model layers]` of [`megakernel_layer`].
    pub layers: CUdeviceptr,
    /// Barrier of the grid, a word; zero before the first launch.
    pub barrier: CUdeviceptr,
    /// Norm of the rows that enter attention and the MLP.
    pub norm: Norm,
    /// Query, key and value projection.
    pub qkv: (Operands, QkvOutput),
    /// Attention.
    pub attention: (KvView, DecodeRows),
    /// Output projection.
    pub o: (Operands, ResidualOutput),
    /// Gate and up projection, and where its values go.
    pub gate_up: (Operands, CUdeviceptr),
    /// Down projection; the tap is that of the last layer of the launch.
    pub down: (Operands, ResidualOutput),
}

/// One layer as the kernel reads it: its weights, the norms after O and after down, where its
/// keys begin in a KV block, and its window.
pub fn megakernel_layer(
    weights: &LayerAddresses,
    [o_norm, down_norm]: [CUdeviceptr; 2],
    layer_offset: usize,
    tokens: Option<usize>,
) -> MegakernelLayer {
    MegakernelLayer {
        qkv: weights.qkv as *const _,
        o: weights.o as *const _,
        gate_up: weights.gate_up as *const _,
        down: weights.down as *const _,
        o_gamma: o_norm as *const _,
        down_gamma: down_norm as *const _,
        terms: head_terms(&weights.terms),
        layer_offset: layer_offset as i64,
        window: window(tokens),
        reserved: 0,
    }
}

/// Layers `range` of a decode step.
pub fn megakernel(
    plan: &MegakernelPlan,
    range: &Range<usize>,
    of: &MegakernelBuffers,
) -> Launch<MegakernelParams> {
    let products = &plan.products;
    let [splits, columns, rows] = plan.attention.launch.grid;
    let params = MegakernelParams {
        layers: of.layers as *const _,
        qkv: qkv_params(&products.qkv, &of.qkv.0, &of.norm, &of.qkv.1),
        attention: decode_params(&plan.attention, &of.attention.0, &of.attention.1),
        o: residual_params(&products.o, &of.o.0, &of.o.1),
        gate_up: swiglu_params(&products.gate_up, &of.gate_up.0, &of.norm, of.gate_up.1),
        down: residual_params(&products.down, &of.down.0, &of.down.1),
        barrier: of.barrier as *mut _,
        first_layer: range.start as i32,
        end_layer: range.end as i32,
        qkv_blocks: products.qkv.launch.grid[0] as i32,
        o_blocks: products.o.launch.grid[0] as i32,
        gate_up_blocks: products.gate_up.launch.grid[0] as i32,
        down_blocks: products.down.launch.grid[0] as i32,
        attention_columns: columns as i32,
        attention_pieces: (splits * columns * rows) as i32,
        o_units: plan.o_units as i32,
        reserved: 0,
    };
    Launch { plan: plan.launch, params }
}

//! The memory that steps work in: allocated at start, for the largest step there may be.

use super::layout::StepLimits;
use super::plans::{Plans, is_wgmma};
use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::launch::{activation_map, rope_freqs};
use crate::cuda::memory::DeviceBuffer;
use crate::cuda::plan::step;
use crate::model::ModelConfig;
use trail_ptx::params::TensorMap;

/// Activations and workspaces. Zero at first: padding rows are read before any kernel has written
/// them.
pub(super) struct Buffers {
    /// Residual stream `[rows, d]` f32.
    pub(super) h: DeviceBuffer,
    /// The next operand `[rows, d]` bf16, and its partial sums of squares `[rows, parts]` f32.
    pub(super) x: DeviceBuffer,
    pub(super) ss: DeviceBuffer,
    /// Queries, and what they attend to `[rows, heads, head_dim]` bf16.
    pub(super) q: DeviceBuffer,
    pub(super) attended: DeviceBuffer,
    /// The MLP's inner values `[rows, ff]` bf16.
    pub(super) inner: DeviceBuffer,
    /// `[logits, stride]` f32.
    pub(super) logits: DeviceBuffer,
    /// Turns per token of each rotation `[head_dim / 2]` u64.
    pub(super) rope_freqs: DeviceBuffer,
    /// Last token of the request in each batch slot, then of each draft token's row
    /// `[batch slots + drafts]` i32.
    pub(super) last: DeviceBuffer,
    /// Of the products and of decode attention: see [`super::plans::Workspaces`].
    pub(super) partials: DeviceBuffer,
    pub(super) tile_counters: DeviceBuffer,
    pub(super) partial_out: DeviceBuffer,
    pub(super) partial_sums: DeviceBuffer,
    pub(super) attention_counters: DeviceBuffer,
    /// How Hopper's copy engine reads `x`, `attended` and `inner`; `None` where no plan asks.
    pub(super) maps: Option<Maps>,
}

/// Maps of the operands.
pub(super) struct Maps {
    pub(super) x: TensorMap,
    pub(super) attended: TensorMap,
    pub(super) inner: TensorMap,
}

const ROWS: &str = "activations of a step";
pub(super) const WORK: &str = "workspaces of a step";

impl Buffers {
    pub(super) fn new(
        device: &Device,
        config: &ModelConfig,
        limits: &StepLimits,
        plans: &Plans,
    ) -> Result<Buffers, CudaError> {
        let (rows, d, q) = (plans.rows.last(), config.hidden_size, config.q_size());
        let inner = config.intermediate_size;
        let zeros = |bytes, what| device.alloc_zeros(bytes, what);
        let stride = plans.sampled[0].logits.features;
        let needed = plans.workspaces();
        let mut buffers = Buffers {
            h: zeros(rows * d * 4, ROWS)?,
            x: zeros(rows * d * 2, ROWS)?,
            ss: zeros(rows * step::parts(d) * 4, ROWS)?,
            q: zeros(rows * q * 2, ROWS)?,
            attended: zeros(rows * q * 2, ROWS)?,
            inner: zeros(rows * inner * 2, ROWS)?,
            logits: zeros(plans.sampled_rows.last() * stride * 4, "logits")?,
            rope_freqs: device.upload(&rope_freqs(&config.inverse_frequencies()), "rotations")?,
            last: zeros((limits.segments + limits.drafts) * 4, WORK)?,
            partials: zeros(needed.partials * 4, WORK)?,
            tile_counters: zeros(needed.tile_counters * 4, WORK)?,
            partial_out: zeros(needed.partial_out * 4, WORK)?,
            partial_sums: zeros(needed.partial_sums * 4, WORK)?,
            attention_counters: zeros(needed.attention_counters * 4, WORK)?,
            maps: None,
        };
        if plans.layer.iter().any(|of| is_wgmma(&of.products.qkv)) {
            let map =
                |buffer: &DeviceBuffer, width| activation_map(buffer.device_ptr(), rows, width);
            buffers.maps = Some(Maps {
                x: map(&buffers.x, d)?,
                attended: map(&buffers.attended, q)?,
                inner: map(&buffers.inner, inner)?,
            });
        }
        Ok(buffers)
    }
}

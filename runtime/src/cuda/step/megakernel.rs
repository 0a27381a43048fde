//! Device memory of the megakernel: all layers of a step of few decode rows in one launch.

use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::kv::layer_stride;
use crate::cuda::launch;
use crate::cuda::memory::DeviceBuffer;
use crate::cuda::weights::{DeviceWeights, LayerAddresses};
use crate::model::ModelConfig;
use trail_ptx::params::MegakernelLayer;

/// Device memory of the megakernel, beside the buffers of a step.
pub(super) struct Megakernel {
    /// `[layers]` of [`MegakernelLayer`].
    pub(super) layers: DeviceBuffer,
    /// The grid barrier's word.
    pub(super) barrier: DeviceBuffer,
}

impl Megakernel {
    pub(super) fn new(
        device: &Device,
        config: &ModelConfig,
        weights: &DeviceWeights,
    ) -> Result<Megakernel, CudaError> {
        const WHAT: &str = "addresses of layers";
        let layer = |(index, of): (usize, &LayerAddresses)| MegakernelLayer {
            qkv: of.qkv,
            o: of.o,
            gate_up: of.gate_up,
            down: of.down,
            o_gamma: weights.norms[2 * index + 1],
            down_gamma: weights.norms[2 * index + 2],
            terms: of.terms,
            layer_offset: (index * layer_stride(config)) as i64,
            window: launch::window(config.windows[index]),
            ..MegakernelLayer::default()
        };
        let layers: Vec<_> = weights.layers.iter().enumerate().map(layer).collect();
        Ok(Megakernel {
            layers: device.upload(&layers, WHAT)?,
            barrier: device.alloc_zeros(4, WHAT)?,
        })
    }
}

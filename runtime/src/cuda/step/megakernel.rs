//! Device memory of the megakernel: all layers of a step of few decode rows in one launch.

use super::forward::layer_stride;
use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::launch;
use crate::cuda::memory::DeviceBuffer;
use crate::cuda::weights::DeviceWeights;
use crate::model::ModelConfig;

/// Device memory of the megakernel, beside the buffers of a step.
pub(super) struct Megakernel {
    /// `[layers]` of [`launch::megakernel_layer`].
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
        let layer = |(index, of)| {
            let norms = [weights.norms[2 * index + 1], weights.norms[2 * index + 2]];
            launch::megakernel_layer(of, norms, index * layer_stride(config), config.windows[index])
        };
        let layers: Vec<_> = weights.layers.iter().enumerate().map(layer).collect();
        Ok(Megakernel {
            layers: device.upload(&layers, WHAT)?,
            barrier: device.alloc_zeros(4, WHAT)?,
        })
    }
}

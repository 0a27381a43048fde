//! The sampler on the device: token counts, workspaces, and the sampled tokens' way to the host.

use super::buffers::{Buffers, WORK};
use super::layout::{Addresses, StepLimits};
use super::plans::Plans;
use super::shape::StepShape;
use super::token_counts::TokenCounts;
use super::token_masks::TokenMasks;
use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::launch;
use crate::cuda::memory::DeviceBuffer;
use crate::cuda::queue::Queue;
use crate::cuda::sample_results::SampleResults;
use std::sync::Arc;
use trail_ptx::params::SampleParams;

/// State of the sampler between steps, and its workspaces.
pub(super) struct Sampler {
    plans: Arc<Plans>,
    metadata: Addresses,
    pub(super) token_counts: TokenCounts,
    pub(super) token_masks: TokenMasks,
    pub(super) results: SampleResults,
    /// Workspaces: see [`super::plans::Workspaces`].
    weights: DeviceBuffer,
    sums: DeviceBuffer,
    team_sums: DeviceBuffer,
    band: DeviceBuffer,
    band_count: DeviceBuffer,
    team_barriers: DeviceBuffer,
}

impl Sampler {
    pub(super) fn new(
        device: &Device,
        plans: Arc<Plans>,
        vocab: usize,
        limits: &StepLimits,
        metadata: Addresses,
    ) -> Result<Sampler, CudaError> {
        let needed = plans.workspaces();
        Ok(Sampler {
            metadata,
            token_counts: TokenCounts::new(device, vocab, limits)?,
            token_masks: TokenMasks::new(device, vocab, plans.sampled_rows.last())?,
            results: SampleResults::new(device, plans.sampled_rows.last())?,
            weights: device.alloc_zeros(needed.weights * 4, WORK)?,
            sums: device.alloc_zeros(5 * needed.sums * 4, WORK)?,
            team_sums: device.alloc_zeros(needed.team_sums * 4, WORK)?,
            band: device.alloc_zeros(needed.band * 8, WORK)?,
            band_count: device.alloc_zeros(plans.sampled_rows.last() * 4, WORK)?,
            team_barriers: device.alloc_zeros(plans.sampled_rows.last() * 4, WORK)?,
            plans,
        })
    }

    /// Samples from the logits in `buffers`, rows of plan size `sampled_rows`.
    pub(super) fn launch(
        &self,
        queue: &Queue,
        shape: &StepShape,
        sampled_rows: usize,
        buffers: &Buffers,
    ) -> Result<(), CudaError> {
        let plans = &self.plans.sampled[sampled_rows];
        let params = SampleParams {
            logits: buffers.logits.device_ptr(),
            stride: plans.logits.features as i32,
            row_sampling: self.metadata.sampling,
            token_counts: self.token_counts.device_ptr(),
            masks: self.token_masks.device_ptr(),
            mask_words: self.token_masks.words() as i32,
            weights: self.weights.device_ptr(),
            block_max: self.sums.device_ptr(),
            team_sums: self.team_sums.device_ptr(),
            band: self.band.device_ptr(),
            band_count: self.band_count.device_ptr(),
            team_barriers: self.team_barriers.device_ptr(),
            sampled: self.results.at(shape.parity),
            last: buffers.last.device_ptr(),
            step_seq: self.metadata.number,
            ..SampleParams::default()
        };
        let launches = launch::sample(&plans.sampling, params);
        launches.iter().try_for_each(|launch| queue.launch(launch))
    }
}

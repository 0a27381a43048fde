//! The sampler on the device: token counts, workspaces, and the sampled tokens' way to the host.

use super::buffers::{Buffers, WORK};
use super::fill::Shape;
use super::layout::{Addresses, StepLimits};
use super::plans::Plans;
use super::token_counts::TokenCounts;
use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::launch::{self, SamplerBuffers};
use crate::cuda::memory::DeviceBuffer;
use crate::cuda::queue::Queue;
use crate::cuda::sample_results::SampleResults;
use std::sync::Arc;

/// State of the sampler between steps, and its workspaces.
pub(super) struct Sampler {
    plans: Arc<Plans>,
    metadata: Addresses,
    pub(super) token_counts: TokenCounts,
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
            results: SampleResults::new(device, plans.choices.last())?,
            weights: device.alloc_zeros(needed.weights * 4, WORK)?,
            sums: device.alloc_zeros(5 * needed.sums * 4, WORK)?,
            team_sums: device.alloc_zeros(needed.team_sums * 4, WORK)?,
            band: device.alloc_zeros(needed.band * 8, WORK)?,
            band_count: device.alloc_zeros(plans.choices.last() * 4, WORK)?,
            team_barriers: device.alloc_zeros(plans.choices.last() * 4, WORK)?,
            plans,
        })
    }

    /// Samples from the logits in `buffers`, rows of plan size `choices`.
    pub(super) fn launch(
        &self,
        queue: &Queue,
        shape: &Shape,
        choices: usize,
        buffers: &Buffers,
    ) -> Result<(), CudaError> {
        let plans = &self.plans.choice[choices];
        let to = SamplerBuffers {
            logits: buffers.logits.at(),
            stride: plans.logits.features,
            row_sampling: self.metadata.sampling,
            token_counts: self.token_counts.at(),
            weights: self.weights.at(),
            sums: self.sums.at(),
            team_sums: self.team_sums.at(),
            band: self.band.at(),
            band_count: self.band_count.at(),
            team_barriers: self.team_barriers.at(),
            sampled: self.results.at(shape.parity),
            last: buffers.last.at(),
            step_seq: self.metadata.number,
        };
        let launches = launch::sample(&plans.sampling, &to);
        launches.iter().try_for_each(|launch| queue.launch(launch))
    }
}

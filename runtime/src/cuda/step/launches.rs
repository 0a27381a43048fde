//! A step as a straight list of launches.

use super::forward::{Forward, ForwardParts};
use super::layout::{Addresses, StepLimits};
use super::phase::StepPhase;
use super::plans::Plans;
use super::sampler::Sampler;
use super::shape::StepShape;
use super::tap::{TapConfig, TapWork};
use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::memory::Priority;
use crate::cuda::queue::Queue;
use crate::cuda::step_metadata::StepMetadata;
use crate::cuda::trace::{Anchor, Trace, TracePoint, Tracer};
use crate::cuda::weights::DeviceWeights;
use crate::model::ModelConfig;
use std::sync::Arc;
use trail_ptx::DevicePtr;

/// Forward pass, tap and sampler, and the stream that they are launched on.
pub(super) struct Launches {
    pub(super) forward: Forward,
    pub(super) tap: Option<TapWork>,
    pub(super) sampler: Sampler,
    pub(super) tracer: Tracer,
    /// The stream that steps run on.
    pub(super) compute: Queue,
    /// Layers of the model.
    layers: usize,
}

/// Everything that [`Launches`] are built from.
pub(super) struct LaunchesParts<'a> {
    pub(super) config: ModelConfig,
    pub(super) weights: Arc<DeviceWeights>,
    pub(super) plans: Arc<Plans>,
    pub(super) limits: &'a StepLimits,
    pub(super) metadata: Addresses,
    pub(super) tap: Option<TapConfig<'a>>,
    pub(super) kv_blocks: Option<usize>,
}

impl Launches {
    pub(super) fn new(
        device: &Arc<Device>,
        parts: LaunchesParts<'_>,
    ) -> Result<Launches, CudaError> {
        let LaunchesParts { config, weights, plans, limits, metadata, tap, kv_blocks } = parts;
        let queue = |priority| {
            let stream = device.stream(priority)?;
            // SAFETY: all launches and copies of this module name memory of the executor: buffers
            // as large as the largest step needs (`Buffers::new`, `Layout::new`), weights, the KV
            // pool, and pinned memory. It lives until `Drop` has waited for the device. Indices in
            // the metadata are within the layout and the limits, which `MetadataWriter` asserts.
            // The two streams are ordered by the tap's events.
            Ok::<_, CudaError>(unsafe { Queue::new(device.clone(), stream) })
        };
        let tap = match tap {
            Some(tap) => {
                let side = queue(Priority::High)?;
                Some(TapWork::new(device, side, &config, limits, &plans, metadata, tap)?)
            }
            None => None,
        };
        let sampler = Sampler::new(device, plans.clone(), config.vocab_size, limits, metadata)?;
        let compute = queue(Priority::Low)?;
        let forward = ForwardParts {
            config,
            weights,
            plans,
            limits,
            metadata,
            tap_stage: tap.as_ref().map_or(DevicePtr::NULL, |tap| tap.stage.device_ptr()),
            kv_blocks,
        };
        Ok(Launches {
            layers: forward.config.num_layers,
            forward: Forward::new(device, forward)?,
            tap,
            sampler,
            tracer: Tracer::default(),
            compute,
        })
    }

    /// Loads the kernels that are in no plan of [`Plans::kernels`].
    pub(super) fn prepare(&self, device: &Device) -> Result<(), CudaError> {
        device.ready(&self.sampler.token_counts.plan(1, 1))?;
        self.tap.as_ref().map_or(Ok(()), |tap| tap.prepare(device))
    }

    /// Traces the steps that follow; see [`Trace`].
    pub(super) fn start_trace(&mut self, device: &Device) -> Result<Anchor, CudaError> {
        let has_probe = self.tap.as_ref().is_some_and(TapWork::is_on_device);
        let (trace, anchor) = Trace::new(device, self.compute.stream(), has_probe)?;
        self.tracer.start(trace);
        Ok(anchor)
    }

    /// Launches `phase` of a step of `shape`, whose list of differences is in the metadata. On a
    /// stream that is captured, the launches become a graph.
    pub(super) fn issue(
        &self,
        metadata: &StepMetadata,
        shape: &StepShape,
        phase: StepPhase,
    ) -> Result<(), CudaError> {
        let Launches { forward, sampler, tap, tracer, compute, .. } = self;
        let trace = |point| tracer.record(shape.parity, point, compute);
        let upper = tap.as_ref().map_or(0, |tap| tap.layer + 1);
        if phase != StepPhase::Upper {
            trace(TracePoint::Begin)?;
            metadata.apply(compute, shape.parity)?;
            forward.embed(compute, shape)?;
            forward.layers(compute, shape, 0..upper, shape.staged > 0)?;
            if let Some(tap) = tap {
                tap.launch(compute, shape, phase, forward, tracer)?;
            }
        }
        if phase == StepPhase::Lower {
            return Ok(());
        }
        forward.layers(compute, shape, upper..self.layers, false)?;
        if let Some(sampled_rows) = shape.sampled_rows {
            forward.logits(compute, sampled_rows)?;
        }
        trace(TracePoint::Logits)?;
        if let Some(sampled_rows) = shape.sampled_rows {
            sampler.launch(compute, shape, sampled_rows, &forward.buffers)?;
        }
        trace(TracePoint::End)?;
        match tap {
            Some(tap) if phase == StepPhase::Whole && shape.staged > 0 => tap.join(compute),
            _ => Ok(()),
        }
    }
}

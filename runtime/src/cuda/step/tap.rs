//! The device's side of the tap: stage, running sums, the side stream, and the probe where it runs
//! there.

use super::Executor;
use super::fill::Shape;
use super::issue::StepPhase;
use super::layout::StepLimits;
use super::plans::Plans;
use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::error::doing;
use crate::cuda::launch::{self, Launch, ProbeBuffers};
use crate::cuda::memory::DeviceBuffer;
use crate::cuda::plan::step;
use crate::cuda::queue::Queue;
use crate::cuda::tap::{Ring, Row, TapMode};
use crate::cuda::trace::TracePoint;
use crate::model::ModelConfig;
use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUdeviceptr;
use half::bf16;
use std::sync::Arc;
use trail_probe::Weights;
use trail_ptx::params::ProbeParams;

/// Streams, events and buffers of the tap.
pub(super) struct TapWork {
    /// The layer whose output is tapped.
    pub(super) layer: usize,
    /// Beside the upper layers.
    pub(super) side: Queue,
    /// The rows are there; the copies are done.
    pub(super) begin: CudaEvent,
    pub(super) end: CudaEvent,
    /// `[stage rows, d]` bf16.
    pub(super) stage: DeviceBuffer,
    /// Sums over each request's prompt rows so far, by slot `[requests, d]` f32.
    pub(super) sums: DeviceBuffer,
    pub(super) ring: Arc<Ring>,
    probe: Option<ProbeWork>,
}

/// The probe on the device.
struct ProbeWork {
    hidden: usize,
    bins: usize,
    hidden_weight: DeviceBuffer,
    hidden_bias: DeviceBuffer,
    output_weight: DeviceBuffer,
    output_bias: DeviceBuffer,
    /// `[stage rows, hidden]` f32.
    hidden_out: DeviceBuffer,
    /// `[stage rows, bins]` f32.
    probabilities: DeviceBuffer,
}

impl TapWork {
    pub(super) fn new(
        device: &Device,
        side: Queue,
        config: &ModelConfig,
        limits: &StepLimits,
        plans: &Plans,
        (mode, layer): (TapMode, usize),
        probe: Option<&Weights>,
    ) -> Result<TapWork, CudaError> {
        let d = config.hidden_size;
        if layer >= config.num_layers {
            return Err(CudaError::Unsupported {
                what: format!("a tap behind layer {layer}"),
                supported: format!("the layers of the model, 0 to {}", config.num_layers - 1),
            });
        }
        // A segment can bring two rows: the prompt's mean, and its last row.
        let rows = (2 * limits.segments).max(plans.decode_sizes.last());
        let probe = match (mode, probe) {
            (TapMode::Gpu, Some(weights)) => Some(ProbeWork::new(device, weights, rows, d)?),
            (TapMode::Gpu, None) => {
                return Err(CudaError::Unsupported {
                    what: "a probe on the device without its weights".to_owned(),
                    supported: "a probe that is given".to_owned(),
                });
            }
            _ => None,
        };
        let row = match &probe {
            Some(probe) => Row { width: probe.bins, element: 4 },
            None => Row { width: d, element: 2 },
        };
        Ok(TapWork {
            layer,
            side,
            begin: device.event()?,
            end: device.event()?,
            stage: device.alloc_zeros(rows * d * 2, "tapped rows")?,
            sums: device.alloc_zeros(limits.requests * d * 4, "sums over tapped prompts")?,
            ring: Arc::new(Ring::new(device, rows, row)?),
            probe,
        })
    }

    /// Returns true if probabilities are copied to the host instead of activations.
    pub(super) fn is_on_device(&self) -> bool {
        self.probe.is_some()
    }

    /// Every kernel that [`TapWork::probe`] launches.
    pub(super) fn prepare(&self, device: &Device, d: usize) -> Result<(), CudaError> {
        device.ready(&step::tap_mean(1, 1, d))?;
        let Some(probe) = &self.probe else { return Ok(()) };
        let plans = step::probe(1, d, probe.hidden, probe.bins);
        plans.iter().try_for_each(|plan| device.ready(plan))
    }

    /// Runs the probe on the staged rows, where it runs on the device.
    pub(super) fn probe(&self, queue: &Queue, shape: &Shape, d: usize) -> Result<(), CudaError> {
        let Some(probe) = &self.probe else { return Ok(()) };
        let launches = probe.launches(self.stage.at(), shape.staged, d);
        launches.iter().try_for_each(|launch| queue.launch(launch))
    }

    /// Copies the staged rows, or the probe's outputs, to the ring.
    pub(super) fn copy(&self, queue: &Queue, shape: &Shape) -> Result<(), CudaError> {
        let from = self.probe.as_ref().map_or(self.stage.at(), |probe| probe.probabilities.at());
        let copied = self.ring.copy_rows(queue, shape.parity, shape.staged, from);
        copied.map_err(doing("copying tapped rows to the host"))
    }

    /// Copies the word at `number` to the ring: the rows are there.
    pub(super) fn flag(
        &self,
        queue: &Queue,
        shape: &Shape,
        number: CUdeviceptr,
    ) -> Result<(), CudaError> {
        let copied = self.ring.copy_flag(queue, shape.parity, number);
        copied.map_err(doing("copying the tapped rows' flag to the host"))
    }
}

impl Executor {
    /// Issues the tap: mean, probe, and the copies to the host.
    pub(super) fn tap(
        &self,
        shape: &Shape,
        tap: &TapWork,
        phase: StepPhase,
    ) -> Result<(), CudaError> {
        let d = self.config.hidden_size;
        if shape.means > 0 {
            let plan = step::tap_mean(shape.means, shape.mean_rows, d);
            let addresses = [
                self.buffers.h.at(),
                self.word(self.layout().means),
                tap.sums.at(),
                tap.stage.at(),
            ];
            // Each request is in one segment.
            self.compute.launch(&launch::tap_mean(&plan, d, addresses))?;
        }
        if shape.staged == 0 {
            return Ok(());
        }
        self.record_event(shape, TracePoint::Tapped, self.compute.stream())?;
        let number = self.word(self.layout().number);
        if phase == StepPhase::Lower {
            return self.copy_tapped(shape, tap, &self.compute, number);
        }
        let record = tap.begin.record(self.compute.stream());
        let forked = record.and_then(|()| tap.side.stream().wait(&tap.begin));
        forked.map_err(doing("forking the tap's stream"))?;
        self.copy_tapped(shape, tap, &tap.side, number)
    }

    /// Issues the probe, where it runs on the device, and the copies to the host.
    fn copy_tapped(
        &self,
        shape: &Shape,
        tap: &TapWork,
        queue: &Queue,
        number: CUdeviceptr,
    ) -> Result<(), CudaError> {
        self.record_event(shape, TracePoint::Forked, queue.stream())?;
        tap.probe(queue, shape, self.config.hidden_size)?;
        self.record_event(shape, TracePoint::Probed, queue.stream())?;
        tap.copy(queue, shape)?;
        // Before the flag: a host that sees the flag reads a later time than this event's.
        self.record_event(shape, TracePoint::Copied, queue.stream())?;
        tap.flag(queue, shape, number)
    }
}

impl ProbeWork {
    fn new(
        device: &Device,
        weights: &Weights,
        rows: usize,
        d: usize,
    ) -> Result<ProbeWork, CudaError> {
        let Weights { hidden, bins, .. } = *weights;
        let unsupported = |what: String, supported: &str| {
            Err(CudaError::Unsupported { what, supported: supported.to_owned() })
        };
        if weights.d != d {
            return unsupported(
                format!("a probe of {} inputs on rows of {d}", weights.d),
                "a probe made for the model",
            );
        }
        if !d.is_multiple_of(64) || !hidden.is_multiple_of(32) || bins > 32 {
            return unsupported(
                format!("a probe of {d} inputs, {hidden} units and {bins} bins on the device"),
                "inputs in 64s, units in 32s, and at most 32 bins",
            );
        }
        const WHAT: &str = "the probe";
        let narrow: Vec<bf16> =
            weights.hidden_weight.iter().map(|&value| bf16::from_f32(value)).collect();
        Ok(ProbeWork {
            hidden,
            bins,
            hidden_weight: device.upload(&narrow, WHAT)?,
            hidden_bias: device.upload(&weights.hidden_bias, WHAT)?,
            output_weight: device.upload(&weights.output_weight, WHAT)?,
            output_bias: device.upload(&weights.output_bias, WHAT)?,
            hidden_out: device.alloc_zeros(rows * hidden * 4, WHAT)?,
            probabilities: device.alloc_zeros(rows * bins * 4, WHAT)?,
        })
    }

    /// The kernels over `rows` rows at `x`, `d` wide; no more rows than the stage has.
    fn launches(&self, x: CUdeviceptr, rows: usize, d: usize) -> [Launch<ProbeParams>; 2] {
        let plans = step::probe(rows, d, self.hidden, self.bins);
        let buffers = ProbeBuffers {
            x,
            hidden_weight: self.hidden_weight.at(),
            hidden_bias: self.hidden_bias.at(),
            output_weight: self.output_weight.at(),
            output_bias: self.output_bias.at(),
            hidden_out: self.hidden_out.at(),
            probabilities: self.probabilities.at(),
        };
        launch::probe(&plans, [rows, d, self.hidden, self.bins], &buffers)
    }
}

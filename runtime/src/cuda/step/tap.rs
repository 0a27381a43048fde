//! The device's side of the tap: stage, sums, the side stream, and the probe where it runs there.

use super::forward::Forward;
use super::layout::{Addresses, SUM_WORDS, StepLimits};
use super::phase::StepPhase;
use super::plans::Plans;
use super::shape::StepShape;
use super::staged::{StagedTap, max_staged};
use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::error::driver_error;
use crate::cuda::kv::{KvPool, layer_stride};
use crate::cuda::launch::Launch;
use crate::cuda::memory::{DeviceBuffer, PinnedBuffer};
use crate::cuda::plan::step::{self, TapSegment};
use crate::cuda::queue::Queue;
use crate::cuda::tap::{Ring, Row, TapMode};
use crate::cuda::trace::{TracePoint, Tracer};
use crate::model::ModelConfig;
use cudarc::driver::CudaEvent;
use half::bf16;
use std::sync::Arc;
use trail_probe::{AGES, Weights};
use trail_ptx::DevicePtr;
use trail_ptx::params::{self, ProbeParams, TapMeanParams};

/// The tap's layer, and what becomes of its rows.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct TapConfig<'a> {
    pub(in crate::cuda) mode: TapMode,
    /// The layer whose output is tapped.
    pub(in crate::cuda) layer: usize,
    /// The probe's weights, for [`TapMode::Gpu`].
    pub(in crate::cuda) probe: Option<&'a Weights>,
    /// True if requests share KV blocks: then the sums of all blocks are made, not of prompts
    /// alone.
    pub(in crate::cuda) shares_blocks: bool,
}

impl TapConfig<'_> {
    /// The tap as metadata has it.
    pub(super) fn staged(&self) -> StagedTap {
        StagedTap { shares_blocks: self.shares_blocks, has_probe: self.mode == TapMode::Gpu }
    }
}

/// Streams, events and buffers of the tap.
pub(super) struct TapWork {
    /// The layer whose output is tapped.
    pub(super) layer: usize,
    /// Beside the upper layers.
    side: Queue,
    /// The rows are there; the copies are done.
    begin: CudaEvent,
    end: CudaEvent,
    /// `[stage rows, d]` bf16.
    pub(super) stage: DeviceBuffer,
    /// Rows of draft tokens `[drafts, d]` f32.
    kept: DeviceBuffer,
    /// Segments of those that turned out right `[drafts, SUM_WORDS]` i32.
    accepted: PinnedBuffer,
    metadata: Addresses,
    /// Elements of a KV block before its sums.
    sums_offset: i64,
    /// Width of a row.
    width: usize,
    pub(super) ring: Arc<Ring>,
    probe: Option<ProbeWork>,
}

/// The probe on the device.
struct ProbeWork {
    hidden: usize,
    bins: usize,
    hidden_weight: DeviceBuffer,
    /// `[AGES, hidden]` f32.
    hidden_bias: DeviceBuffer,
    prompt: Option<PromptWork>,
    output_weight: DeviceBuffer,
    output_bias: DeviceBuffer,
    /// `[stage rows, hidden]` f32.
    hidden_out: DeviceBuffer,
    /// `[stage rows, bins]` f32.
    probabilities: DeviceBuffer,
}

/// Weights of the prompt, and each request's share of the first layer.
struct PromptWork {
    mean_weight: DeviceBuffer,
    length_weight: DeviceBuffer,
    /// `[requests, hidden]` f32, by request index: a request's stays for its answer, wherever its
    /// KV blocks are.
    sums: DeviceBuffer,
}

impl TapWork {
    /// Waits for the side stream, within the device's timeout.
    pub(super) fn drain(&self) {
        self.side.drain();
    }

    pub(super) fn new(
        device: &Device,
        side: Queue,
        config: &ModelConfig,
        limits: &StepLimits,
        plans: &Plans,
        metadata: Addresses,
        tap: TapConfig<'_>,
    ) -> Result<TapWork, CudaError> {
        let (TapConfig { mode, layer, probe, .. }, d) = (tap, config.hidden_size);
        if layer >= config.num_layers {
            return Err(CudaError::Unsupported {
                what: format!("a tap behind layer {layer}"),
                supported: format!("the layers of the model, 0 to {}", config.num_layers - 1),
            });
        }
        let rows = max_staged(limits, plans);
        let probe = match (mode, probe) {
            (TapMode::Gpu, Some(weights)) => {
                Some(ProbeWork::new(device, weights, [rows, limits.requests, d])?)
            }
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
            kept: device.alloc_zeros(limits.drafts.max(1) * d * 4, "rows of draft tokens")?,
            accepted: device.alloc_pinned_zeros(
                limits.drafts.max(1) * SUM_WORDS * 4,
                "segments of draft tokens",
            )?,
            metadata,
            sums_offset: (config.num_layers * layer_stride(config)) as i64,
            width: d,
            ring: Arc::new(Ring::new(device, rows, row)?),
            probe,
        })
    }

    /// Returns true if probabilities are copied to the host instead of activations.
    pub(super) fn is_on_device(&self) -> bool {
        self.probe.is_some()
    }

    /// Loads every kernel that [`TapWork::launch`] launches, and tries the flag's way.
    pub(super) fn prepare(&self, device: &Device) -> Result<(), CudaError> {
        device.shared().bind()?;
        self.ring.check_flag(&self.side)?;
        device.ready(&step::tap_mean(1, 1, self.width))?;
        let Some(probe) = &self.probe else { return Ok(()) };
        let plans = step::probe(1, self.width, probe.hidden, probe.bins);
        plans[probe.first(true)..].iter().try_for_each(|plan| device.ready(plan))
    }

    /// Launches the tap's work after the tapped layer of `forward`: sums, then probe and copies, on
    /// the side stream beside the upper layers, or in [`StepPhase::Lower`] on the compute stream.
    pub(super) fn launch(
        &self,
        compute: &Queue,
        shape: &StepShape,
        phase: StepPhase,
        forward: &Forward,
        tracer: &Tracer,
    ) -> Result<(), CudaError> {
        if shape.sums > 0 {
            let plan = step::tap_mean(shape.sums, shape.sum_rows, self.width);
            let params = TapMeanParams {
                h: forward.buffers.h.device_ptr(),
                segments: self.metadata.sums,
                ..self.sums_params(&forward.kv)
            };
            // Each request is in one segment, and writes no block that it shares.
            compute.launch(&Launch { plan, params })?;
        }
        if shape.staged == 0 {
            return Ok(());
        }
        tracer.record(shape.parity, TracePoint::Tapped, compute)?;
        if phase == StepPhase::Lower {
            return self.copy_tapped(compute, shape, tracer);
        }
        let record = self.begin.record(compute.stream());
        let forked = record.and_then(|()| self.side.stream().wait(&self.begin));
        forked.map_err(driver_error("forking the tap's stream"))?;
        self.copy_tapped(&self.side, shape, tracer)
    }

    /// Adds kept rows of draft tokens to the sums in the blocks of `kv`: `runs` of the last step,
    /// whose tokens are known.
    pub(super) fn add_kept(
        &mut self,
        compute: &Queue,
        kv: &KvPool,
        runs: impl Iterator<Item = TapSegment>,
    ) -> Result<(), CudaError> {
        let (mut count, mut rows) = (0, 0);
        for run in runs.filter(|run| run.rows > 0) {
            // The kernel that read them last ran before that step.
            let words = run.encode().map(|word| word as u32);
            self.accepted.write(4 * count * SUM_WORDS, &words);
            (count, rows) = (count + 1, rows + run.rows);
        }
        if count == 0 {
            return Ok(());
        }
        let plan = step::tap_mean(count, rows, self.width);
        let params = TapMeanParams {
            h: self.kept.device_ptr(),
            segments: self.accepted.device_ptr(),
            ..self.sums_params(kv)
        };
        compute.launch(&Launch { plan, params })
    }

    /// The parameters of sums in the blocks of `kv`, without rows and segments.
    fn sums_params(&self, kv: &KvPool) -> TapMeanParams {
        TapMeanParams {
            block_table: self.metadata.table,
            pool: kv.device_ptr(),
            kept: self.kept.device_ptr(),
            stage: self.stage.device_ptr(),
            block_stride: kv.block_stride(),
            sums_offset: self.sums_offset,
            max_blocks: self.metadata.max_blocks,
            d: self.width as i32,
            ..TapMeanParams::default()
        }
    }

    /// Lets `compute` wait for the side stream: the next step must not overwrite the stage, nor its
    /// own number, before they are copied.
    pub(super) fn join(&self, compute: &Queue) -> Result<(), CudaError> {
        let recorded = self.end.record(self.side.stream());
        let joined = recorded.and_then(|()| compute.stream().wait(&self.end));
        joined.map_err(driver_error("joining the tap's stream"))
    }

    /// Launches the probe, where it runs on the device, and copies the staged rows or the probe's
    /// outputs to the ring, then the flag that says so.
    fn copy_tapped(
        &self,
        queue: &Queue,
        shape: &StepShape,
        tracer: &Tracer,
    ) -> Result<(), CudaError> {
        tracer.record(shape.parity, TracePoint::Forked, queue)?;
        let mut from = self.stage.device_ptr::<u8>();
        if let Some(probe) = &self.probe {
            let inputs = self.metadata.probe_inputs;
            let launches = probe.launches(from.cast(), inputs, shape.staged, self.width);
            let launches = &launches[probe.first(shape.has_means)..];
            launches.iter().try_for_each(|launch| queue.launch(launch))?;
            from = probe.probabilities.device_ptr();
        }
        tracer.record(shape.parity, TracePoint::Probed, queue)?;
        let copied = self.ring.copy_rows(queue, shape.parity, shape.staged, from);
        copied.map_err(driver_error("copying tapped rows to the host"))?;
        // Before the flag: a host that sees the flag reads a later time than this event's.
        tracer.record(shape.parity, TracePoint::Copied, queue)?;
        let copied = self.ring.copy_flag(queue, shape.parity, self.metadata.number);
        copied.map_err(driver_error("copying the tapped rows' flag to the host"))
    }
}

impl ProbeWork {
    fn new(
        device: &Device,
        weights: &Weights,
        [rows, requests, d]: [usize; 3],
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
        let narrow = |weight: &[f32]| -> Vec<bf16> {
            weight.iter().map(|&value| bf16::from_f32(value)).collect()
        };
        let prompt = match &weights.prompt {
            None => None,
            Some(prompt) => Some(PromptWork {
                mean_weight: device.upload(&narrow(&prompt.mean_weight), WHAT)?,
                length_weight: device.upload(&prompt.length_weight, WHAT)?,
                sums: device.alloc_zeros(requests * hidden * 4, WHAT)?,
            }),
        };
        let biases: Vec<f32> = (0..AGES).flat_map(|age| weights.biases(age)).collect();
        Ok(ProbeWork {
            hidden,
            bins,
            hidden_weight: device.upload(&narrow(&weights.hidden_weight), WHAT)?,
            hidden_bias: device.upload(&biases, WHAT)?,
            prompt,
            output_weight: device.upload(&weights.output_weight, WHAT)?,
            output_bias: device.upload(&weights.output_bias, WHAT)?,
            hidden_out: device.alloc_zeros(rows * hidden * 4, WHAT)?,
            probabilities: device.alloc_zeros(rows * bins * 4, WHAT)?,
        })
    }

    /// The first of the kernels that is launched: that of prompts only where a probe reads them,
    /// and only in a step that stages their means.
    fn first(&self, has_means: bool) -> usize {
        usize::from(self.prompt.is_none() || !has_means)
    }

    /// The kernels over `rows` rows at `x`, `d` wide, with `inputs` beside them; no more rows than
    /// the stage has.
    fn launches(
        &self,
        x: DevicePtr<params::bf16>,
        inputs: DevicePtr<i32>,
        rows: usize,
        d: usize,
    ) -> [Launch<ProbeParams>; 3] {
        let prompt = self.prompt.as_ref().map(|prompt| ProbeParams {
            mean_weight: prompt.mean_weight.device_ptr(),
            length_weight: prompt.length_weight.device_ptr(),
            prompt_sums: prompt.sums.device_ptr(),
            ..ProbeParams::default()
        });
        let params = ProbeParams {
            x,
            inputs,
            hidden_weight: self.hidden_weight.device_ptr(),
            hidden_bias: self.hidden_bias.device_ptr(),
            output_weight: self.output_weight.device_ptr(),
            output_bias: self.output_bias.device_ptr(),
            hidden_out: self.hidden_out.device_ptr(),
            probabilities: self.probabilities.device_ptr(),
            rows: rows as i32,
            d: d as i32,
            hidden: self.hidden as i32,
            bins: self.bins as i32,
            ..prompt.unwrap_or_default()
        };
        step::probe(rows, d, self.hidden, self.bins).map(|plan| Launch { plan, params })
    }
}

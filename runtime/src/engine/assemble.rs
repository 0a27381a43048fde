//! Construction of an engine from its builder.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use trail_platform::{Memory, available_threads};
use trail_probe::Weights;
use trail_scheduler::policies::Needs;
use trail_scheduler::{LogHeader, LoggedScheduler, Preemption, SchedulerConfig};

use super::admission::{Admission, WhenFull};
use super::builder::{BuildError, EngineBuilder};
use super::clock::WallClock;
use super::device::{ComputeDevice, ProbeDevice};
use super::in_flight::InFlightStep;
use super::length_probe::LengthProbe;
use super::lifecycle::Lifecycle;
use super::observer::Observing;
use super::prediction_watch::PredictionWatch;
use super::predictions::Predictions;
use super::prefill_pace::prefill_pace;
use super::stats::Counters;
use super::step_loop::StepLoop;
use super::step_time::StepTimeEstimator;
use super::stepped::SteppedEngine;
use super::submit_queue::{QueueLimits, SubmitQueue};
use super::swaps::Swaps;
use super::{Clock, Engine};
use crate::backend::{BLOCK_TOKENS, Backend, Batch, Progress, TapReceiver, Transfers};
use crate::cpu::{CpuBackend, CpuForward, CpuOptions, KvPool, describe};
use crate::cuda::{CudaBackend, CudaError, CudaOptions, TapMode};
use crate::model::{Dtype, Model};

/// A backend and the properties that the engine needs of it.
pub struct BuiltBackend {
    /// The backend.
    pub backend: Box<dyn Backend>,
    /// Blocks of its KV pool.
    pub kv_blocks: usize,
    /// Description of its device.
    pub device: String,
}

/// The probe of an engine.
#[derive(Clone)]
pub struct ProbeParts {
    /// The probe on the CPU: receiver of tapped activations.
    pub probe: Arc<LengthProbe>,
    /// Its weights, for a device that runs the probe itself.
    pub weights: Arc<Weights>,
}

impl EngineBuilder {
    /// Allocates everything and starts the engine's thread.
    pub fn build(self) -> Result<Engine, BuildError> {
        self.build_with(EngineBuilder::device_backend)
    }

    /// Allocates everything for an engine that the caller steps: no thread is started.
    pub fn build_stepped(self) -> Result<SteppedEngine, BuildError> {
        self.build_stepped_with(EngineBuilder::device_backend)
    }

    /// As [`EngineBuilder::build`], over the backend that `make` returns. For tests and
    /// measurements that wrap a backend.
    pub fn build_with(self, make: impl MakeBackend) -> Result<Engine, BuildError> {
        let (mut engine, step_loop) = self.assemble(make)?;
        let thread = std::thread::Builder::new()
            .name("trail-engine".into())
            .spawn(move || step_loop.serve())
            .map_err(|error| {
                BuildError::Failed(format!("cannot start the engine's thread: {error}"))
            })?;
        engine.queue.set_thread(thread.thread().clone());
        engine.thread = Some(thread);
        Ok(engine)
    }

    /// As [`EngineBuilder::build_stepped`], over the backend that `make` returns.
    pub fn build_stepped_with(self, make: impl MakeBackend) -> Result<SteppedEngine, BuildError> {
        let (engine, step_loop) = self.assemble(make)?;
        Ok(SteppedEngine::new(engine, step_loop))
    }

    fn length_probe(&mut self, segments: usize) -> Result<Option<ProbeParts>, BuildError> {
        let probe = self.probe.take().map(|probe| probe.with_isa(self.isa)).transpose();
        Ok(probe.map_err(BuildError::Refused)?.map(|probe| {
            let weights = probe.weights.clone();
            // A segment can tap two rows: the mean over the prompt, and the last row of a
            // recompute.
            let probe = Arc::new(LengthProbe::new(probe, self.max_requests, 2 * segments));
            ProbeParts { probe, weights }
        }))
    }

    fn assemble(mut self, make: impl MakeBackend) -> Result<(Engine, StepLoop), BuildError> {
        self.check()?;
        let model =
            self.model.clone().ok_or_else(|| BuildError::Refused("no model was given".into()))?;
        self.check_probe(&model)?;
        let shed_above = (self.when_full == WhenFull::Shed).then_some(self.max_requests);
        self.max_requests = self.when_full.capacity(self.max_requests);
        let (segments, rows) = (self.num_running(), self.max_rows());
        let probe = self.length_probe(segments)?;
        let mut built = make(&mut self, &model, probe.clone())?;
        let clock = self.clock.take().unwrap_or_else(|| Arc::new(WallClock::new()));
        let cost = clock.simulated().map(|clock| *clock.cost());
        let scheduler = self.scheduler(&model, &mut built, &*clock)?;
        let admission =
            Admission { scheduler: *scheduler.config(), vocab_size: model.config.vocab_size };
        let limits =
            QueueLimits { requests: self.max_requests as u32, bytes: self.max_queue_bytes };
        let (queue, inbox) = SubmitQueue::new(limits);
        let counters = Arc::new(Counters::default());
        let max_blocks = segments * model.config.max_context.div_ceil(BLOCK_TOKENS);
        let step_loop = StepLoop {
            backend: built.backend,
            scheduler,
            lifecycle: Lifecycle::new(
                (self.max_requests, shed_above),
                segments,
                model.config.eos_tokens.clone(),
                (self.policy.needs() == Needs::Probe).then(PredictionWatch::new),
                (queue.clone(), inbox),
                counters.clone(),
            ),
            predictions: Predictions::new(
                probe.map(|parts| parts.probe),
                self.max_requests,
                segments,
                counters.clone(),
            ),
            swaps: Swaps::new(self.max_requests),
            batch: Batch::with_capacity(rows, segments, max_blocks),
            sampled: Vec::with_capacity(segments),
            in_flight: [(); 2].map(|()| InFlightStep::with_capacity(segments)),
            is_in_flight: false,
            is_transferring: false,
            step_times: StepTimeEstimator::default(),
            prefill_pace: prefill_pace(self.gap(), &model, cost),
            clock: clock.clone(),
            observer: Observing(self.observer.take()),
            counters: counters.clone(),
            step: 0,
        };
        let engine = Engine {
            model,
            predictor: self.predictor,
            policy: self.policy,
            device: built.device,
            max_running: segments,
            kv_blocks: built.kv_blocks,
            admission,
            queue,
            counters,
            clock,
            next_id: AtomicU64::new(0),
            thread: None,
        };
        Ok((engine, step_loop))
    }

    /// The backend of [`EngineBuilder::device`].
    fn device_backend(
        &mut self,
        model: &Arc<Model>,
        probe: Option<ProbeParts>,
    ) -> Result<BuiltBackend, BuildError> {
        match self.device {
            ComputeDevice::Cpu => self.cpu_backend(model, probe),
            ComputeDevice::Cuda { ordinal } => self.cuda_backend(ordinal, model, probe),
        }
    }

    fn cpu_backend(
        &mut self,
        model: &Arc<Model>,
        probe: Option<ProbeParts>,
    ) -> Result<BuiltBackend, BuildError> {
        let forward = self.cpu_forward(model)?;
        let kv_blocks = forward.options().num_blocks;
        let narrow = [("8-bit", forward.byte_products()), ("bf16", forward.bf16_products())];
        let narrow = narrow.into_iter().filter_map(|(kind, name)| Some((kind, name?)));
        let narrow: String =
            narrow.map(|(kind, name)| format!(", {kind} products by {name}")).collect();
        let (threads, isa) = (forward.options().threads, forward.isa());
        let repacked = match (self.repack, forward.repacked_bytes()) {
            (false, _) => String::new(),
            (true, 0) => ", no weights to repack".into(),
            (true, bytes) => format!(", {:.1} MiB of weights repacked", bytes as f64 / 1048576.0),
        };
        let pinned = describe(forward.pool().cpus());
        let device = format!("cpu, {threads} threads{pinned}, {isa}{narrow}{repacked}");
        let tap = probe.map(|parts| (parts.probe.layers(), parts.probe as Arc<dyn TapReceiver>));
        let backend = Box::new(CpuBackend::new(forward, tap));
        Ok(BuiltBackend { backend, kv_blocks, device })
    }

    fn cuda_backend(
        &mut self,
        ordinal: usize,
        model: &Arc<Model>,
        probe: Option<ProbeParts>,
    ) -> Result<BuiltBackend, BuildError> {
        if let Some(dtype) = self.kv_dtype.filter(|dtype| *dtype != Dtype::Bf16) {
            return Err(BuildError::Refused(format!(
                "--kv-dtype {}: keys and values are bf16 on a GPU; leave the option out, or choose \
                 --device cpu",
                dtype.to_string().to_lowercase()
            )));
        }
        let cpu_only = [(self.repack, "--repack"), (self.pin, "--cpu-strict 1")];
        if let Some((_, option)) = cpu_only.into_iter().find(|(given, _)| *given) {
            return Err(BuildError::Refused(format!(
                "{option} is for the CPU: leave it out, or choose --device cpu"
            )));
        }
        let options = self.cuda_options(ordinal, model, probe.as_ref())?;
        let receiver = probe.map(|parts| parts.probe as Arc<dyn TapReceiver>);
        let mut ignore = |_| {};
        let progress: &mut dyn FnMut(Progress) = match &mut self.progress {
            Some(report) => report,
            None => &mut ignore,
        };
        let backend = CudaBackend::new(model, &options, receiver, progress)?;
        let (kv_blocks, name) = (backend.kv_blocks(), backend.device_name());
        let device = format!("cuda:{ordinal}, {name}");
        Ok(BuiltBackend { backend: Box::new(backend), kv_blocks, device })
    }

    /// Options of a CUDA backend for these settings; refuses a probe over several layers.
    pub fn cuda_options(
        &self,
        ordinal: usize,
        model: &Model,
        probe: Option<&ProbeParts>,
    ) -> Result<CudaOptions, BuildError> {
        let layers = probe.map(|parts| parts.probe.layers());
        if let Some(layers) = layers.filter(|layers| layers.single().is_none()) {
            return Err(BuildError::Refused(format!(
                "the probe reads layers {layers}: a GPU taps one layer; give a probe of one with \
                 --probe FILE, or choose --device cpu"
            )));
        }
        let settings = self.cuda;
        let swaps = self.preemption != Preemption::Recompute;
        Ok(CudaOptions {
            ordinal,
            max_rows: self.max_rows(),
            max_segments: self.num_running(),
            max_requests: self.max_requests,
            max_context: model.config.max_context,
            kv_blocks: self.kv_blocks,
            host_kv_bytes: if swaps { settings.host_kv_bytes } else { 0 },
            graphs: settings.graphs,
            megakernel: settings.megakernel,
            hopper_products: settings.hopper_products,
            hopper_clusters: settings.hopper_clusters,
            split_prefill: settings.split_prefill,
            sampler_teams: settings.sampler_teams,
            tap_layer: layers.map(|layers| layers.last()),
            tap: match (probe, settings.probe) {
                (None, _) => TapMode::Off,
                (Some(_), ProbeDevice::Cpu) => TapMode::Cpu,
                (Some(_), ProbeDevice::Gpu) => TapMode::Gpu,
            },
            probe: probe.map(|parts| parts.weights.clone()),
            probe_threads: settings.probe_threads,
            checksums: settings.checksums,
        })
    }

    /// The forward pass of a CPU backend for these settings.
    pub fn cpu_forward(&self, model: &Arc<Model>) -> Result<CpuForward, BuildError> {
        let kv_dtype = self.kv_dtype.unwrap_or(Dtype::F32);
        let default =
            || KvPool::default_blocks(&model.config, self.num_running(), kv_room(model), kv_dtype);
        let num_blocks = self.kv_blocks.unwrap_or_else(default);
        let options = CpuOptions {
            threads: self.threads.unwrap_or_else(available_threads),
            pin: self.pin,
            isa: self.isa,
            compute: self.compute,
            repack: self.repack,
            max_rows: self.max_rows(),
            max_segments: self.num_running(),
            kv_dtype,
            num_blocks,
            max_context: model.config.max_context,
        };
        CpuForward::new(model.clone(), options).map_err(BuildError::Refused)
    }

    fn scheduler(
        &mut self,
        model: &Model,
        built: &mut BuiltBackend,
        clock: &dyn Clock,
    ) -> Result<LoggedScheduler, BuildError> {
        let transfers = built.backend.transfers();
        if self.preemption == Preemption::Swap && transfers.is_none() {
            return Err(BuildError::Refused(
                "preemption by swap needs a GPU and room for KV in host memory: choose recompute or \
                 auto, or raise --host-kv-gib"
                    .into(),
            ));
        }
        let costs = |t: &mut dyn Transfers| match clock.simulated() {
            None => (t.host_blocks(), t.block_s(), t.token_s()),
            Some(clock) => {
                let block_s = clock.transfer(t.block_bytes()).as_secs_f64();
                (t.host_blocks(), block_s, clock.cost().prefill_token * 1e-9)
            }
        };
        let (host_blocks, block_s, token_s) = transfers.map_or((0, 0.0, 0.0), costs);
        let config = SchedulerConfig {
            preemption: self.preemption,
            host_blocks,
            block_s,
            token_s,
            max_running: self.num_running() as u32,
            max_requests: self.max_requests as u32,
            token_budget: self.max_rows() as u32,
            num_blocks: built.kv_blocks as u32,
            max_context: model.config.max_context as u32,
            ..self.scheduler
        };
        let max_gap_s = self.gap().as_secs_f64();
        let header = LogHeader { config, policy: self.policy, max_gap_s };
        LoggedScheduler::new(&header, self.log.take())
            .map_err(|error| BuildError::Refused(error.to_string()))
    }
}

impl From<CudaError> for BuildError {
    fn from(error: CudaError) -> Self {
        let why = error.to_string();
        match error {
            CudaError::Unsupported { .. } => BuildError::Unsupported(why),
            _ => BuildError::Failed(why),
        }
    }
}

/// Available memory where the system does not state it, bytes.
const ASSUMED_BYTES: u64 = 8 << 30;

/// Memory that is available beside the weights, bytes. Those in files count as available until they
/// are read.
fn kv_room(model: &Model) -> u64 {
    let available = Memory::read().map_or(ASSUMED_BYTES, |memory| memory.available_bytes);
    available.saturating_sub(model.weights.mapped_bytes as u64)
}

/// A function that makes the backend of an engine: from the builder's settings, the model, and the
/// probe if there is one.
pub trait MakeBackend:
    FnOnce(&mut EngineBuilder, &Arc<Model>, Option<ProbeParts>) -> Result<BuiltBackend, BuildError>
{
}

impl<F> MakeBackend for F where
    F: FnOnce(
        &mut EngineBuilder,
        &Arc<Model>,
        Option<ProbeParts>,
    ) -> Result<BuiltBackend, BuildError>
{
}

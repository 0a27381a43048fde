//! From the builder's choices to a running engine.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use trail_probe::Weights;
use trail_scheduler::{Preemption, Scheduler, SchedulerConfig};

use super::Engine;
use super::backend::{Backend, Transfers};
use super::builder::{BuildError, EngineBuilder};
use super::core::Core;
use super::device::{ComputeDevice, ProbeDevice};
use super::doors::Doors;
use super::flight::Flight;
use super::forecast::Forecast;
use super::host::Host;
use super::pace::Pace;
use super::stats::Counters;
use super::tap::{TapPlan, TapReceiver};
use crate::batch::{BLOCK_TOKENS, Batch};
use crate::cpu::{CpuBackend, CpuOptions};
use crate::cuda::{CudaBackend, CudaError, CudaOptions, Progress, TapMode};
use crate::model::Model;

/// A backend, and what the engine must know of it.
pub(super) struct Built {
    pub(super) backend: Box<dyn Backend>,
    pub(super) kv_blocks: usize,
    pub(super) device: String,
}

/// What predicts: on the CPU, and its weights for a device.
pub(super) type Predicts = (Arc<Forecast>, Arc<Weights>);

impl EngineBuilder {
    /// Allocates everything and starts the engine's thread.
    pub fn build(self) -> Result<Engine, BuildError> {
        match self.device {
            ComputeDevice::Cpu => self.assemble(EngineBuilder::host),
            ComputeDevice::Cuda { ordinal } => {
                self.assemble(|builder, model, probe| builder.cuda_device(ordinal, model, probe))
            }
        }
    }

    /// The same with the backend that `make` makes.
    pub(super) fn assemble(
        mut self,
        make: impl FnOnce(&mut Self, &Arc<Model>, Option<Predicts>) -> Result<Built, BuildError>,
    ) -> Result<Engine, BuildError> {
        self.check()?;
        let model =
            self.model.clone().ok_or_else(|| BuildError::Refused("no model was given".into()))?;
        self.check_probe(&model)?;
        // A run can bring two rows: the prompt's mean, and the last row of a recompute.
        let (slots, rows) = (self.num_slots(), self.max_rows());
        let predicts = self.probe.take().map(|probe| {
            let weights = probe.weights.clone();
            (Arc::new(Forecast::new(probe, self.max_requests, 2 * slots)), weights)
        });
        let forecast = predicts.as_ref().map(|(forecast, _)| forecast.clone());
        let mut built = make(&mut self, &model, predicts)?;
        let (doors, inbox) = Doors::new(self.max_requests as u32);
        let counters = Arc::new(Counters::default());
        let start = Instant::now();
        let max_blocks = slots * model.config.max_context.div_ceil(BLOCK_TOKENS);
        let core = Core {
            scheduler: self.scheduler(&model, &mut built)?,
            forecast,
            batch: Batch::with_capacity(rows, slots, max_blocks),
            tap: TapPlan::with_capacity(slots),
            slots: (0..self.max_requests).map(|_| None).collect(),
            flights: [Flight::with_capacity(slots), Flight::with_capacity(slots)],
            under_way: false,
            waits: false,
            pace: Pace::default(),
            sampled: Vec::with_capacity(slots),
            arrived: Vec::with_capacity(self.max_requests),
            forgotten: Vec::with_capacity(self.max_requests),
            ended: Vec::with_capacity(slots),
            eos_tokens: model.config.eos_tokens.clone(),
            doors: doors.clone(),
            inbox,
            counters: counters.clone(),
            step: 0,
            start,
        };
        let thread = std::thread::Builder::new()
            .name("trail-engine".into())
            .spawn(move || core.run(built.backend))
            .map_err(|error| {
                BuildError::Failed(format!("cannot start the engine's thread: {error}"))
            })?;
        Ok(Engine {
            model,
            predictor: self.predictor,
            policy: self.policy,
            device: built.device,
            slots,
            kv_blocks: built.kv_blocks,
            doors,
            counters,
            start,
            next_id: AtomicU64::new(0),
            thread: Some(thread),
        })
    }

    /// The CPU as a backend.
    fn host(
        &mut self,
        model: &Arc<Model>,
        predicts: Option<Predicts>,
    ) -> Result<Built, BuildError> {
        let forecast = predicts.map(|(forecast, _)| forecast);
        let (backend, kv_blocks) = self.cpu(model)?;
        let device = format!("cpu, {} threads, {}", backend.options().threads, backend.isa());
        Ok(Built { backend: Box::new(Host::new(backend, forecast)), kv_blocks, device })
    }

    /// A CUDA device as a backend.
    fn cuda_device(
        &mut self,
        ordinal: usize,
        model: &Arc<Model>,
        predicts: Option<Predicts>,
    ) -> Result<Built, BuildError> {
        let settings = self.cuda;
        let swaps = self.preemption != Preemption::Recompute;
        let options = CudaOptions {
            ordinal,
            max_rows: self.max_rows(),
            max_segments: self.num_slots(),
            max_requests: self.max_requests,
            max_context: model.config.max_context,
            kv_blocks: self.kv_blocks,
            host_kv_bytes: if swaps { settings.host_kv_bytes } else { 0 },
            graphs: settings.graphs,
            megakernel: settings.persistent,
            hopper_products: settings.hopper_products,
            tap_layer: predicts.as_ref().map(|(forecast, _)| forecast.layer()),
            tap: match (&predicts, settings.probe) {
                (None, _) => TapMode::Off,
                (Some(_), ProbeDevice::Cpu) => TapMode::Cpu,
                (Some(_), ProbeDevice::Gpu) => TapMode::Gpu,
            },
            probe: predicts.as_ref().map(|(_, weights)| weights.clone()),
            probe_threads: settings.probe_threads,
            checksums: settings.checksums,
        };
        let receiver = predicts.map(|(forecast, _)| forecast as Arc<dyn TapReceiver>);
        let mut nobody = |_| {};
        let progress: &mut dyn FnMut(Progress) = match &mut self.progress {
            Some(report) => report,
            None => &mut nobody,
        };
        let backend = CudaBackend::new(model, &options, receiver, progress).map_err(refused)?;
        let (kv_blocks, name) = (backend.kv_blocks(), backend.device_name());
        let device = format!("cuda:{ordinal}, {name}");
        Ok(Built { backend: Box::new(backend), kv_blocks, device })
    }

    /// The CPU's forward pass, and its KV blocks.
    pub(super) fn cpu(&self, model: &Arc<Model>) -> Result<(CpuBackend, usize), BuildError> {
        let wanted = || default_kv_blocks(model, self.num_slots());
        let num_blocks = self.kv_blocks.unwrap_or_else(wanted);
        let options = CpuOptions {
            threads: self.threads.unwrap_or_else(available_threads),
            isa: self.isa,
            max_rows: self.max_rows(),
            max_segments: self.num_slots(),
            num_blocks,
            max_context: model.config.max_context,
        };
        let backend = CpuBackend::new(model.clone(), options).map_err(BuildError::Refused)?;
        Ok((backend, num_blocks))
    }

    fn scheduler(&self, model: &Model, built: &mut Built) -> Result<Scheduler, BuildError> {
        let transfers = built.backend.transfers();
        if self.preemption == Preemption::Swap && transfers.is_none() {
            return Err(BuildError::Refused(
                "preemption by swap needs a GPU and room for its KV at the host: choose recompute or auto, or raise --host-kv-gib".into(),
            ));
        }
        let costs = |t: &mut dyn Transfers| (t.host_blocks(), t.block_s(), t.token_s());
        let (host_blocks, block_s, token_s) = transfers.map_or((0, 0.0, 0.0), costs);
        let config = SchedulerConfig {
            preemption: self.preemption,
            host_blocks,
            block_s,
            token_s,
            max_running: self.num_slots() as u32,
            max_requests: self.max_requests as u32,
            token_budget: self.max_rows() as u32,
            num_blocks: built.kv_blocks as u32,
            max_context: model.config.max_context as u32,
            ..SchedulerConfig::default()
        };
        Scheduler::new(config, self.policy.build())
            .map_err(|error| BuildError::Refused(error.to_string()))
    }
}

fn refused(error: CudaError) -> BuildError {
    let why = error.to_string();
    match error {
        CudaError::Unsupported { .. } => BuildError::Unsupported(why),
        _ => BuildError::Failed(why),
    }
}

/// Cores this process may use.
fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Most bytes that the default cache takes.
const DEFAULT_KV_BYTES: usize = 4 << 30;

fn default_kv_blocks(model: &Model, slots: usize) -> usize {
    let config = &model.config;
    let per_sequence = config.max_context.div_ceil(BLOCK_TOKENS);
    let block_bytes = BLOCK_TOKENS * config.num_layers * 2 * config.kv_size() * size_of::<f32>();
    let wanted = per_sequence * slots * 3 / 2;
    wanted.min((DEFAULT_KV_BYTES / block_bytes).max(1))
}

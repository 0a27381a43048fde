//! The backend of an engine, from its configuration.

use std::sync::{Arc, PoisonError};

use trail_platform::{Memory, available_threads};
use trail_probe::Weights;
use trail_scheduler::Preemption;

use super::config::{BuildError, CpuShare, EngineConfig};
use super::device::{ComputeDevice, CpuSettings, ProbeDevice};
use super::length_probe::LengthProbe;
use super::speculation::Speculate;
use crate::backend::{Backend, HiddenSink, MAX_DRAFT_TOKENS, Progress, RowSink};
use crate::cpu::{CpuBackend, CpuForward, CpuOptions, KvPool, Pool, describe};
use crate::cuda::{CudaBackend, CudaError, CudaOptions, TapMode};
use crate::model::{Dtype, Model, ModelConfig};

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

impl EngineConfig {
    /// The backend of [`EngineConfig::device`].
    pub(super) fn device_backend(
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
        let mut forward = self.cpu_forward(model)?;
        let shared = self.cpu_share.as_ref().map(|share| share.pool.clone());
        let draft = self.cpu_draft(&mut forward)?;
        let kv_blocks = forward.options().num_blocks;
        let narrow = [("8-bit", forward.byte_products()), ("bf16", forward.bf16_products())];
        let narrow = narrow.into_iter().filter_map(|(kind, name)| Some((kind, name?)));
        let narrow: String =
            narrow.map(|(kind, name)| format!(", {kind} products by {name}")).collect();
        let (threads, isa) = (forward.options().threads, forward.isa());
        let repacked = match (self.cpu.repack, forward.repacked_bytes()) {
            (false, _) => String::new(),
            (true, 0) => ", no weights to repack".into(),
            (true, bytes) => format!(", {:.1} MiB of weights repacked", bytes as f64 / 1048576.0),
        };
        let states = match forward.num_states() {
            0 => String::new(),
            count => {
                let bytes = forward.options().state_bytes(&model.config);
                format!(", {count} recurrent states in up to {:.1} MiB", bytes as f64 / 1048576.0)
            }
        };
        let pinned = match &shared {
            None => describe(forward.pool().cpus()),
            Some(pool) => describe(pool.lock().unwrap_or_else(PoisonError::into_inner).cpus()),
        };
        let device = format!("cpu, {threads} threads{pinned}, {isa}{narrow}{repacked}{states}");
        let tap = probe.map(|parts| (parts.probe.layers(), parts.probe as Arc<dyn HiddenSink>));
        let backend = CpuBackend::new(forward, tap);
        let backend = match draft {
            Some(draft) => backend.with_draft(draft),
            None => backend,
        };
        let backend = match shared {
            Some(pool) => backend.with_shared(pool),
            None => backend,
        };
        Ok(BuiltBackend { backend: Box::new(backend), kv_blocks, device })
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
        let cpu_only = [
            (self.cpu.repack, "--repack"),
            (self.cpu.pin, "--cpu-strict 1"),
            (self.speculate.draft().is_some(), "--speculate draft:PATH"),
        ];
        if let Some((_, option)) = cpu_only.into_iter().find(|(given, _)| *given) {
            return Err(BuildError::Refused(format!(
                "{option} is for the CPU: leave it out, or choose --device cpu"
            )));
        }
        let options = self.cuda_options(ordinal, model, probe.as_ref())?;
        let receiver = probe.map(|parts| parts.probe as Arc<dyn RowSink>);
        let mut ignore = |_| {};
        let progress: &mut dyn FnMut(Progress) = match &mut self.progress {
            Some(report) => report,
            None => &mut ignore,
        };
        let backend = match CudaBackend::new(model, &options, receiver, progress) {
            // A number of blocks that the user named can be lowered; a full device cannot.
            Err(CudaError::OutOfMemory(full))
                if full.free.is_some() && self.kv_blocks.is_none() =>
            {
                return Err(BuildError::Unsupported(full.to_string()));
            }
            built => built?,
        };
        if let Some(warn) = &mut self.warn {
            backend.warnings().iter().for_each(|warning| warn(warning));
        }
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
        let swaps = self.scheduler.preemption != Preemption::Recompute;
        Ok(CudaOptions {
            ordinal,
            max_rows: self.max_rows(),
            max_segments: self.num_running(),
            max_requests: self.queue.max_requests,
            max_context: model.config.max_context,
            kv_blocks: self.kv_blocks,
            host_kv_bytes: if swaps { settings.host_kv_bytes } else { 0 },
            graphs: settings.graphs,
            order: settings.order,
            megakernel: settings.megakernel,
            tap_layer: layers.map(|layers| layers.last()),
            tap: match (probe, settings.probe) {
                (None, _) => TapMode::Off,
                (Some(_), ProbeDevice::Cpu) => TapMode::Cpu,
                (Some(_), ProbeDevice::Gpu) => TapMode::Gpu,
            },
            probe: probe.map(|parts| parts.weights.clone()),
            probe_threads: settings.probe_threads,
            shares_blocks: !self.no_prefix_cache,
            max_drafts: if matches!(self.speculate, Speculate::Off) { 0 } else { MAX_DRAFT_TOKENS },
            device_timeout: settings.device_timeout,
            checksums: settings.checksums,
        })
    }

    /// The forward pass of a CPU backend for these settings.
    pub fn cpu_forward(&self, model: &Arc<Model>) -> Result<CpuForward, BuildError> {
        let kv_dtype = self.kv_dtype.unwrap_or(Dtype::F32);
        let CpuSettings { threads, pin, isa, compute, repack } = self.cpu;
        let mut options = CpuOptions {
            threads: threads.unwrap_or_else(available_threads),
            pin,
            isa,
            compute,
            repack,
            max_rows: self.max_rows(),
            max_segments: self.num_running(),
            kv_dtype,
            num_blocks: 0,
            max_context: model.config.max_context,
        };
        let default = || {
            let draft = self.speculate.draft().map(|draft| &**draft);
            let room = self.kv_room([Some(&**model), draft].into_iter().flatten());
            let states = u64::try_from(options.state_bytes(&model.config)).unwrap_or(u64::MAX);
            let room = room.saturating_sub(states);
            let block_bytes = self.kv_block_bytes(&model.config);
            KvPool::default_blocks(&model.config, self.num_running(), room, block_bytes)
        };
        options.num_blocks = self.kv_blocks.unwrap_or_else(default);
        self.check_memory(model, &options)?;
        let built = match &self.cpu_share {
            None => CpuForward::new(model.clone(), options),
            Some(CpuShare { pool, .. }) => {
                let lock = || pool.lock().unwrap_or_else(PoisonError::into_inner);
                let options = CpuOptions { threads: lock().num_workers(), ..options };
                match options.repack {
                    true => CpuForward::on(&mut lock(), model.clone(), options),
                    // Needs no threads: the steps of other engines go on meanwhile.
                    false => Pool::new(1)
                        .and_then(|mut own| CpuForward::on(&mut own, model.clone(), options)),
                }
            }
        };
        built.map_err(BuildError::Refused)
    }

    /// Refuses what is larger than [`EngineConfig::memory_bytes`].
    fn check_memory(&self, model: &Model, options: &CpuOptions) -> Result<(), BuildError> {
        let weights = model.weights.mapped_bytes as u128 * (1 + u128::from(options.repack));
        let needed = weights + options.bytes(&model.config);
        match self.memory_bytes {
            Some(bytes) if needed > u128::from(bytes) => Err(BuildError::Refused(format!(
                "its weights, {} KV blocks and {} rows a step take {} MiB, its share of the memory \
                 is {} MiB: lower --kv-blocks or --max-running, raise its --model-share, or serve \
                 fewer models",
                options.num_blocks,
                options.max_rows,
                needed >> 20,
                bytes >> 20
            ))),
            _ => Ok(()),
        }
    }

    /// Memory that is available beside the weights of `models`, bytes. Those in files count as
    /// available until they are read.
    fn kv_room<'a>(&self, models: impl Iterator<Item = &'a Model>) -> u64 {
        let available = || Memory::read().map_or(ASSUMED_BYTES, |memory| memory.available_bytes);
        let weights: u64 = models.map(|model| model.weights.mapped_bytes as u64).sum();
        self.memory_bytes.unwrap_or_else(available).saturating_sub(weights)
    }

    /// The forward pass of the draft model, if any, beside `forward`.
    fn cpu_draft(&self, forward: &mut CpuForward) -> Result<Option<CpuForward>, BuildError> {
        let Some(model) = self.speculate.draft() else { return Ok(None) };
        let max_context = model.config.max_context.min(forward.options().max_context);
        let options = CpuOptions { max_context, ..*forward.options() };
        let draft = CpuForward::beside(forward, model.clone(), options);
        draft.map(Some).map_err(|why| BuildError::Refused(format!("the draft model: {why}")))
    }

    /// Bytes of a KV block of a CPU backend for a model of `config`, with the draft model's.
    pub(super) fn kv_block_bytes(&self, config: &ModelConfig) -> usize {
        let dtype = self.kv_dtype.unwrap_or(Dtype::F32);
        let draft = self.speculate.draft().map(|draft| &draft.config);
        let configs = [Some(config), draft].into_iter().flatten();
        configs.map(|config| KvPool::bytes_of_block(config, dtype)).sum()
    }
}

impl From<CudaError> for BuildError {
    fn from(error: CudaError) -> Self {
        let why = error.to_string();
        match error {
            CudaError::Unsupported { .. } | CudaError::Unusable(_) => BuildError::Unsupported(why),
            _ => BuildError::Failed(why),
        }
    }
}

/// Available memory where the system does not state it, bytes.
const ASSUMED_BYTES: u64 = 8 << 30;

/// A function that makes the backend of an engine: from its settings, the model, and the probe, if
/// any.
pub trait MakeBackend:
    FnOnce(&mut EngineConfig, &Arc<Model>, Option<ProbeParts>) -> Result<BuiltBackend, BuildError>
{
}

impl<F> MakeBackend for F where
    F: FnOnce(
        &mut EngineConfig,
        &Arc<Model>,
        Option<ProbeParts>,
    ) -> Result<BuiltBackend, BuildError>
{
}

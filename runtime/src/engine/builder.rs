//! Putting an engine together.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use trail_probe::{Predictor, Probe};
use trail_scheduler::{Scheduler, SchedulerConfig};

use super::Engine;
use super::backend::Backend;
use super::core::Core;
use super::doors::Doors;
use super::flight::Flight;
use super::forecast::Forecast;
use super::host::Host;
use super::pace::Pace;
use super::policy::{Needs, PolicyKind};
use super::stats::Counters;
use super::tap::TapPlan;
use crate::batch::{BLOCK_TOKENS, Batch};
use crate::cpu::{CpuBackend, CpuOptions, Isa};
use crate::model::Model;

/// Rows of one forward pass, unless said otherwise.
pub const DEFAULT_TOKEN_BUDGET: usize = 512;
/// Sequences in one forward pass, unless said otherwise.
pub const DEFAULT_SLOTS: usize = 8;
/// Requests in the engine at once, running and waiting, unless said otherwise.
pub const DEFAULT_MAX_REQUESTS: usize = 4096;

/// Why an engine could not be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError(pub String);

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BuildError {}

fn refuse<T>(why: impl Into<String>) -> Result<T, BuildError> {
    Err(BuildError(why.into()))
}

/// A backend, and what the engine must know of it.
pub(super) struct Built {
    pub(super) backend: Box<dyn Backend>,
    pub(super) kv_blocks: usize,
    pub(super) device: String,
}

/// Collects what an engine is made of. Every number has a default that suits the model.
pub struct EngineBuilder {
    model: Option<Arc<Model>>,
    probe: Option<Probe>,
    predictor: Option<Predictor>,
    policy: PolicyKind,
    replays: bool,
    slots: usize,
    max_requests: usize,
    token_budget: usize,
    kv_blocks: Option<usize>,
    threads: Option<usize>,
    isa: Isa,
}

impl Default for EngineBuilder {
    fn default() -> Self {
        EngineBuilder {
            model: None,
            probe: None,
            predictor: None,
            policy: PolicyKind::Fcfs,
            replays: false,
            slots: DEFAULT_SLOTS,
            max_requests: DEFAULT_MAX_REQUESTS,
            token_budget: DEFAULT_TOKEN_BUDGET,
            kv_blocks: None,
            threads: None,
            isa: Isa::Auto,
        }
    }
}

impl EngineBuilder {
    /// The model; required.
    pub fn model(mut self, model: Arc<Model>) -> Self {
        self.model = Some(model);
        self
    }

    /// The remaining-length probe; without one nothing is predicted.
    pub fn probe(mut self, probe: Option<Probe>) -> Self {
        self.probe = probe;
        self
    }

    /// The prompt-only predictor, the source of `r` where there is one.
    pub fn predictor(mut self, predictor: Option<Predictor>) -> Self {
        self.predictor = predictor;
        self
    }

    /// The policy; default `fcfs`.
    pub fn policy(mut self, policy: PolicyKind) -> Self {
        self.policy = policy;
        self
    }

    /// Whether requests bring their predictions along ([`super::Request::predictions`]), so that a policy needs no probe and no
    /// predictor; default no. For experiments.
    pub fn replays(mut self, replays: bool) -> Self {
        self.replays = replays;
        self
    }

    /// Sequences in one forward pass; default [`DEFAULT_SLOTS`].
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// Requests in the engine at once, running and waiting; default [`DEFAULT_MAX_REQUESTS`].
    pub fn max_requests(mut self, max_requests: usize) -> Self {
        self.max_requests = max_requests;
        self
    }

    /// Rows (tokens) in one forward pass; default [`DEFAULT_TOKEN_BUDGET`].
    pub fn token_budget(mut self, rows: usize) -> Self {
        self.token_budget = rows;
        self
    }

    /// KV blocks of 16 tokens; default: every running sequence at its longest, and half as much again
    /// for paused ones, within 4 GiB.
    pub fn kv_blocks(mut self, blocks: Option<usize>) -> Self {
        self.kv_blocks = blocks;
        self
    }

    /// Threads of the forward pass, the engine's own included; default: all cores.
    pub fn threads(mut self, threads: Option<usize>) -> Self {
        self.threads = threads;
        self
    }

    /// Instruction set of the CPU kernels; default: the best that is safe to choose.
    pub fn isa(mut self, isa: Isa) -> Self {
        self.isa = isa;
        self
    }

    /// Allocates everything and starts the engine's thread.
    pub fn build(self) -> Result<Engine, BuildError> {
        self.assemble(EngineBuilder::host)
    }

    /// The same with the backend that `make` makes.
    pub(super) fn assemble(
        mut self,
        make: impl FnOnce(&Self, &Arc<Model>, Option<Arc<Forecast>>) -> Result<Built, BuildError>,
    ) -> Result<Engine, BuildError> {
        self.check()?;
        let model = self.model.clone().ok_or_else(|| BuildError("no model was given".into()))?;
        self.check_probe(&model)?;
        // A run can bring two rows: the prompt's mean, and the last row of a recompute.
        let forecast = |probe| Arc::new(Forecast::new(probe, self.max_requests, 2 * self.slots));
        let forecast = self.probe.take().map(forecast);
        let built = make(&self, &model, forecast.clone())?;
        let (doors, inbox) = Doors::new(self.max_requests as u32);
        let counters = Arc::new(Counters::default());
        let start = Instant::now();
        let max_blocks = self.slots * model.config.max_context.div_ceil(BLOCK_TOKENS);
        let core = Core {
            scheduler: self.scheduler(&model, built.kv_blocks)?,
            forecast,
            batch: Batch::with_capacity(self.token_budget, self.slots, max_blocks),
            tap: TapPlan::with_capacity(self.slots),
            slots: (0..self.max_requests).map(|_| None).collect(),
            flights: [Flight::with_capacity(self.slots), Flight::with_capacity(self.slots)],
            under_way: false,
            pace: Pace::default(),
            sampled: Vec::with_capacity(self.slots),
            ended: Vec::with_capacity(self.slots),
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
            .map_err(|error| BuildError(format!("cannot start the engine's thread: {error}")))?;
        Ok(Engine {
            model,
            predictor: self.predictor,
            policy: self.policy,
            device: built.device,
            slots: self.slots,
            kv_blocks: built.kv_blocks,
            doors,
            counters,
            start,
            next_id: AtomicU64::new(0),
            thread: Some(thread),
        })
    }

    /// The CPU backend.
    pub(super) fn host(
        &self,
        model: &Arc<Model>,
        forecast: Option<Arc<Forecast>>,
    ) -> Result<Built, BuildError> {
        let kv_blocks = self.kv_blocks.unwrap_or_else(|| default_kv_blocks(model, self.slots));
        let threads = self.threads.unwrap_or_else(available_threads);
        let options = CpuOptions {
            threads,
            isa: self.isa,
            max_rows: self.token_budget,
            max_segments: self.slots,
            num_blocks: kv_blocks,
            max_context: model.config.max_context,
        };
        let backend = CpuBackend::new(model.clone(), options).map_err(BuildError)?;
        let device = format!("cpu, {threads} threads, {}", backend.isa());
        Ok(Built { backend: Box::new(Host::new(backend, forecast)), kv_blocks, device })
    }

    fn scheduler(&self, model: &Model, kv_blocks: usize) -> Result<Scheduler, BuildError> {
        let config = SchedulerConfig {
            max_running: self.slots as u32,
            max_requests: self.max_requests as u32,
            token_budget: self.token_budget as u32,
            num_blocks: kv_blocks as u32,
            max_context: model.config.max_context as u32,
            ..SchedulerConfig::default()
        };
        Scheduler::new(config, self.policy.build()).map_err(|error| BuildError(error.to_string()))
    }

    fn check(&self) -> Result<(), BuildError> {
        if self.slots == 0 {
            return refuse("slots is 0: at least one sequence must run");
        }
        if self.max_requests < self.slots {
            return refuse(format!(
                "max_requests is {}, slots {}: every running sequence is a request, so raise max_requests",
                self.max_requests, self.slots
            ));
        }
        if self.token_budget < self.slots {
            return refuse(format!(
                "token_budget is {}, slots {}: every running sequence needs one row, so raise token_budget",
                self.token_budget, self.slots
            ));
        }
        match self.policy.needs() {
            _ if self.replays => Ok(()),
            Needs::Probe if self.probe.is_none() => refuse(
                "policy trail needs a probe: give one with --probe FILE, put probe.safetensors beside the model, or choose --policy fcfs",
            ),
            Needs::Predictor if self.predictor.is_none() => refuse(
                "policy sjf needs a prompt-only predictor: put predictor.safetensors beside the model, or choose --policy fcfs",
            ),
            _ => Ok(()),
        }
    }

    fn check_probe(&self, model: &Model) -> Result<(), BuildError> {
        let Some(probe) = &self.probe else { return Ok(()) };
        if probe.head.d() != model.config.hidden_size {
            return refuse(format!(
                "the probe reads activations of width {}, the model's are {} wide: it was trained for another model",
                probe.head.d(),
                model.config.hidden_size
            ));
        }
        if probe.layer >= model.config.num_layers {
            return refuse(format!(
                "the probe taps layer {}, the model has layers 0..={}: it was trained for another model",
                probe.layer,
                model.config.num_layers - 1
            ));
        }
        Ok(())
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

//! Putting an engine together.

use std::fmt;
use std::sync::Arc;

use trail_probe::{Predictor, Probe};
use trail_scheduler::Preemption;

use super::device::{ComputeDevice, CudaSettings};
use super::policy::{Needs, PolicyKind};
use crate::cpu::Isa;
use crate::cuda::Progress;
use crate::model::Model;

/// Requests in the engine at once, running and waiting, unless said otherwise.
pub const DEFAULT_MAX_REQUESTS: usize = 4096;

/// Why an engine could not be built: one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// What was asked for does not fit together, or not this machine.
    Refused(String),
    /// The device cannot run this model, whatever is asked for; another one may.
    Unsupported(String),
    /// Something on this machine did not work.
    Failed(String),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (BuildError::Refused(why) | BuildError::Unsupported(why) | BuildError::Failed(why)) =
            self;
        f.write_str(why)
    }
}

impl std::error::Error for BuildError {}

fn refuse<T>(why: impl Into<String>) -> Result<T, BuildError> {
    Err(BuildError::Refused(why.into()))
}

/// Is told how far a start has come.
pub(super) type Reporter = Box<dyn FnMut(Progress)>;

/// Collects what an engine is made of. Every number has a default that suits the model.
pub struct EngineBuilder {
    pub(super) model: Option<Arc<Model>>,
    pub(super) probe: Option<Probe>,
    pub(super) predictor: Option<Predictor>,
    pub(super) policy: PolicyKind,
    pub(super) replays: bool,
    pub(super) preemption: Preemption,
    pub(super) cuda: CudaSettings,
    pub(super) progress: Option<Reporter>,
    pub(super) device: ComputeDevice,
    pub(super) slots: Option<usize>,
    pub(super) max_requests: usize,
    pub(super) token_budget: Option<usize>,
    pub(super) kv_blocks: Option<usize>,
    pub(super) threads: Option<usize>,
    pub(super) isa: Isa,
}

impl Default for EngineBuilder {
    fn default() -> Self {
        EngineBuilder {
            model: None,
            probe: None,
            predictor: None,
            policy: PolicyKind::Fcfs,
            replays: false,
            preemption: Preemption::Recompute,
            cuda: CudaSettings::default(),
            progress: None,
            device: ComputeDevice::Cpu,
            slots: None,
            max_requests: DEFAULT_MAX_REQUESTS,
            token_budget: None,
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

    /// What computes; default the CPU.
    pub fn device(mut self, device: ComputeDevice) -> Self {
        self.device = device;
        self
    }

    /// What becomes of a request that must give its KV blocks up; default: its KV is computed anew. [`Preemption::Swap`] needs a
    /// device with memory of its own.
    pub fn preemption(mut self, preemption: Preemption) -> Self {
        self.preemption = preemption;
        self
    }

    /// How a CUDA device is used.
    pub fn cuda(mut self, settings: CudaSettings) -> Self {
        self.cuda = settings;
        self
    }

    /// Is told how far a device's start has come.
    pub fn progress(mut self, report: impl FnMut(Progress) + 'static) -> Self {
        self.progress = Some(Box::new(report));
        self
    }

    /// Sequences in one forward pass; default [`ComputeDevice::default_slots`].
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = Some(slots);
        self
    }

    /// Requests in the engine at once, running and waiting; default [`DEFAULT_MAX_REQUESTS`].
    pub fn max_requests(mut self, max_requests: usize) -> Self {
        self.max_requests = max_requests;
        self
    }

    /// Rows (tokens) in one forward pass; default [`ComputeDevice::default_token_budget`].
    pub fn token_budget(mut self, rows: usize) -> Self {
        self.token_budget = Some(rows);
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

    /// Sequences in one forward pass.
    pub(super) fn num_slots(&self) -> usize {
        self.slots.unwrap_or_else(|| self.device.default_slots())
    }

    /// Rows of one forward pass.
    pub(super) fn max_rows(&self) -> usize {
        self.token_budget.unwrap_or_else(|| self.device.default_token_budget())
    }

    pub(super) fn check(&self) -> Result<(), BuildError> {
        let (slots, rows) = (self.num_slots(), self.max_rows());
        if slots == 0 {
            return refuse("slots is 0: at least one sequence must run");
        }
        if self.max_requests < slots {
            return refuse(format!(
                "max_requests is {}, slots {}: every running sequence is a request, so raise max_requests",
                self.max_requests, slots
            ));
        }
        if rows < slots {
            return refuse(format!(
                "token_budget is {}, slots {}: every running sequence needs one row, so raise token_budget",
                rows, slots
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

    pub(super) fn check_probe(&self, model: &Model) -> Result<(), BuildError> {
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

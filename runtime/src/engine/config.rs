//! Settings of an engine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use trail_probe::{LengthPredictor, Probe};
use trail_scheduler::policies::PolicyKind;
use trail_scheduler::{LogSink, SchedulerConfig};

use super::admission::QueueConfig;
#[cfg(test)]
use super::block_hashes::BlockHasher;
use super::block_sink::BlockSink;
use super::clock::Clock;
use super::device::{ComputeDevice, CpuSettings, CudaSettings};
use super::observer::StepObserver;
use super::policy_switch::Provided;
use super::speculation::Speculate;
use super::stats::Counters;
use super::turns::Turns;
use crate::backend::Progress;
use crate::cpu::SharedPool;
use crate::model::{Dtype, Model, ModelConfig};

/// The reason for which an engine could not be built: one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// The settings contradict each other, or exceed this machine.
    Refused(String),
    /// The device cannot run this model under any settings; another one may.
    Unsupported(String),
    /// A resource of this machine failed.
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

/// Progress callback for weight upload and graph capture.
pub type ProgressReporter = Box<dyn FnMut(Progress)>;

/// Callback for warnings of a device's start, a line each.
pub type WarningReporter = Box<dyn FnMut(&str)>;

/// The CPU as one of several engines of a process uses it: they compute on the threads of one pool,
/// a step of one engine at a time.
#[derive(Clone)]
pub struct CpuShare {
    /// The threads.
    pub pool: SharedPool,
    /// The turns.
    pub turns: Arc<Turns>,
    /// Share of the time, beside the weights of other engines that have work; at least 1.
    pub weight: u32,
}

/// Settings of an engine. Every number has a default that suits the model.
///
/// ```
/// use trail_runtime::engine::{EngineConfig, PolicyKind};
/// let policy = PolicyKind::trail(0.8);
/// let config = EngineConfig { policy, kv_blocks: Some(64), ..EngineConfig::default() };
/// ```
#[derive(Default)]
pub struct EngineConfig {
    /// The remaining-length probe; without one nothing is predicted.
    pub probe: Option<Probe>,
    /// The prompt-only predictor, the source of `r` where there is one.
    pub predictor: Option<Arc<dyn LengthPredictor>>,
    /// The policy; default `fcfs`.
    pub policy: PolicyKind,
    /// True if requests carry their predictions ([`super::Request::predictions`]), so that a policy
    /// needs no probe and no predictor. For experiments.
    pub replays: bool,
    /// Preemption and bounds of the scheduler. Its sizes and costs are ignored: they follow from
    /// the other settings and from the backend. [`Preemption::Swap`] needs a device with its own
    /// memory.
    ///
    /// [`Preemption::Swap`]: trail_scheduler::Preemption::Swap
    pub scheduler: SchedulerConfig,
    /// The device that computes; default the CPU.
    pub device: ComputeDevice,
    /// Settings of the CPU backend.
    pub cpu: CpuSettings,
    /// The threads of other engines, on which this one computes too; default: separate ones. Of the
    /// CPU backend, without a draft model.
    pub cpu_share: Option<CpuShare>,
    /// Memory that weights, KV blocks and activations of the CPU backend are to fit into, bytes;
    /// default: that which is available.
    pub memory_bytes: Option<u64>,
    /// Settings of a CUDA device.
    pub cuda: CudaSettings,
    /// Most sequences in one step; default [`ComputeDevice::default_max_running`].
    pub max_running: Option<usize>,
    /// Most rows (tokens) in one step; default [`ComputeDevice::default_token_budget`].
    pub token_budget: Option<usize>,
    /// Longest gap between two tokens of a request that prefill may cause, or three decode steps if
    /// those are longer: prefill chunks beside a decode are cut to it, to 16 tokens at least. Zero
    /// for no bound; default [`ComputeDevice::default_max_gap`].
    pub max_gap: Option<Duration>,
    /// KV blocks of 16 tokens; default: every running sequence at its longest, and half as much
    /// again for paused ones, within half of the memory that is available beside the weights (on a
    /// GPU: all that is left). On the CPU a block takes memory when it is first used.
    pub kv_blocks: Option<usize>,
    /// Type of keys and values; default: f32 on the CPU, where f16 and bf16 take half the memory,
    /// bf16 on a GPU, which has no other.
    pub kv_dtype: Option<Dtype>,
    /// False, the default: requests that begin with the same tokens share their KV blocks, and
    /// those of ended requests are kept for later ones.
    pub no_prefix_cache: bool,
    /// Use of speculation; none by a simulated clock. The KV of a draft model, which the CPU
    /// backend alone has, counts in the default of [`EngineConfig::kv_blocks`].
    pub speculate: Speculate,
    /// The hasher of blocks, for tests.
    #[cfg(test)]
    pub(super) hasher: Option<BlockHasher>,
    /// Bounds on the requests in the engine at once, and treatment of one beyond them.
    pub queue: QueueConfig,
    /// The engine's clock; default [`super::WallClock`].
    pub clock: Option<Arc<dyn Clock>>,
    /// Receives the phases of each step.
    pub observer: Option<Box<dyn StepObserver>>,
    /// Receives the blocks that requests find in the prefix cache.
    pub block_sink: Option<Box<dyn BlockSink>>,
    /// Receives the decision log.
    pub log: Option<Box<dyn LogSink>>,
    /// The counters; those of an earlier engine of the same model go on.
    pub counters: Arc<Counters>,
    /// Progress callback for the start of a device.
    pub progress: Option<ProgressReporter>,
    /// Receives a line for each thing that a device goes on without.
    pub warn: Option<WarningReporter>,
}

impl EngineConfig {
    /// Sequences in one forward pass.
    pub(super) fn num_running(&self) -> usize {
        self.max_running.unwrap_or_else(|| self.device.default_max_running())
    }

    /// Rows of one forward pass.
    pub(super) fn max_rows(&self) -> usize {
        self.token_budget.unwrap_or_else(|| self.device.default_token_budget())
    }

    /// Bound on the gap that prefill causes.
    pub(super) fn gap(&self) -> Duration {
        self.max_gap.unwrap_or_else(|| self.device.default_max_gap())
    }

    /// Checks the settings against each other and against `model`.
    pub(super) fn check(&self, model: &Model) -> Result<(), BuildError> {
        self.check_sizes()?;
        self.check_policy()?;
        self.check_probe(model)?;
        self.check_draft(model)
    }

    fn check_sizes(&self) -> Result<(), BuildError> {
        let (max_running, rows) = (self.num_running(), self.max_rows());
        if max_running == 0 {
            return refuse("max_running is 0: at least one sequence must run");
        }
        let max_requests = self.queue.max_requests;
        if max_requests < max_running {
            return refuse(format!(
                "max_requests is {max_requests}, max_running {max_running}: every running sequence \
                 is a request, so raise max_requests"
            ));
        }
        if rows < max_running {
            return refuse(format!(
                "token_budget is {rows}, max_running {max_running}: every running sequence needs one \
                 row, so raise token_budget"
            ));
        }
        Ok(())
    }

    /// Checks that the policy has what it ranks by.
    fn check_policy(&self) -> Result<(), BuildError> {
        let needs_probe = self.predictor.as_ref().is_some_and(|predictor| predictor.needs_probe());
        if needs_probe && self.probe.is_none() && !self.replays {
            return refuse(
                "the length predictor is the probe on the prompt, and there is no probe: give one \
                 with --probe FILE, or choose another --length-predictor",
            );
        }
        self.provided().check(self.policy).or_else(refuse)
    }

    /// Probe, predictor and recorded predictions that the engine's policies can use.
    pub(super) fn provided(&self) -> Provided {
        let EngineConfig { probe, predictor, replays, .. } = self;
        Provided { probe: probe.is_some(), predictor: predictor.is_some(), replays: *replays }
    }

    /// Checks that the draft model has the vocabulary of `model`.
    fn check_draft(&self, model: &Model) -> Result<(), BuildError> {
        if self.speculate.draft().is_some_and(|draft| draft.config.delta_net.is_some()) {
            return refuse(
                "the draft model has gated delta nets, whose state a rejected token would change: \
                 give a model without, or --speculate ngram",
            );
        }
        let sizes = self.speculate.draft().map(|draft| draft.config.vocab_size);
        match (sizes, model.config.vocab_size) {
            (Some(draft), own) if draft != own => refuse(format!(
                "the vocabulary of the draft model has {draft} tokens, the model's {own}: give a \
                 smaller model of the same family"
            )),
            _ => Ok(()),
        }
    }

    /// Checks that the probe fits `model`.
    fn check_probe(&self, model: &Model) -> Result<(), BuildError> {
        let fits = self.probe.as_ref().map(|probe| probe_fits(probe, &model.config));
        fits.unwrap_or(Ok(())).or_else(refuse)
    }
}

/// Checks that `probe` reads a layer of a model of `config`; the error says why it does not.
pub fn probe_fits(probe: &Probe, config: &ModelConfig) -> Result<(), String> {
    let (width, layers) = (config.hidden_size, config.num_layers);
    let model =
        probe.model.as_ref().map_or("another model".into(), |name| format!("model {name:?}"));
    if probe.head.d() != width * probe.layers.count() {
        return Err(format!(
            "the probe reads activations of width {} from layer {}, the model's are {width} wide: \
             it was trained for {model}",
            probe.head.d(),
            probe.layers,
        ));
    }
    if probe.layers.last() >= layers {
        return Err(format!(
            "the probe taps layer {}, the model has layers 0..={}: it was trained for {model}",
            probe.layers,
            layers - 1
        ));
    }
    Ok(())
}

//! Settings of an engine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use trail_probe::{LengthPredictor, Probe};
use trail_scheduler::policies::{Needs, PolicyKind};
use trail_scheduler::{LogSink, Preemption, SchedulerConfig};

use super::admission::WhenFull;
use super::clock::Clock;
use super::device::{ComputeDevice, CudaSettings};
use super::observer::StepObserver;
use crate::backend::Progress;
use crate::cpu::{Compute, Isa};
use crate::model::{Dtype, Model, ModelConfig};

/// Default of [`EngineBuilder::max_requests`].
pub const DEFAULT_MAX_REQUESTS: usize = 4096;

/// Default of [`EngineBuilder::max_queue_bytes`]: 512 MiB.
pub const DEFAULT_MAX_QUEUE_BYTES: u64 = 512 << 20;

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
pub(super) type Reporter = Box<dyn FnMut(Progress)>;

/// Settings of an engine. Every number has a default that suits the model.
pub struct EngineBuilder {
    pub(super) model: Option<Arc<Model>>,
    pub(super) probe: Option<Probe>,
    pub(super) predictor: Option<Arc<dyn LengthPredictor>>,
    pub(super) policy: PolicyKind,
    pub(super) when_full: WhenFull,
    pub(super) replays: bool,
    pub(super) clock: Option<Arc<dyn Clock>>,
    pub(super) observer: Option<Box<dyn StepObserver>>,
    pub(super) log: Option<Box<dyn LogSink>>,
    pub(super) scheduler: SchedulerConfig,
    pub(super) preemption: Preemption,
    pub(super) cuda: CudaSettings,
    pub(super) progress: Option<Reporter>,
    pub(super) device: ComputeDevice,
    pub(super) max_running: Option<usize>,
    pub(super) max_requests: usize,
    pub(super) max_queue_bytes: u64,
    pub(super) token_budget: Option<usize>,
    pub(super) max_gap: Option<Duration>,
    pub(super) kv_blocks: Option<usize>,
    pub(super) threads: Option<usize>,
    pub(super) pin: bool,
    pub(super) isa: Isa,
    pub(super) compute: Compute,
    pub(super) repack: bool,
    pub(super) kv_dtype: Option<Dtype>,
}

impl Default for EngineBuilder {
    fn default() -> Self {
        EngineBuilder {
            model: None,
            probe: None,
            predictor: None,
            policy: PolicyKind::Fcfs,
            when_full: WhenFull::default(),
            replays: false,
            clock: None,
            observer: None,
            log: None,
            scheduler: SchedulerConfig::default(),
            preemption: Preemption::Recompute,
            cuda: CudaSettings::default(),
            progress: None,
            device: ComputeDevice::Cpu,
            max_running: None,
            max_requests: DEFAULT_MAX_REQUESTS,
            max_queue_bytes: DEFAULT_MAX_QUEUE_BYTES,
            token_budget: None,
            max_gap: None,
            kv_blocks: None,
            threads: None,
            pin: false,
            isa: Isa::Auto,
            compute: Compute::default(),
            repack: false,
            kv_dtype: None,
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
    pub fn predictor(mut self, predictor: Option<Arc<dyn LengthPredictor>>) -> Self {
        self.predictor = predictor;
        self
    }

    /// The policy; default `fcfs`.
    pub fn policy(mut self, policy: PolicyKind) -> Self {
        self.policy = policy;
        self
    }

    /// True if requests carry their predictions ([`super::Request::predictions`]), so that a policy
    /// needs no probe and no predictor; default no. For experiments.
    pub fn replays(mut self, replays: bool) -> Self {
        self.replays = replays;
        self
    }

    /// The engine's clock; default [`super::WallClock`].
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Receives the phases of each step; default none.
    pub fn observer(mut self, observer: impl StepObserver + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Receives the decision log; default none.
    pub fn log(mut self, sink: impl LogSink + 'static) -> Self {
        self.log = Some(Box::new(sink));
        self
    }

    /// Bounds of the scheduler: `watermark`, `max_passed_over`, `max_blocked`, `max_lookahead`,
    /// `reclaim_steps`, `reserve`, `refresh_tokens`; default [`SchedulerConfig::default`]. The
    /// sizes and costs in `bounds` are ignored: they follow from the other settings and from the
    /// backend.
    pub fn scheduler_bounds(mut self, bounds: SchedulerConfig) -> Self {
        self.scheduler = bounds;
        self
    }

    /// The device that computes; default the CPU.
    pub fn device(mut self, device: ComputeDevice) -> Self {
        self.device = device;
        self
    }

    /// Treatment of a request whose KV blocks are taken; default: its KV is recomputed.
    /// [`Preemption::Swap`] needs a device with memory of its own.
    pub fn preemption(mut self, preemption: Preemption) -> Self {
        self.preemption = preemption;
        self
    }

    /// Settings of a CUDA device.
    pub fn cuda(mut self, settings: CudaSettings) -> Self {
        self.cuda = settings;
        self
    }

    /// Progress callback for the start of a device.
    pub fn progress(mut self, report: impl FnMut(Progress) + 'static) -> Self {
        self.progress = Some(Box::new(report));
        self
    }

    /// Most sequences in one step; default [`ComputeDevice::default_max_running`].
    pub fn max_running(mut self, max_running: usize) -> Self {
        self.max_running = Some(max_running);
        self
    }

    /// Requests in the engine at once, running and waiting; default [`DEFAULT_MAX_REQUESTS`].
    pub fn max_requests(mut self, max_requests: usize) -> Self {
        self.max_requests = max_requests;
        self
    }

    /// Treatment of a request beyond [`EngineBuilder::max_requests`]; default
    /// [`WhenFull::Reject`].
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Bytes of prompts and other parameters of the requests in the engine at once, running and
    /// waiting; default [`DEFAULT_MAX_QUEUE_BYTES`]. Memory of answers is not counted: a request
    /// reserves it when it first runs.
    pub fn max_queue_bytes(mut self, bytes: u64) -> Self {
        self.max_queue_bytes = bytes;
        self
    }

    /// Most rows (tokens) in one step; default [`ComputeDevice::default_token_budget`].
    pub fn token_budget(mut self, rows: usize) -> Self {
        self.token_budget = Some(rows);
        self
    }

    /// Longest gap between two tokens of a request that prefill may cause, or three decode steps if
    /// those are longer: prefill chunks beside a decode are cut to it, to 16 tokens at least. Zero
    /// for no bound; default [`ComputeDevice::default_max_gap`].
    pub fn max_gap(mut self, gap: Duration) -> Self {
        self.max_gap = Some(gap);
        self
    }

    /// KV blocks of 16 tokens; default: every running sequence at its longest, and half as much
    /// again for paused ones, within half of the memory that is available beside the weights (on a
    /// GPU: all that is left). On the CPU a block takes memory when it is first used.
    pub fn kv_blocks(mut self, blocks: Option<usize>) -> Self {
        self.kv_blocks = blocks;
        self
    }

    /// Threads of the forward pass, the engine's own included; default: all cores.
    pub fn threads(mut self, threads: Option<usize>) -> Self {
        self.threads = threads;
        self
    }

    /// Pins each thread of the CPU's forward pass to a CPU of its own: see
    /// [`placement`](crate::cpu::placement); default: no. Refused on a GPU.
    pub fn pin(mut self, pin: bool) -> Self {
        self.pin = pin;
        self
    }

    /// Instruction set of the CPU kernels; default: the best that is safe to choose.
    pub fn isa(mut self, isa: Isa) -> Self {
        self.isa = isa;
        self
    }

    /// Arithmetic of the CPU's products with quantized and bf16 weights; default [`Compute::Fast`].
    pub fn compute(mut self, compute: Compute) -> Self {
        self.compute = compute;
        self
    }

    /// Lets the CPU backend copy quantized weights into the order in which products read them:
    /// faster, for as much memory as they take in the file; default: no. Refused on a GPU, and with
    /// [`Compute::Exact`].
    pub fn repack(mut self, repack: bool) -> Self {
        self.repack = repack;
        self
    }

    /// Type of keys and values; default: f32 on the CPU, where f16 and bf16 take half the memory,
    /// bf16 on a GPU, which has no other.
    pub fn kv_dtype(mut self, dtype: Option<Dtype>) -> Self {
        self.kv_dtype = dtype;
        self
    }

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

    pub(super) fn check(&self) -> Result<(), BuildError> {
        let (max_running, rows) = (self.num_running(), self.max_rows());
        if max_running == 0 {
            return refuse("max_running is 0: at least one sequence must run");
        }
        if self.max_requests < max_running {
            return refuse(format!(
                "max_requests is {}, max_running {max_running}: every running sequence is a request, \
                 so raise max_requests",
                self.max_requests
            ));
        }
        if rows < max_running {
            return refuse(format!(
                "token_budget is {rows}, max_running {max_running}: every running sequence needs one \
                 row, so raise token_budget"
            ));
        }
        let name = self.policy.name();
        let needs_probe = self.predictor.as_ref().is_some_and(|predictor| predictor.needs_probe());
        match self.policy.needs() {
            _ if self.replays => Ok(()),
            _ if needs_probe && self.probe.is_none() => refuse(
                "the length predictor is the probe on the prompt, and there is no probe: give one \
                 with --probe FILE, or choose another --length-predictor",
            ),
            Needs::Probe if self.probe.is_none() => refuse(format!(
                "policy {name} needs a probe trained for this model, and only the bundled model comes \
                 with one: give it with --probe FILE, put it beside the model as probe.safetensors, \
                 or choose --policy fcfs",
            )),
            Needs::Predictor if self.predictor.is_none() => refuse(format!(
                "policy {name} needs a prompt-only predictor: choose one with --length-predictor, \
                 put predictor.safetensors beside the model, or choose --policy fcfs",
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn check_probe(&self, model: &Model) -> Result<(), BuildError> {
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

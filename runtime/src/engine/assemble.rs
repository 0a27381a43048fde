//! Construction of an engine from its configuration.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use trail_scheduler::policies::Needs;
use trail_scheduler::{LogHeader, LoggedScheduler, Preemption, SchedulerConfig, StepCost};

use super::admission::{Admission, QueueConfig, WhenFull};
use super::block_hashes::BlockHasher;
use super::block_sink::BlockReporter;
use super::build_backend::{BuiltBackend, MakeBackend, ProbeParts};
use super::clock::WallClock;
use super::config::{BuildError, EngineConfig};
use super::constraint::MaskWorkers;
use super::device::ComputeDevice;
use super::in_flight::InFlightStep;
use super::length_probe::LengthProbe;
use super::lifecycle::{Lifecycle, LifecycleSizes};
use super::live_board::{LiveBoard, LiveReporter};
use super::model_pace::prefill_pace;
use super::observer::Observing;
use super::policy_switch::PolicySwitch;
use super::pool_contents::PoolContents;
use super::prediction_watch::PredictionWatch;
use super::predictions::Predictions;
use super::queue_permit::QueueLimits;
use super::recurrent::RecurrentStates;
use super::speculation::{Speculation, StepSizes};
use super::step_loop::StepLoop;
use super::step_time::StepTimeEstimator;
use super::stepped::SteppedEngine;
use super::submit_queue::{EngineInbox, SubmitQueue};
use super::swaps::Swaps;
use super::{Clock, Engine};
use crate::backend::{BLOCK_TOKENS, Batch, MAX_DRAFT_TOKENS, MAX_STATE_DRAFTS, Transfers};
use crate::model::{Model, ModelConfig};

/// Most memory of KV blocks without a holder that the CPU backend keeps for requests that begin
/// alike.
const CACHED_BYTES: usize = 1 << 30;

impl Engine {
    /// Allocates everything and starts the engine's thread.
    pub fn new(model: Arc<Model>, config: EngineConfig) -> Result<Engine, BuildError> {
        Engine::with_backend(model, config, EngineConfig::device_backend)
    }

    /// As [`Engine::new`], over the backend that `make` returns. For tests and measurements that
    /// wrap a backend.
    pub fn with_backend(
        model: Arc<Model>,
        config: EngineConfig,
        make: impl MakeBackend,
    ) -> Result<Engine, BuildError> {
        let (mut engine, step_loop) = config.assemble(model, make)?;
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
}

impl SteppedEngine {
    /// Allocates everything; the caller steps, and no thread is started.
    pub fn new(model: Arc<Model>, config: EngineConfig) -> Result<SteppedEngine, BuildError> {
        SteppedEngine::with_backend(model, config, EngineConfig::device_backend)
    }

    /// As [`SteppedEngine::new`], over the backend that `make` returns.
    pub fn with_backend(
        model: Arc<Model>,
        config: EngineConfig,
        make: impl MakeBackend,
    ) -> Result<SteppedEngine, BuildError> {
        let (engine, step_loop) = config.assemble(model, make)?;
        Ok(SteppedEngine { engine, step_loop })
    }
}

impl EngineConfig {
    fn length_probe(&mut self, segments: usize) -> Result<Option<ProbeParts>, BuildError> {
        let probe = self.probe.take().map(|probe| probe.with_isa(self.cpu.isa)).transpose();
        Ok(probe.map_err(BuildError::Refused)?.map(|probe| {
            let weights = probe.weights.clone();
            // A segment can tap two rows: the mean over the prompt, and the last row of a
            // recompute.
            let rows = 2 * segments + MAX_DRAFT_TOKENS;
            let probe = Arc::new(LengthProbe::new(probe, self.queue.max_requests, rows));
            ProbeParts { probe, weights }
        }))
    }

    fn assemble(
        mut self,
        model: Arc<Model>,
        make: impl MakeBackend,
    ) -> Result<(Engine, StepLoop), BuildError> {
        self.check(&model)?;
        let (max_requests, shed_above) = self.max_requests();
        let segments = self.num_running();
        let policy = PolicySwitch::new(self.policy, self.provided());
        let probe = self.length_probe(segments)?;
        let mut built = make(&mut self, &model, probe.clone())?;
        let clock = self.clock.take().unwrap_or_else(|| Arc::new(WallClock::new()));
        let cost = clock.simulated().map(|clock| *clock.cost());
        let mut scheduler = self.scheduler(&model, &mut built, &*clock)?;
        let hasher = self.hasher(scheduler.config());
        let probe = probe.map(|parts| parts.probe);
        self.keep_sums(probe.as_deref().filter(|_| hasher.is_some()), built.kv_blocks);
        let admission = Admission::new(*scheduler.config(), &model, &*built.backend);
        let mask_workers = MaskWorkers::new(max_requests);
        let (live_board, max_gap) = (LiveBoard::new(max_requests), self.gap());
        let limits = QueueLimits { requests: max_requests as u32, bytes: self.queue.max_bytes };
        let (queue, inbox) = SubmitQueue::new(limits);
        let sizes = LifecycleSizes { max_requests, shed_above, segments };
        let shared = (hasher.clone(), mask_workers.clone());
        let step_loop = StepLoop {
            block_contents: hasher.is_some().then(|| PoolContents::new(scheduler.config())),
            block_reporter: self.block_reporter(hasher.as_ref(), &mut scheduler),
            scheduler,
            lifecycle: self.lifecycle(sizes, &model, shared, (queue.clone(), inbox)),
            predictions: Predictions::new(probe, max_requests, segments, self.counters.clone()),
            swaps: Swaps::new(max_requests),
            batch: self.batch(&model.config),
            recurrent: RecurrentStates::new(&built, max_requests, segments),
            speculation: self.speculation(&mut built, cost),
            sampled: Vec::with_capacity(segments + MAX_DRAFT_TOKENS),
            in_flight: [(); 2].map(|()| InFlightStep::with_capacity(segments)),
            is_in_flight: false,
            is_transferring: false,
            step_times: StepTimeEstimator::default(),
            prefill_pace: prefill_pace(max_gap, &model, cost),
            clock: clock.clone(),
            observer: Observing(self.observer.take()),
            turns: self.cpu_share.map(|share| share.turns.join(share.weight)),
            counters: self.counters.clone(),
            live: LiveReporter::new(live_board.clone(), self.policy),
            policy: policy.clone(),
            step: 0,
            backend: built.backend,
        };
        let engine = Engine {
            max_gap,
            model,
            predictor: self.predictor,
            policy: policy.clone(),
            device: built.device,
            max_running: segments,
            kv_blocks: built.kv_blocks,
            admission,
            hasher,
            queue,
            mask_workers,
            counters: self.counters,
            live_board,
            clock,
            next_id: AtomicU64::new(0),
            thread: None,
        };
        Ok((engine, step_loop))
    }

    fn lifecycle(
        &self,
        sizes: LifecycleSizes,
        model: &Model,
        shared: (Option<BlockHasher>, Arc<MaskWorkers>),
        queue: (Arc<SubmitQueue>, EngineInbox),
    ) -> Lifecycle {
        let watch = (self.policy.needs() == Needs::Probe).then(PredictionWatch::new);
        let eos_tokens = model.config.eos_tokens.clone();
        Lifecycle::new(sizes, eos_tokens, watch, shared, queue, self.counters.clone())
    }

    /// Room for the batch of each step.
    fn batch(&self, model: &ModelConfig) -> Batch {
        let blocks = self.num_running() * model.max_context.div_ceil(BLOCK_TOKENS);
        Batch::with_capacity(self.max_rows(), self.num_running(), blocks)
    }

    /// Keeps the sums of shared blocks for the probe; a device has them in its blocks.
    fn keep_sums(&self, probe: Option<&LengthProbe>, kv_blocks: usize) {
        if let (Some(probe), ComputeDevice::Cpu) = (probe, self.device) {
            probe.keep_blocks(kv_blocks);
        }
    }

    /// Sets the requests that the queue takes. Returns them, and the number above which some are
    /// shed, if any.
    fn max_requests(&mut self) -> (usize, Option<usize>) {
        let QueueConfig { max_requests, when_full, .. } = self.queue;
        self.queue.max_requests = when_full.capacity(max_requests);
        let shed_above = (when_full == WhenFull::Shed).then_some(max_requests);
        (self.queue.max_requests, shed_above)
    }

    /// `None` where no KV block is shared.
    fn hasher(&mut self, scheduler: &SchedulerConfig) -> Option<BlockHasher> {
        #[cfg(test)]
        if let Some(hasher) = self.hasher.take() {
            return Some(hasher);
        }
        (scheduler.cached_blocks > 0).then(BlockHasher::new)
    }

    /// None without a sink, and where no KV block is shared. None for a hybrid: its requests begin
    /// at blocks with a snapshot of the recurrent state alone, which a sink does not hear of.
    fn block_reporter(
        &mut self,
        hasher: Option<&BlockHasher>,
        scheduler: &mut LoggedScheduler,
    ) -> Option<BlockReporter> {
        let sink = self.block_sink.take().filter(|_| !scheduler.config().marked_blocks);
        sink.zip(hasher).map(|(sink, hasher)| BlockReporter::new(sink, hasher, scheduler))
    }

    /// None where the backend takes no draft tokens, and where steps have simulated times.
    fn speculation(
        &self,
        built: &mut BuiltBackend,
        simulated: Option<StepCost>,
    ) -> Option<Speculation> {
        if !built.backend.takes_drafts() || simulated.is_some() {
            return None;
        }
        let sizes = StepSizes {
            max_rows: self.max_rows(),
            max_running: self.num_running(),
            kv_blocks: built.kv_blocks,
            max_gap: self.gap(),
            max_drafts: match built.backend.num_states() {
                0 => MAX_DRAFT_TOKENS,
                _ => MAX_STATE_DRAFTS,
            },
        };
        Speculation::new(&self.speculate, sizes, built.backend.draft_model())
    }

    /// Blocks without a holder that are kept for their content: on a device, whose pool is
    /// allocated, all.
    fn cached_blocks(&self, model: &Model, built: &BuiltBackend) -> usize {
        let block_bytes = self.kv_block_bytes(&model.config);
        match self.device {
            _ if self.no_prefix_cache => 0,
            ComputeDevice::Cpu => built.kv_blocks.min(CACHED_BYTES / block_bytes).max(1),
            ComputeDevice::Cuda { .. } => built.kv_blocks,
        }
    }

    fn scheduler(
        &mut self,
        model: &Model,
        built: &mut BuiltBackend,
        clock: &dyn Clock,
    ) -> Result<LoggedScheduler, BuildError> {
        let transfers = built.backend.transfers();
        if self.scheduler.preemption == Preemption::Swap && transfers.is_none() {
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
            host_blocks,
            block_s,
            token_s,
            max_running: self.num_running() as u32,
            max_requests: self.queue.max_requests as u32,
            token_budget: self.max_rows() as u32,
            num_blocks: built.kv_blocks as u32,
            cached_blocks: self.cached_blocks(model, built) as u32,
            marked_blocks: model.config.delta_net.is_some(),
            max_context: model.config.max_context as u32,
            ..self.scheduler
        };
        let max_gap_s = self.gap().as_secs_f64();
        let header = LogHeader { config, policy: self.policy, max_gap_s };
        LoggedScheduler::new(&header, self.log.take())
            .map_err(|error| BuildError::Refused(error.to_string()))
    }
}

//! The engine: takes requests, schedules, runs the model, samples, sends tokens.
//!
//! One thread owns everything that a step touches (`step_loop`); callers reach it through lock-free
//! queues (`submit_queue`) and hear back through a channel per request (`event_channel`). No async
//! runtime: it links into any program. [`SteppedEngine`] is the same without a thread.

mod active;
mod admission;
mod assemble;
mod block_hashes;
mod block_sink;
mod build_backend;
mod clock;
mod config;
mod constraint;
mod device;
mod event;
mod event_channel;
// Its `pub` items are the interface of crate trail-loom, which compiles the same file.
#[allow(unreachable_pub)]
mod event_log;
mod handle;
mod in_flight;
mod length_probe;
mod lifecycle;
mod live_board;
mod model_pace;
mod observer;
mod plan_reports;
mod policy_switch;
mod pool_contents;
mod prediction_watch;
mod predictions;
mod queue_permit;
mod rank_options;
mod recurrent;
mod request;
mod request_status;
mod serve;
mod speculation;
mod stats;
mod step_cost_file;
mod step_loop;
mod step_time;
mod stepped;
mod submit_queue;
mod swaps;
mod task_claims;
#[cfg(test)]
mod tests;
mod turns;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use trail_probe::{LengthPredictor, Prompt};

pub use crate::backend::{Fault, NonFiniteLogits, SamplingParams};
pub use admission::{
    DEFAULT_MAX_QUEUE_BYTES, DEFAULT_MAX_REQUESTS, QueueConfig, SubmitError, WhenFull,
};
pub use block_sink::{BlockSink, StoredBlock};
pub use build_backend::{BuiltBackend, MakeBackend, ProbeParts};
pub use clock::{Clock, StepClock, WallClock};
pub use config::{
    BuildError, CpuShare, EngineConfig, ProgressReporter, WarningReporter, probe_fits,
};
pub use constraint::{Constraint, ConstraintFault, Matcher};
pub use device::{ComputeDevice, CpuSettings, CudaSettings, ProbeDevice};
pub use event::{Event, FinishReason};
pub use handle::RequestHandle;
pub use length_probe::{LengthProbe, Smoothed};
pub use live_board::{LiveBoard, LiveSnapshot};
pub use observer::{CollectedStep, LoopPhase, StepObserver};
pub use prediction_watch::PredictionWindow;
pub use rank_options::with_rank_options;
pub use request::{Notify, Request};
pub use speculation::Speculate;
pub use stats::{Counters, SLACK_BOUNDS_US, STEP_TOKENS_BOUNDS, Stats};
pub use step_cost_file::load_step_cost;
pub use step_loop::StepOutcome;
pub use stepped::SteppedEngine;
pub use trail_scheduler::policies::{DEFAULT_C, InitialLength, Needs, PolicyKind};
pub use trail_scheduler::{BlockHash, ExpertCost, SchedulerConfig, StepCost, StepWork};
pub use turns::Turns;

use crate::model::Model;
use active::ActiveRequest;
use admission::Admission;
use block_hashes::{BlockHasher, SequenceHashes};
use constraint::{ConstrainedAnswer, MaskWorkers};
use event_channel::event_channel;
use policy_switch::PolicySwitch;
use queue_permit::QueuePermit;
use request_status::RequestStatus;
use submit_queue::SubmitQueue;

/// A running engine. Dropping it ends every request with [`FinishReason::Shutdown`].
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::{path::Path, sync::Arc};
/// use trail_runtime::engine::{Engine, EngineConfig, Event, Request};
/// use trail_runtime::model::Model;
/// let model = Arc::new(Model::load(Path::new("assets/demo"))?);
/// let engine = Engine::new(model, EngineConfig::default())?;
/// for event in engine.submit(Request::new(vec![1, 2, 3], 16))? {
///     if let Event::Token { id, .. } = event {
///         println!("{id}");
///     }
/// }
/// # Ok(()) }
/// ```
pub struct Engine {
    model: Arc<Model>,
    predictor: Option<Arc<dyn LengthPredictor>>,
    policy: Arc<PolicySwitch>,
    device: String,
    max_running: usize,
    kv_blocks: usize,
    max_gap: Duration,
    admission: Admission,
    /// `None` where no KV block is shared.
    hasher: Option<BlockHasher>,
    queue: Arc<SubmitQueue>,
    mask_workers: Arc<MaskWorkers>,
    counters: Arc<Counters>,
    live_board: Arc<LiveBoard>,
    clock: Arc<dyn Clock>,
    next_id: AtomicU64,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Submits a request. Refused at once: requests that can never be served, and requests that
    /// find the engine full or broken down.
    pub fn submit(&self, mut request: Request) -> Result<RequestHandle, SubmitError> {
        if let Some(fault) = self.fault() {
            return Err(SubmitError::Failed(fault.clone()));
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut new = request.to_scheduler(id, self.clock.now_s());
        self.admission.check(&request, &new, &self.model.config)?;
        let bytes = ActiveRequest::bytes(&request) as u64;
        let permit = QueuePermit::acquire(self.queue.usage(), bytes)?;
        let constrained = self.constrained(&request)?;
        let predict = || {
            let prompt = Prompt { ids: request.own_prompt(), hint: request.length_hint };
            let prediction = self.predictor.as_ref()?.predict(&prompt)?;
            Some(match self.policy().initial_length() {
                InitialLength::Likeliest => prediction.likeliest(),
                InitialLength::Mean => prediction.mean(),
                InitialLength::CountdownOptimal => prediction.countdown_optimal(),
            })
        };
        let initial = request.initial_prediction.or_else(predict);
        // An answer is cut at max_tokens, whatever the predictor expects.
        new.initial_prediction = initial.map(|tokens| tokens.clamp(1.0, new.max_tokens as f32));
        let status = Arc::new(RequestStatus::new());
        let (sender, events) = event_channel(status.clone(), request.notify.take());
        let initial_prediction = new.initial_prediction;
        let hasher = self.hasher.as_ref().filter(|_| request.shares_blocks());
        let hashes = hasher.map(|hasher| {
            let adapter = request.adapter.as_ref().map(|adapter| adapter.id());
            let root = hasher.root(&request.cache_salt, adapter);
            SequenceHashes::new(hasher, root, &request.prompt)
        });
        request.cache_salt = Vec::new();
        // A row of an unknown token cannot be computed.
        let is_known = |id: &&u32| (**id as usize) < self.admission.vocab_size;
        let known = request.expected.iter().take_while(is_known).count();
        request.expected.truncate(known);
        let shared = (constrained.clone(), status.clone());
        let active = ActiveRequest::new(request, new, hashes, shared, permit, sender);
        self.queue.submit(Box::new(active))?;
        let (events, queue) = (Mutex::new(events), self.queue.clone());
        Ok(RequestHandle { id, initial_prediction, events, status, queue, constrained })
    }

    /// The answer to `request` under its constraint, if any.
    fn constrained(
        &self,
        request: &Request,
    ) -> Result<Option<Arc<ConstrainedAnswer>>, SubmitError> {
        let Some(constraint) = &request.constraint else { return Ok(None) };
        let fault = |why: String| SubmitError::Constraint(why);
        self.mask_workers.start().map_err(|error| fault(error.to_string()))?;
        let mut ends = self.model.config.eos_tokens.clone();
        ends.extend(&request.stop_tokens);
        let generated = &request.prompt[request.own_prompt().len()..];
        let answer = ConstrainedAnswer::new(&**constraint, &ends, generated);
        answer.map(|answer| Some(Arc::new(answer))).map_err(|why| fault(why.to_string()))
    }

    /// True if [`Engine::submit`] takes milliseconds, for a prediction.
    pub fn predicts_slowly(&self) -> bool {
        self.predictor.as_ref().is_some_and(|predictor| predictor.is_slow())
    }

    /// The predictor of first lengths, if any.
    pub fn predictor(&self) -> Option<&dyn LengthPredictor> {
        self.predictor.as_deref()
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// True if requests may have adapters.
    pub fn takes_adapters(&self) -> bool {
        self.admission.takes_adapters
    }

    /// The scheduling policy.
    pub fn policy(&self) -> PolicyKind {
        self.policy.kind()
    }

    /// The reason for which the engine cannot rank by `policy`: it lacks a probe, a predictor of
    /// first lengths, or true lengths.
    pub fn check_policy(&self, policy: PolicyKind) -> Result<(), String> {
        self.policy.check(policy)
    }

    /// Changes the policy from the next step on; it changes no answer. Refused as by
    /// [`Engine::check_policy`].
    pub fn set_policy(&self, policy: PolicyKind) -> Result<(), String> {
        self.policy.set(policy)
    }

    /// Description of the device that runs the model.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Sizes and bounds of the scheduler.
    pub fn scheduler_config(&self) -> &SchedulerConfig {
        &self.admission.scheduler
    }

    /// Most sequences in one step.
    pub fn max_running(&self) -> usize {
        self.max_running
    }

    /// KV blocks of 16 tokens in the cache.
    pub fn kv_blocks(&self) -> usize {
        self.kv_blocks
    }

    /// Longest gap between two tokens that prefill may cause; `None` without a bound.
    pub fn max_gap(&self) -> Option<Duration> {
        Some(self.max_gap).filter(|gap| !gap.is_zero())
    }

    /// A snapshot of the counters.
    pub fn stats(&self) -> Stats {
        self.counters.snapshot(self.kv_blocks as u64)
    }

    /// The counters, for a later engine of the same model.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The board on which the engine leaves snapshots of its requests.
    pub fn live_board(&self) -> &Arc<LiveBoard> {
        &self.live_board
    }

    /// The cause of a breakdown, after which every request ends with [`FinishReason::Failed`].
    pub fn fault(&self) -> Option<&Fault> {
        self.queue.fault()
    }

    /// The engine's clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Requests submitted and not finished.
    pub fn live(&self) -> u32 {
        self.queue.live()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.queue.stop();
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the panic hook; the handles say Shutdown.
            let _ = thread.join();
        }
    }
}

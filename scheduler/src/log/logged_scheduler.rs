//! A scheduler whose calls are logged.

use std::ops::Deref;

use super::event::LogEvent;
use super::header::LogHeader;
use crate::blocks::{BlockChange, BlockHash, BlockId};
use crate::config::ConfigError;
use crate::plan::Plan;
use crate::policies::PolicyKind;
use crate::prefill_limit::PrefillLimit;
use crate::refusal::Refusal;
use crate::request::{NewRequest, Phase, Prediction, RequestIdx};
use crate::scheduler::Scheduler;
use crate::swap::{Finished, Transferred};

/// Receives the events of a log, on the thread that steps the scheduler: an implementation hands
/// them on and neither blocks nor allocates.
pub trait LogSink: Send {
    /// The log begins.
    fn begin(&mut self, header: &LogHeader);

    /// The next event.
    fn event(&mut self, event: &LogEvent);
}

/// A [`Scheduler`] that passes its calls on to a [`LogSink`], if it has one. Without a sink a call
/// costs one branch more.
///
/// Request ids must be unique in a log.
pub struct LoggedScheduler {
    scheduler: Scheduler,
    sink: Option<Box<dyn LogSink>>,
    /// The limit of the last plan.
    prefill_limit: Option<PrefillLimit>,
}

impl LoggedScheduler {
    /// A scheduler with the settings of `header`, which is logged first.
    pub fn new(
        header: &LogHeader,
        mut sink: Option<Box<dyn LogSink>>,
    ) -> Result<LoggedScheduler, ConfigError> {
        let scheduler = Scheduler::new(header.config, header.policy.build())?;
        if let Some(sink) = &mut sink {
            sink.begin(header);
        }
        Ok(LoggedScheduler { scheduler, sink, prefill_limit: None })
    }

    fn log(&mut self, event: LogEvent) {
        if let Some(sink) = &mut self.sink {
            sink.event(&event);
        }
    }

    /// [`Scheduler::submit`]; a refused request is not logged.
    pub fn submit(&mut self, request: NewRequest) -> Result<RequestIdx, Refusal> {
        let idx = self.scheduler.submit(request)?;
        // A prediction that is not finite has no effect, and no form in JSON.
        let initial_prediction = request.initial_prediction.filter(|tokens| tokens.is_finite());
        self.log(LogEvent::Submit(NewRequest { initial_prediction, ..request }));
        Ok(idx)
    }

    /// [`Scheduler::push_block_hash`].
    pub fn push_block_hash(&mut self, idx: RequestIdx, hash: BlockHash) {
        if self.scheduler.config().cached_blocks > 0 {
            self.log(LogEvent::BlockHash { id: self.scheduler.state(idx).id, hash });
            self.scheduler.push_block_hash(idx, hash);
        }
    }

    /// [`Scheduler::forget_hashes`].
    pub fn forget_hashes(&mut self, idx: RequestIdx) {
        self.log(LogEvent::ForgetHashes { id: self.scheduler.state(idx).id });
        self.scheduler.forget_hashes(idx);
    }

    /// [`Scheduler::restart`].
    pub fn restart(&mut self, idx: RequestIdx) {
        self.log(LogEvent::Restart { id: self.scheduler.state(idx).id });
        self.scheduler.restart(idx);
    }

    /// [`Scheduler::set_resumable`].
    pub fn set_resumable(&mut self, block: BlockId, is_resumable: bool) {
        self.log(LogEvent::Resumable { block, is_resumable });
        self.scheduler.set_resumable(block, is_resumable);
    }

    /// [`Scheduler::record_block_changes`].
    pub fn record_block_changes(&mut self) {
        self.scheduler.record_block_changes();
    }

    /// [`Scheduler::take_block_changes`], which are no input of the scheduler.
    pub fn take_block_changes(&mut self) -> impl Iterator<Item = BlockChange> {
        self.scheduler.take_block_changes()
    }

    /// [`Scheduler::set_policy`].
    pub fn set_policy(&mut self, policy: PolicyKind) {
        self.log(LogEvent::Policy(policy));
        self.scheduler.set_policy(policy.build());
    }

    /// [`Scheduler::predict`]; a quantile that is not a number is taken to be the expectation.
    pub fn predict(&mut self, idx: RequestIdx, mut prediction: Prediction) {
        let Prediction { remaining, p10, p50, p90, .. } = &mut prediction;
        for quantile in [p10, p50, p90] {
            *quantile = if quantile.is_finite() { *quantile } else { *remaining };
        }
        if self.sink.is_some() {
            self.log_prediction(idx, &prediction);
        }
        self.scheduler.predict(idx, prediction);
    }

    fn log_prediction(&mut self, idx: RequestIdx, prediction: &Prediction) {
        let Prediction { remaining, p10, p50, p90, step, generation } = *prediction;
        let state = self.scheduler.state(idx);
        let live = !state.ended && state.phase != Phase::Free && state.generation == generation;
        let Some(late) = state.sampled_since(step).filter(|_| live && remaining.is_finite()) else {
            return;
        };
        let (id, age) = (state.id, state.generated - late);
        self.log(LogEvent::Predict { id, step, age, remaining, p10, p50, p90 });
    }

    /// [`Scheduler::limit_prefill`].
    pub fn limit_prefill(&mut self, limit: Option<PrefillLimit>) {
        if self.prefill_limit != limit {
            self.prefill_limit = limit;
            self.log(LogEvent::PrefillLimit(limit));
        }
        self.scheduler.limit_prefill(limit);
    }

    /// [`Scheduler::trust_predictions`].
    pub fn trust_predictions(&mut self, trusted: bool) {
        if self.scheduler.trusts_predictions() != trusted {
            self.log(LogEvent::TrustPredictions(trusted));
            self.scheduler.trust_predictions(trusted);
        }
    }

    /// [`Scheduler::plan`].
    pub fn plan(&mut self, step: u64, now_s: f64) -> &Plan {
        let plan = self.scheduler.plan(step, now_s);
        if let Some(sink) = &mut self.sink {
            let (rows, decisions) = (plan.rows.len() as u32, plan.decisions.len() as u32);
            let tokens = plan.tokens();
            sink.event(&LogEvent::Plan { step, now_s, rows, tokens, decisions });
            plan.decisions.iter().for_each(|&decision| sink.event(&LogEvent::Decision(decision)));
        }
        self.scheduler.last_plan()
    }

    /// [`Scheduler::advance`].
    pub fn advance(&mut self) {
        self.scheduler.advance();
        let step = self.scheduler.last_plan().step;
        self.log(LogEvent::Advance { step });
    }

    /// [`Scheduler::accept`].
    pub fn accept(&mut self, idx: RequestIdx, tokens: u32) {
        self.log(LogEvent::Accept { id: self.scheduler.state(idx).id, tokens });
        self.scheduler.accept(idx, tokens);
    }

    /// [`Scheduler::finish`].
    pub fn finish(&mut self, idx: RequestIdx) -> Finished {
        let state = self.scheduler.state(idx);
        if state.phase != Phase::Free && !state.ended {
            let (id, tokens) = (state.id, state.generated);
            self.log(LogEvent::Finish { id, tokens });
        }
        self.scheduler.finish(idx)
    }

    /// [`Scheduler::transferred`].
    pub fn transferred(&mut self, idx: RequestIdx) -> Transferred {
        let id = self.scheduler.state(idx).id;
        self.log(LogEvent::Transferred { id });
        self.scheduler.transferred(idx)
    }

    /// Logs that step `step` was complete `end_ns` after the clock's start, and took `elapsed_ns`.
    /// No input of the scheduler: simulations fit their step times to it.
    pub fn collected(&mut self, step: u64, end_ns: u64, elapsed_ns: u64) {
        let [end_s, duration_s] = [end_ns, elapsed_ns].map(|ns| ns as f64 * 1e-9);
        self.log(LogEvent::Collected { step, end_s, duration_s });
    }
}

impl Deref for LoggedScheduler {
    type Target = Scheduler;

    fn deref(&self) -> &Scheduler {
        &self.scheduler
    }
}

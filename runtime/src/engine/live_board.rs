//! The live requests as other threads see them: a snapshot on demand.
//!
//! A reader asks; the engine's thread copies at the end of its next step. It neither allocates nor
//! waits: where a reader holds the lock, it copies a step later.

use std::mem::swap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trail_scheduler::policies::PolicyKind;
use trail_scheduler::{Decision, LiveRequest, Plan, PrefillPace, Scheduler, StepLine, StepPace};

/// Decisions that are kept between two snapshots; later ones are lost.
const MAX_DECISIONS: usize = 1024;

/// The engine's requests after one of its steps.
#[derive(Debug, Default)]
pub struct LiveSnapshot {
    /// Number of the step.
    pub step: u64,
    /// Time on the engine's clock, seconds.
    pub now_s: f64,
    /// The requests that are admitted and not finished, in no order;
    /// [`LiveRequest::id`] is [`super::RequestHandle::id`].
    pub requests: Vec<LiveRequest>,
    /// Decisions since the snapshot before.
    pub decisions: Vec<Decision>,
    /// The policy that ranks them.
    pub policy: PolicyKind,
    /// KV blocks that requests hold.
    pub blocks_used: u32,
    /// Costs of the last steps.
    pub pace: StepPace,
    /// Seconds in the system after which a request precedes those ranked by value, if there is such
    /// a bound.
    pub overdue_after_s: Option<f64>,
}

/// Where the engine's thread leaves a snapshot for a reader.
#[derive(Debug)]
pub struct LiveBoard {
    max_requests: usize,
    is_asked: AtomicBool,
    /// And true if it was not taken yet.
    snapshot: Mutex<(LiveSnapshot, bool)>,
}

impl LiveBoard {
    pub(super) fn new(max_requests: usize) -> Arc<LiveBoard> {
        let snapshot = Mutex::new((LiveSnapshot::default(), false));
        Arc::new(LiveBoard { max_requests, is_asked: AtomicBool::new(false), snapshot })
    }

    /// Asks for a snapshot at the end of the next step, and makes room for it.
    pub fn ask(&self) {
        let mut guard = self.lock();
        let (LiveSnapshot { requests, decisions, .. }, _) = &mut *guard;
        requests.reserve(self.max_requests - requests.len());
        decisions.reserve(MAX_DECISIONS - decisions.len());
        self.is_asked.store(true, Ordering::Relaxed);
    }

    /// Takes the snapshot that was asked for, if it is there; else `to` stays as it is.
    pub fn take(&self, to: &mut LiveSnapshot) -> bool {
        let mut guard = self.lock();
        let (snapshot, is_new) = &mut *guard;
        if *is_new {
            swap(snapshot, to);
            snapshot.requests.clear();
            snapshot.decisions.clear();
        }
        std::mem::take(is_new)
    }

    fn lock(&self) -> MutexGuard<'_, (LiveSnapshot, bool)> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine's end of a [`LiveBoard`].
pub(super) struct LiveReporter {
    board: Arc<LiveBoard>,
    /// Of the plans since the last snapshot.
    decisions: Vec<Decision>,
    step_line: StepLine,
    policy: PolicyKind,
}

impl LiveReporter {
    pub(super) fn new(board: Arc<LiveBoard>, policy: PolicyKind) -> LiveReporter {
        let decisions = Vec::with_capacity(MAX_DECISIONS);
        LiveReporter { board, decisions, step_line: StepLine::default(), policy }
    }

    /// The policy has changed.
    pub(super) fn set_policy(&mut self, policy: PolicyKind) {
        self.policy = policy;
    }

    /// Keeps the decisions of `plan`, and forgets all before where there is no more room.
    pub(super) fn record(&mut self, plan: &Plan) {
        if self.decisions.len() + plan.decisions.len() > MAX_DECISIONS {
            self.decisions.clear();
        }
        self.decisions.extend(plan.decisions.iter().take(MAX_DECISIONS));
    }

    /// Takes in the time of a step of `rows` rows without prefill.
    pub(super) fn record_step(&mut self, rows: usize, elapsed_ns: u64) {
        self.step_line.record(rows, elapsed_ns);
    }

    /// Leaves a snapshot, if it was asked for.
    pub(super) fn report(
        &mut self,
        scheduler: &Scheduler,
        step: u64,
        now_s: f64,
        pace: &PrefillPace,
    ) {
        if !self.board.is_asked.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut guard) = self.board.snapshot.try_lock() else { return };
        let (snapshot, is_new) = &mut *guard;
        snapshot.requests.clear();
        snapshot.requests.extend(scheduler.live_requests());
        let room = MAX_DECISIONS - snapshot.decisions.len();
        snapshot.decisions.extend(self.decisions.drain(..).take(room));
        (snapshot.step, snapshot.now_s) = (step, now_s);
        snapshot.pace = self.step_line.pace(pace.prefill_token_s());
        snapshot.policy = self.policy;
        snapshot.blocks_used = scheduler.blocks_used();
        snapshot.overdue_after_s = scheduler.policy().overdue_after_s();
        *is_new = true;
        self.board.is_asked.store(false, Ordering::Relaxed);
    }
}

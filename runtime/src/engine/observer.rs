//! Observation of the step loop: nothing in serving, recorders in benchmarks and timelines.

use std::time::Instant;

use super::length_probe::Smoothed;
use trail_scheduler::StepWork;

/// A phase of `super::step_loop::StepLoop::step` on the engine's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopPhase {
    /// Waiting for the predictions of the step in flight.
    AwaitPredictions,
    /// Requests in, requests out, transfers, predictions into ranks, and the plan.
    Plan,
    /// The plan into a batch, and the batch to the backend. A backend without steps in flight
    /// computes the step here.
    Launch,
    /// Waiting for the step's tokens.
    Collect,
    /// Tokens to their requests, and the end of those that are complete.
    Send,
}

/// A collected step.
#[derive(Clone, Copy, Debug)]
pub struct CollectedStep {
    /// Step number.
    pub number: u64,
    /// The work that it computed.
    pub work: StepWork,
    /// Time at which its tokens were there.
    pub end: Instant,
    /// Publication of its predictions; `None` if it has none, or they were late.
    pub predicted: Option<Smoothed>,
}

/// Receives the phases of each step. All methods are called from the thread that steps the engine.
pub trait StepObserver: Send {
    /// A phase of step `step` took place from `begin` to `end`.
    fn phase(&mut self, _phase: LoopPhase, _step: u64, _begin: Instant, _end: Instant) {}

    /// Of the rows of step `step`, `fresh` had their prediction when the next step was planned, and
    /// `late` had not.
    fn predictions(&mut self, _step: u64, _fresh: u64, _late: u64) {}

    /// A step was collected.
    fn collected(&mut self, _step: &CollectedStep) {}
}

/// The observer, if any: costs a branch per phase in serving.
pub(super) struct Observing(pub(super) Option<Box<dyn StepObserver>>);

impl Observing {
    /// Start of a phase; `None` without an observer.
    pub(super) fn begin(&self) -> Option<Instant> {
        self.0.is_some().then(Instant::now)
    }

    /// End of the phase that began at `begin`.
    pub(super) fn end(&mut self, phase: LoopPhase, step: u64, begin: Option<Instant>) {
        if let (Some(observer), Some(begin)) = (&mut self.0, begin) {
            observer.phase(phase, step, begin, Instant::now());
        }
    }
}

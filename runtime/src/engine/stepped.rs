//! An engine without a thread: the caller runs each step.

use std::ops::Deref;

use super::Engine;
use super::event::FinishReason;
use super::step_loop::{StepLoop, StepOutcome};
use crate::backend::Fault;

/// An engine that its caller steps.
///
/// The low-level way to embed the engine: requests are submitted as to an [`Engine`], and each call
/// of [`SteppedEngine::step`] plans, computes and sends one step on the calling thread. With a
/// [`super::StepClock`] a run is reproducible: submit what has arrived by the clock, step, and
/// while idle advance the clock to the next arrival.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::{path::Path, sync::Arc};
/// use trail_runtime::engine::{EngineConfig, Event, Request, StepOutcome, SteppedEngine};
/// use trail_runtime::model::Model;
/// let model = Arc::new(Model::load(Path::new("assets/demo"))?);
/// let mut engine = SteppedEngine::new(model, EngineConfig::default())?;
/// let answer = engine.submit(Request::new(vec![1, 2, 3], 16))?;
/// while engine.step()? != StepOutcome::Idle {
///     while let Some(event) = answer.try_recv() {
///         println!("{event:?}");
///     }
/// }
/// # Ok(()) }
/// ```
pub struct SteppedEngine {
    pub(super) engine: Engine,
    pub(super) step_loop: StepLoop,
}

impl SteppedEngine {
    /// Runs one iteration of the step loop.
    ///
    /// # Errors
    ///
    /// The backend broke down: every request ends with [`FinishReason::Failed`], and each later
    /// call returns the same fault.
    pub fn step(&mut self) -> Result<StepOutcome, Fault> {
        if let Some(fault) = self.engine.fault() {
            return Err(fault.clone());
        }
        self.step_loop.step().inspect_err(|fault| {
            self.step_loop.lifecycle.queue().fail(fault.clone());
            self.step_loop.end_all(FinishReason::Failed);
        })
    }

    /// Time at which the next transfer of KV completes by a [`super::StepClock`], nanoseconds: the
    /// caller advances the clock to it, or to an earlier arrival, after
    /// [`StepOutcome::Transferring`]. `None` without transfers, and by the wall clock.
    pub fn next_transfer_ns(&self) -> Option<u64> {
        self.step_loop.swaps.next_completion_ns()
    }
}

impl Deref for SteppedEngine {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl Drop for SteppedEngine {
    fn drop(&mut self) {
        self.step_loop.end_all(FinishReason::Shutdown);
    }
}

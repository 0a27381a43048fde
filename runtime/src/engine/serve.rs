//! The engine's own thread: steps while there is work, sleeps while there is none.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::event::FinishReason;
use super::step_loop::{StepLoop, StepOutcome};
use super::turns::TurnTaker;
use crate::backend::Fault;

/// Interval of polling for transfers when nothing else can run.
const TRANSFER_POLL: Duration = Duration::from_micros(50);

impl StepLoop {
    /// Serves until the engine is dropped. A backend that breaks down fails every request, and all
    /// later ones.
    pub(super) fn serve(mut self) {
        // A panic is a defect of this project; callers must hear of it all the same.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run()))
            .unwrap_or_else(|_| Err(Fault("the engine's thread panicked: see its message".into())));
        let reason = match outcome {
            Ok(()) => FinishReason::Shutdown,
            Err(fault) => {
                self.lifecycle.queue().fail(fault);
                FinishReason::Failed
            }
        };
        self.end_all(reason);
        let StepLoop { backend, mut lifecycle, .. } = self;
        drop(backend);
        loop {
            // Read first: what was submitted before the engine stops is refused below.
            let is_stopping = lifecycle.queue().is_stopping();
            lifecycle.refuse_submissions(reason);
            if is_stopping {
                break;
            }
            std::thread::park();
        }
    }

    fn run(&mut self) -> Result<(), Fault> {
        // An engine that has ended, or broken down, keeps no other one waiting.
        let turns = self.turns.take();
        while !self.lifecycle.queue().is_stopping() {
            let turn = turns.as_ref().map(TurnTaker::take);
            let outcome = self.step()?;
            let has_work = outcome == StepOutcome::Ran;
            if let Some(turn) = turn {
                turn.end(has_work);
            }
            match outcome {
                StepOutcome::Ran => {}
                StepOutcome::Transferring => {
                    match (self.clock.simulated(), self.swaps.next_completion_ns()) {
                        (Some(clock), Some(ns)) => clock.advance_to(ns),
                        _ => std::thread::park_timeout(TRANSFER_POLL),
                    }
                }
                // A push after the last look left a wake-up token: no sleep.
                StepOutcome::Idle => std::thread::park(),
            }
        }
        Ok(())
    }
}

//! Reports of a plan to callers and to the sink of blocks, before its step runs.

use trail_scheduler::Phase;

use super::step_loop::StepLoop;

impl StepLoop {
    /// Reports the changes of the prefix cache, before the plan's blocks are written.
    pub(super) fn report_blocks(&mut self) {
        let StepLoop { scheduler, block_contents, block_reporter, .. } = self;
        if let (Some(reporter), Some(contents)) = (block_reporter, block_contents) {
            reporter.report(scheduler.take_block_changes(), &contents.device);
        }
    }

    /// Tells the callers of the requests that the plan preempted or evicted.
    pub(super) fn report_preemptions(&mut self) {
        let StepLoop { scheduler, lifecycle, predictions, .. } = self;
        let plan = scheduler.last_plan();
        for &idx in &plan.evicted {
            if let Some(active) = lifecycle.preempted_mut(idx) {
                active.has_kv = false;
                active.events.preempted(true);
            }
        }
        for &idx in &plan.preempted {
            let Some(active) = lifecycle.preempted_mut(idx) else { continue };
            // An evicted one waits again, and was reported above.
            if scheduler.state(idx).phase != Phase::Waiting {
                active.events.preempted(false);
            }
            predictions.await_preempted(idx, active);
        }
    }
}

//! Transfers of KV between device and host on the virtual clock.

use std::collections::VecDeque;

use trail_scheduler::{Plan, RequestIdx, Scheduler};

/// Transfers in flight, by time of completion. They share one link: each starts when the one before
/// completes.
pub(crate) struct Transfers {
    /// Time to copy one block one way, nanoseconds.
    block_ns: f64,
    /// Request, and time at which its transfer completes, nanoseconds.
    due: VecDeque<(RequestIdx, u64)>,
}

impl Transfers {
    pub(crate) fn new(block_s: f64) -> Transfers {
        Transfers { block_ns: block_s * 1e9, due: VecDeque::new() }
    }

    /// Starts the transfers of `plan`, at `now_ns`.
    pub(crate) fn start(&mut self, plan: &Plan, scheduler: &Scheduler, now_ns: u64) {
        for &idx in plan.swap_out.iter().chain(&plan.swap_in) {
            let ns = (scheduler.copies(idx).host.len() as f64 * self.block_ns) as u64;
            let begin_ns = self.due.back().map_or(0, |&(_, ns)| ns).max(now_ns);
            self.due.push_back((idx, begin_ns + ns));
        }
    }

    /// Reports the transfers completed by `now_ns` to the scheduler. Returns whether there were
    /// any.
    pub(crate) fn complete(&mut self, now_ns: u64, scheduler: &mut Scheduler) -> bool {
        let mut any = false;
        while let Some(&(idx, _)) = self.due.front().filter(|&&(_, ns)| ns <= now_ns) {
            self.due.pop_front();
            scheduler.transferred(idx);
            any = true;
        }
        any
    }

    /// Time at which the next transfer completes, nanoseconds.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.due.front().map(|&(_, ns)| ns)
    }
}

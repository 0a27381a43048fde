//! Transfers of KV between device and host: the scheduler's plans to the backend, and their
//! completion back to the scheduler.

use trail_scheduler::{LoggedScheduler, RequestIdx, Scheduler, Transferred};

use super::clock::Clock;
use super::queue_permit::QueuePermit;
use crate::backend::{Backend, Fault, Transfers};

/// The transfers of one engine.
pub(super) struct Swaps {
    /// Requests whose transfer the backend has completed, and the scheduler has not heard of.
    completed: Vec<u32>,
    /// Under a simulated clock: when each transfer in flight completes, in order of completion.
    completes_at: Vec<(u32, u64)>,
    /// By request index: permits of requests that ended during a transfer, which holds their index.
    permits: Box<[Option<QueuePermit>]>,
    /// Permits of ended requests whose transfer has completed.
    released: Vec<QueuePermit>,
}

impl Swaps {
    /// Room for `max_requests` requests.
    pub(super) fn new(max_requests: usize) -> Swaps {
        Swaps {
            completed: Vec::with_capacity(max_requests),
            completes_at: Vec::with_capacity(max_requests),
            permits: (0..max_requests).map(|_| None).collect(),
            released: Vec::with_capacity(max_requests),
        }
    }

    /// Keeps the permit of the request at `idx`, which has ended, until its transfer completes.
    pub(super) fn keep_permit(&mut self, idx: RequestIdx, permit: QueuePermit) {
        self.permits[idx.index()] = Some(permit);
    }

    /// Releases the permits of requests that ended during a transfer: the engine has stopped, and
    /// no transfer will be seen to complete.
    pub(super) fn abandon(&mut self) {
        self.permits.fill_with(|| None);
        self.release();
    }

    /// Reports completed transfers to the scheduler. Returns whether there were any:
    /// [`Swaps::release`] is then to be called.
    pub(super) fn poll(
        &mut self,
        backend: &mut dyn Backend,
        scheduler: &mut LoggedScheduler,
        clock: &dyn Clock,
    ) -> Result<bool, Fault> {
        let Some(transfers) = backend.transfers() else { return Ok(false) };
        transfers.finished(&mut self.completed)?;
        if clock.simulated().is_none() {
            let any = !self.completed.is_empty();
            for index in 0..self.completed.len() {
                self.complete(self.completed[index], scheduler);
            }
            self.completed.clear();
            return Ok(any);
        }
        // Simulated time decides which transfers are complete; the real copies must follow it.
        let mut any = false;
        while self.completes_at.first().is_some_and(|&(_, ns)| ns <= clock.now_ns()) {
            let (idx, _) = self.completes_at.remove(0);
            let at = loop {
                match self.completed.iter().position(|&at| at == idx) {
                    Some(index) => break index,
                    None => std::thread::yield_now(),
                }
                transfers.finished(&mut self.completed)?;
            };
            self.completed.swap_remove(at);
            self.complete(idx, scheduler);
            any = true;
        }
        Ok(any)
    }

    fn complete(&mut self, idx: u32, scheduler: &mut LoggedScheduler) {
        if scheduler.transferred(RequestIdx(idx)) == Transferred::Finished {
            self.released.extend(self.permits[idx as usize].take());
        }
    }

    /// Releases the permits of ended requests whose transfer has completed.
    pub(super) fn release(&mut self) {
        self.released.clear();
    }

    /// Starts the transfers of the last plan.
    pub(super) fn start(
        &mut self,
        backend: &mut dyn Backend,
        scheduler: &Scheduler,
        clock: &dyn Clock,
    ) -> Result<(), Fault> {
        let plan = scheduler.last_plan();
        let Some(transfers) = backend.transfers() else { return Ok(()) };
        for &idx in &plan.swap_out {
            let copies = scheduler.copies(idx);
            self.note_completion(idx.0, copies.host.len(), transfers, clock);
            transfers.swap_out(idx.0, copies)?;
        }
        for &idx in &plan.swap_in {
            let copies = scheduler.copies(idx);
            self.note_completion(idx.0, copies.host.len(), transfers, clock);
            transfers.swap_in(idx.0, copies)?;
        }
        Ok(())
    }

    /// Under a simulated clock, transfers share one link: each starts when the one before
    /// completes.
    fn note_completion(
        &mut self,
        idx: u32,
        blocks: usize,
        transfers: &dyn Transfers,
        clock: &dyn Clock,
    ) {
        let Some(simulated) = clock.simulated() else { return };
        let bytes = transfers.block_bytes() * blocks as u64;
        let free = self.completes_at.last().map_or(0, |&(_, ns)| ns).max(clock.now_ns());
        self.completes_at.push((idx, free + simulated.transfer(bytes).as_nanos() as u64));
    }

    /// Time at which the next transfer completes by a simulated clock, nanoseconds; `None` without
    /// transfers, and by the wall clock.
    pub(super) fn next_completion_ns(&self) -> Option<u64> {
        self.completes_at.first().map(|&(_, ns)| ns)
    }
}

#[cfg(test)]
mod tests {
    use trail_scheduler::Copies;

    use super::*;
    use crate::engine::{StepClock, StepCost};

    /// Blocks of 25 kB: 1 us each.
    struct Link;

    impl Transfers for Link {
        fn swap_out(&mut self, _request: u32, _copies: Copies<'_>) -> Result<(), Fault> {
            unreachable!()
        }

        fn swap_in(&mut self, _request: u32, _copies: Copies<'_>) -> Result<(), Fault> {
            unreachable!()
        }

        fn finished(&mut self, _requests: &mut Vec<u32>) -> Result<(), Fault> {
            unreachable!()
        }

        fn host_blocks(&self) -> u32 {
            64
        }

        fn block_bytes(&self) -> u64 {
            25_000
        }

        fn block_s(&self) -> f64 {
            1e-6
        }

        fn token_s(&self) -> f64 {
            1e-6
        }
    }

    #[test]
    fn simulated_transfers_share_one_link() {
        let cost = StepCost {
            fixed: 0.0,
            decode_row: 0.0,
            prefill_token: 0.0,
            context_token: 0.0,
            experts: None,
        };
        let clock = StepClock::new(cost);
        let mut swaps = Swaps::new(4);
        clock.advance_to(1_000);
        swaps.note_completion(2, 3, &Link, &clock);
        swaps.note_completion(0, 1, &Link, &clock);
        clock.advance_to(4_500);
        swaps.note_completion(1, 2, &Link, &clock);
        assert_eq!(swaps.completes_at, [(2, 4_000), (0, 5_000), (1, 7_000)]);
        swaps.completes_at.clear();
        // Nothing is in flight: it starts now.
        swaps.note_completion(3, 1, &Link, &clock);
        assert_eq!(swaps.next_completion_ns(), Some(5_500));
    }
}

//! Requests that come, and requests that go.

use trail_scheduler::{Finished, NewRequest, RequestId, Slot};

use super::core::Core;
use super::event::FinishReason;
use super::slot::Active;
use super::stats::{add, set};

impl Core {
    /// Takes in what came through the doors. Whether anything did.
    pub(super) fn take(&mut self) -> bool {
        let mut any = false;
        while let Some(active) = self.inbox.next_submission() {
            any = true;
            self.admit(active);
        }
        while let Some(ticket) = self.inbox.next_cancel() {
            if let Some(slot) = ticket.live_slot() {
                any = true;
                self.end(Slot(slot), FinishReason::Cancelled);
            }
        }
        any
    }

    fn admit(&mut self, active: Box<Active>) {
        let request = NewRequest {
            id: RequestId(active.id),
            prompt_tokens: active.prompt_len as u32,
            max_tokens: active.request.max_tokens,
            arrival_s: active.arrival_s,
            initial_prediction: active.initial_prediction,
            true_length: active.request.true_length,
        };
        if active.ticket.is_cancelled() {
            active.finish(FinishReason::Cancelled);
            self.doors.leave();
            return;
        }
        // `Engine::submit` checked the same limits, and the doors count the slots.
        let slot = self.scheduler.submit(request).expect("submit() lets only fitting requests in");
        active.ticket.admit(slot.0);
        if let Some(forecast) = &self.forecast {
            forecast.begin(slot.0, self.scheduler.generation(slot));
        }
        add(&self.counters.prompt_tokens, active.prompt_len as u64);
        self.slots[slot.0 as usize] = Some(active);
    }

    /// Ends the requests whose last token the step brought.
    pub(super) fn dismiss(&mut self) {
        while let Some((slot, reason)) = self.ended.pop() {
            self.end(slot, reason);
        }
    }

    fn end(&mut self, slot: Slot, reason: FinishReason) {
        let Some(active) = self.slots[slot.index()].take() else { return };
        let finished = self.scheduler.finish(slot);
        if matches!(reason, FinishReason::Stop | FinishReason::Length) {
            let (sum, count) = active.prediction_error();
            add(&self.counters.prediction_error_millitokens, (sum * 1e3) as u64);
            add(&self.counters.prediction_errors, count);
        }
        add(&self.counters.finished, 1);
        active.finish(reason);
        match finished {
            Finished::Now => self.doors.leave(),
            Finished::Forget => {
                self.forgotten.push(slot.0);
                self.doors.leave();
            }
            // Its slot is not free yet: see `settle`.
            Finished::AfterTransfer => {}
        }
        let running = self.scheduler.running() as u64;
        set(&self.counters.waiting, u64::from(self.doors.live()).saturating_sub(running));
        set(&self.counters.running, running);
        set(&self.counters.blocks_used, u64::from(self.scheduler.blocks_used()));
    }

    /// Ends everything that was admitted.
    pub(super) fn abandon(&mut self, reason: FinishReason) {
        for active in self.slots.iter_mut().filter_map(Option::take) {
            active.finish(reason);
            self.doors.leave();
            add(&self.counters.finished, 1);
        }
        [&self.counters.running, &self.counters.waiting].map(|gauge| set(gauge, 0));
    }

    /// Ends what comes through the doors without admitting it.
    pub(super) fn refuse(&mut self, reason: FinishReason) {
        while let Some(active) = self.inbox.next_submission() {
            active.finish(reason);
            self.doors.leave();
        }
    }
}

//! One admitted or waiting request inside the engine.

use std::sync::Arc;

use crossbeam_channel::Sender;
use trail_scheduler::NewRequest;

use super::event::{Event, FinishReason};
use super::handle::Ticket;
use super::request::Request;

/// A submitted request: its tokens, and the channel to its caller.
///
/// Built on the caller's thread with all memory it will need, so that the step loop does not
/// allocate for it.
pub(super) struct ActiveRequest {
    pub(super) id: u64,
    pub(super) request: Request,
    /// Prompt, then output; capacity for all of both.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_len: usize,
    /// Prompt-only prediction of the output length, tokens.
    pub(super) initial_prediction: Option<f32>,
    /// Refined predictions `(generated, remaining)`, at most one per token.
    pub(super) predictions: Vec<(u32, f32)>,
    /// Step of the newest prediction.
    pub(super) predicted_step: u64,
    /// Time of submission, seconds on the engine's clock.
    pub(super) arrival_s: f64,
    pub(super) ticket: Arc<Ticket>,
    events: Sender<Event>,
}

/// Events of a request beside its tokens, predictions and alternatives. Preemptions beyond this
/// number are not reported; `Finished` always is.
const SPARE_EVENTS: usize = 64;

impl ActiveRequest {
    /// Capacity of the event channel of `request`.
    pub(super) fn event_capacity(request: &Request) -> usize {
        let per_token = 2 + usize::from(request.sampling.top_logprobs);
        (request.max_tokens as usize + 1) * per_token + SPARE_EVENTS
    }

    pub(super) fn new(
        id: u64,
        request: Request,
        initial_prediction: Option<f32>,
        arrival_s: f64,
        ticket: Arc<Ticket>,
        events: Sender<Event>,
    ) -> Self {
        let max_tokens = request.max_tokens as usize;
        let mut tokens = Vec::with_capacity(request.prompt.len() + max_tokens);
        tokens.extend_from_slice(&request.prompt);
        ActiveRequest {
            id,
            prompt_len: request.prompt.len(),
            tokens,
            initial_prediction,
            predictions: Vec::with_capacity(max_tokens + 1),
            predicted_step: 0,
            arrival_s,
            ticket,
            events,
            request,
        }
    }

    /// The request in the scheduler's terms.
    pub(super) fn to_scheduler(&self) -> NewRequest {
        self.request.to_scheduler(self.id, self.arrival_s, self.initial_prediction)
    }

    /// Output tokens so far.
    pub(super) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Sends an event to the caller. The channel has room for every event that must arrive; a
    /// caller that has dropped its handle cancels through the ticket.
    pub(super) fn send(&self, event: Event) {
        let room = SPARE_EVENTS / 2;
        let optional = matches!(event, Event::Preempted { .. });
        let full = self.events.capacity().is_some_and(|c| self.events.len() + room >= c);
        if optional && full {
            return;
        }
        let _ = self.events.try_send(event);
        if let Some(notify) = &self.request.notify {
            notify();
        }
    }

    /// Records a prediction from `step`, newer than all before, and sends it to the caller.
    pub(super) fn predict(&mut self, generated: u32, remaining: f32, step: u64) {
        self.predicted_step = step;
        if self.predictions.len() < self.predictions.capacity() {
            self.predictions.push((generated, remaining));
        }
        self.send(Event::Prediction { generated, remaining });
    }

    /// Sends the last event.
    pub(super) fn finish(&self, reason: FinishReason) {
        self.ticket.finish();
        self.send(Event::Finished { reason });
    }

    /// The reason for which `token`, just generated, ends the answer; `None` if it does not.
    pub(super) fn ends_with(&self, token: u32, eos: &[u32]) -> Option<FinishReason> {
        if let Some(length) = self.request.forced_length {
            return (self.generated() >= length as usize).then_some(FinishReason::Length);
        }
        let stop = self.request.stop_tokens.contains(&token)
            || (!self.request.ignore_eos && eos.contains(&token));
        if stop {
            Some(FinishReason::Stop)
        } else if self.generated() >= self.request.max_tokens as usize {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    /// Sum of |predicted - true| remaining tokens over the refined predictions, and their number.
    /// For a request with a complete answer.
    pub(super) fn prediction_error(&self) -> (f64, u64) {
        let length = self.generated() as f64;
        let sum = self
            .predictions
            .iter()
            .map(|&(generated, remaining)| {
                (f64::from(remaining) - (length - f64::from(generated))).abs()
            })
            .sum();
        (sum, self.predictions.len() as u64)
    }
}

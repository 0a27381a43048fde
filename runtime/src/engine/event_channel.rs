//! The events of one request, from the engine's thread to its caller.
//!
//! [`super::event_log`] carries them; a [`Parker`] wakes a caller that waits. Nothing is dropped,
//! and the engine's thread waits for no reader: a send is a store and an atomic exchange, plus a
//! wake-up where the caller sleeps. Several preemptions between two tokens are one event, so that
//! the events of a request are bounded by its tokens.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_utils::sync::{Parker, Unparker};

use super::event::{Event, FinishReason};
use super::event_log::{LogReader, LogWriter, event_log};
use super::request::Notify;
use super::request_status::RequestStatus;
use crate::backend::SampledToken;

/// Bits of an event's word below its kind: id or count, and a value of 32 bits.
const KIND_SHIFT: u32 = 61;
const ID_LIMIT: u32 = 1 << 29;

const TOKEN: u64 = 1;
const ALTERNATIVE: u64 = 2;
const PREDICTION: u64 = 3;
const PREEMPTED: u64 = 4;
const FINISHED: u64 = 5;
/// The rank of the prompt's token that comes next.
const RANK: u64 = 6;
const PROMPT_TOKEN: u64 = 7;

fn word(kind: u64, id: u32, value: u32) -> NonZeroU64 {
    debug_assert!(id < ID_LIMIT, "{id} needs more than 29 bits");
    let word = kind << KIND_SHIFT | u64::from(id % ID_LIMIT) << 32 | u64::from(value);
    NonZeroU64::new(word).expect("no kind is 0")
}

/// Creates the channel of the request of `status`. `notify` is called after every event.
pub(super) fn event_channel(
    status: Arc<RequestStatus>,
    notify: Option<Notify>,
) -> (EventSender, EventReceiver) {
    let (writer, reader) = event_log();
    let parker = Parker::new();
    let sender = EventSender {
        log: writer,
        reader: parker.unparker().clone(),
        notify,
        preemptions: Preemptions::default(),
        status: status.clone(),
    };
    (sender, EventReceiver { log: reader, parker, rank: 0, is_finished: false, status })
}

/// Preemptions since the last token.
#[derive(Default)]
struct Preemptions {
    /// One was sent; more wait for the next token.
    sent: bool,
    unsent: u32,
    /// One of the unsent was an eviction.
    evicted: bool,
}

/// The engine's end. Dropped before the end of the answer, as by a panic, it sends
/// [`FinishReason::Shutdown`].
pub(super) struct EventSender {
    log: LogWriter,
    reader: Unparker,
    notify: Option<Notify>,
    preemptions: Preemptions,
    status: Arc<RequestStatus>,
}

impl EventSender {
    /// Makes room for `count` events, so that sending them does not allocate, up to a chunk.
    pub(super) fn reserve(&mut self, count: usize) {
        self.log.reserve(count);
    }

    fn send(&mut self, word: NonZeroU64) {
        self.log.push(word);
        self.reader.unpark();
        if let Some(notify) = &self.notify {
            notify();
        }
    }

    /// Sends the most likely tokens at the position of `token`.
    pub(super) fn alternatives(&mut self, token: &SampledToken) {
        self.send_preemptions();
        for &(id, logprob) in &token.top[..usize::from(token.num_top)] {
            self.send(word(ALTERNATIVE, id, logprob.to_bits()));
        }
    }

    /// Sends a token of the prompt, in two words.
    pub(super) fn prompt_token(&mut self, id: u32, logprob: f32, rank: u32) {
        self.log.push(word(RANK, 0, rank));
        self.send(word(PROMPT_TOKEN, id, logprob.to_bits()));
    }

    pub(super) fn token(&mut self, id: u32, logprob: f32) {
        self.send_preemptions();
        self.preemptions.sent = false;
        self.send(word(TOKEN, id, logprob.to_bits()));
    }

    pub(super) fn prediction(&mut self, generated: u32, remaining: f32) {
        self.send(word(PREDICTION, generated, remaining.to_bits()));
    }

    /// Sends the first preemption after a token at once, and the count of further ones with the
    /// next token.
    pub(super) fn preempted(&mut self, evicted: bool) {
        let preemptions = &mut self.preemptions;
        preemptions.unsent += 1;
        preemptions.evicted |= evicted;
        if !preemptions.sent {
            self.send_preemptions();
        }
    }

    fn send_preemptions(&mut self) {
        let Preemptions { unsent, evicted, .. } = self.preemptions;
        if unsent > 0 {
            self.preemptions = Preemptions { sent: true, unsent: 0, evicted: false };
            self.send(word(PREEMPTED, unsent.min(ID_LIMIT - 1), u32::from(evicted)));
        }
    }

    /// Sends the last event.
    pub(super) fn finish(mut self, reason: FinishReason) {
        self.end(reason);
    }

    fn end(&mut self, reason: FinishReason) {
        if self.status.finish(reason) {
            self.send_preemptions();
            self.send(word(FINISHED, 0, 0));
        }
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        self.end(FinishReason::Shutdown);
    }
}

/// The caller's end.
pub(super) struct EventReceiver {
    log: LogReader,
    parker: Parker,
    /// Rank of the prompt's token that comes next.
    rank: u32,
    /// Set once `Finished` was handed out.
    is_finished: bool,
    status: Arc<RequestStatus>,
}

impl EventReceiver {
    /// The next event if it is there already.
    pub(super) fn try_next(&mut self) -> Option<Event> {
        let mut word = self.log.pop()?.get();
        if word >> KIND_SHIFT == RANK {
            self.rank = word as u32;
            word = self.log.pop()?.get();
        }
        let (id, value) = ((word >> 32) as u32 % ID_LIMIT, word as u32);
        let number = f32::from_bits(value);
        Some(match word >> KIND_SHIFT {
            TOKEN => Event::Token { id, logprob: number },
            ALTERNATIVE => Event::Alternative { id, logprob: number },
            PROMPT_TOKEN => Event::PromptToken { id, logprob: number, rank: self.rank },
            PREDICTION => Event::Prediction { generated: id, remaining: number },
            PREEMPTED => Event::Preempted { evicted: value != 0, times: id },
            _ => {
                self.is_finished = true;
                let reason = self.status.finish_reason().unwrap_or(FinishReason::Shutdown);
                Event::Finished { reason }
            }
        })
    }

    /// Waits for the next event, at most until `deadline`. `None` at the deadline, and after
    /// `Finished`.
    pub(super) fn next(&mut self, deadline: Option<Instant>) -> Option<Event> {
        loop {
            if let Some(event) = self.try_next() {
                return Some(event);
            }
            if self.is_finished {
                return None;
            }
            // A send after the look above has left a token that ends this wait at once.
            match deadline {
                None => self.parker.park(),
                Some(deadline) if Instant::now() < deadline => self.parker.park_deadline(deadline),
                Some(_) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::MAX_TOP_LOGPROBS;

    fn channel() -> (EventSender, EventReceiver) {
        event_channel(Arc::new(RequestStatus::new()), None)
    }

    #[test]
    fn events_come_back_as_they_were_sent() {
        let (mut sender, mut receiver) = channel();
        let top = |id, logprob| SampledToken {
            id,
            logprob,
            top: [(id, logprob); MAX_TOP_LOGPROBS],
            num_top: 1,
        };
        sender.alternatives(&top(3, -0.25));
        sender.prompt_token(9, f32::NEG_INFINITY, u32::MAX);
        sender.alternatives(&top(7, -0.5));
        sender.token(ID_LIMIT - 1, -1.5);
        sender.prediction(0, 33.25);
        sender.preempted(true);
        sender.token(0, 0.0);
        sender.finish(FinishReason::Stop);
        let events: Vec<Event> = std::iter::from_fn(|| receiver.next(None)).collect();
        let expected = [
            Event::Alternative { id: 3, logprob: -0.25 },
            Event::PromptToken { id: 9, logprob: f32::NEG_INFINITY, rank: u32::MAX },
            Event::Alternative { id: 7, logprob: -0.5 },
            Event::Token { id: ID_LIMIT - 1, logprob: -1.5 },
            Event::Prediction { generated: 0, remaining: 33.25 },
            Event::Preempted { evicted: true, times: 1 },
            Event::Token { id: 0, logprob: 0.0 },
            Event::Finished { reason: FinishReason::Stop },
        ];
        assert_eq!(events, expected);
    }

    #[test]
    fn a_channel_without_an_end_ends_with_shutdown() {
        let (mut sender, mut receiver) = channel();
        sender.token(1, -1.0);
        drop(sender);
        let limit = Some(Instant::now() + Duration::from_secs(60));
        assert!(matches!(receiver.next(limit), Some(Event::Token { .. })));
        let end = Event::Finished { reason: FinishReason::Shutdown };
        assert_eq!((receiver.next(limit), receiver.next(limit)), (Some(end), None));
        assert!(limit > Some(Instant::now()), "the wait ended at its limit");
    }

    #[test]
    fn a_wait_ends_with_the_next_event_or_at_its_deadline() {
        let (mut sender, mut receiver) = channel();
        assert_eq!(receiver.next(Some(Instant::now() + Duration::from_millis(5))), None);
        let waits = std::thread::spawn(move || {
            let limit = Instant::now() + Duration::from_secs(60);
            std::iter::from_fn(|| receiver.next(Some(limit))).count()
        });
        for id in 0..1000 {
            sender.token(id, -1.0);
        }
        sender.finish(FinishReason::Length);
        assert_eq!(waits.join().unwrap(), 1001);
    }
}

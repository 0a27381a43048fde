//! One admitted or waiting request inside the engine.

use std::ops::Range;
use std::sync::Arc;

use trail_scheduler::{BlockHash, NewRequest};

use super::block_hashes::SequenceHashes;
use super::constraint::ConstrainedAnswer;
use super::event::FinishReason;
use super::event_channel::EventSender;
use super::event_log::CHUNK_WORDS;
use super::queue_permit::QueuePermit;
use super::request::Request;
use super::request_status::RequestStatus;
use super::speculation::Acceptance;
use crate::backend::BLOCK_TOKENS;

/// Tokens for which a request reserves memory when it is first scheduled; buffers of longer answers
/// grow by doubling. A waiting request has no buffers but its prompt.
const RESERVED_TOKENS: usize = 4096;
/// Events reserved beside those of each token: preemptions, and the end.
const SPARE_EVENTS: usize = 16;

/// A submitted request: its tokens, and the channel to its caller.
pub(super) struct ActiveRequest {
    pub(super) id: u64,
    /// The request; its prompt is in `tokens`.
    pub(super) request: Request,
    /// The request in the scheduler's terms.
    pub(super) new: NewRequest,
    /// Prompt, then output.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_len: usize,
    /// True from its first row on, while it has KV.
    pub(super) has_kv: bool,
    /// Tokens of the prompt that were scored, or are in the step in flight, the first one among
    /// them: it has no score.
    scored: usize,
    /// Hashes of its KV blocks; `None` where it shares none.
    pub(super) hashes: Option<SequenceHashes>,
    /// `None` without a constraint.
    pub(super) constrained: Option<Arc<ConstrainedAnswer>>,
    pub(super) acceptance: Acceptance,
    /// Refined predictions `(generated, remaining)`, at most one per token.
    pub(super) predictions: Vec<(u32, f32)>,
    /// Step of the newest prediction.
    pub(super) predicted_step: u64,
    /// The last step with a row of the request whose prediction was looked for.
    pub(super) tapped_step: u64,
    /// True once the request was scheduled, so that its buffers are reserved.
    is_started: bool,
    pub(super) status: Arc<RequestStatus>,
    pub(super) permit: QueuePermit,
    pub(super) events: EventSender,
}

impl ActiveRequest {
    /// Bytes that a waiting `request` holds.
    pub(super) fn bytes(request: &Request) -> usize {
        let predictions = request.predictions.as_ref().map_or(0, |replayed| replayed.len());
        let hashes = request.prompt.len() / BLOCK_TOKENS * size_of::<BlockHash>();
        let words = request.prompt.capacity()
            + request.stop_tokens.capacity()
            + request.expected.capacity()
            + predictions;
        let scores = request.prompt.len() * score_words(request);
        size_of::<ActiveRequest>() + hashes + words * size_of::<u32>() + scores * size_of::<u64>()
    }

    pub(super) fn new(
        mut request: Request,
        new: NewRequest,
        hashes: Option<SequenceHashes>,
        (constrained, status): (Option<Arc<ConstrainedAnswer>>, Arc<RequestStatus>),
        permit: QueuePermit,
        events: EventSender,
    ) -> Self {
        let prompt_len = request.own_prompt().len();
        let tokens = std::mem::take(&mut request.prompt);
        ActiveRequest {
            id: new.id.0,
            prompt_len,
            tokens,
            new,
            has_kv: false,
            scored: 1,
            hashes,
            constrained,
            acceptance: Acceptance::default(),
            predictions: Vec::new(),
            predicted_step: 0,
            tapped_step: 0,
            is_started: false,
            status,
            permit,
            events,
            request,
        }
    }

    /// Reserves the buffers of the answer when the request is first scheduled; `predicts` if
    /// predictions will come. The only allocations of the engine's thread for an answer of up to
    /// [`RESERVED_TOKENS`] tokens.
    pub(super) fn start(&mut self, predicts: bool) {
        if std::mem::replace(&mut self.is_started, true) {
            return;
        }
        self.status.start();
        let tokens = (self.request.max_tokens as usize).min(RESERVED_TOKENS);
        self.tokens.reserve_exact(tokens);
        let per_token = 1 + usize::from(predicts) + usize::from(self.request.sampling.top_logprobs);
        let answer = (tokens * per_token + SPARE_EVENTS).min(CHUNK_WORDS);
        self.events.reserve(self.prompt_len * score_words(&self.request) + answer);
        if predicts {
            // One more than tokens: the prompt's.
            self.predictions.reserve_exact(tokens + 1);
        }
    }

    /// Takes the positions among `first..last`, fed by one step, whose next token is to be scored:
    /// those of the prompt if that was requested, but none twice. A recompute scores no token
    /// again.
    pub(super) fn take_scored(&mut self, first: usize, last: usize) -> Option<Range<u32>> {
        self.request.sampling.prompt_logprobs?;
        let (begin, end) = (first.max(self.scored - 1), last.min(self.prompt_len - 1));
        if begin >= end {
            return None;
        }
        self.scored = end + 1;
        Some(begin as u32..end as u32)
    }

    /// Output tokens so far.
    pub(super) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Records a prediction from `step`, newer than all before, and sends it to the caller.
    pub(super) fn predict(&mut self, generated: u32, remaining: f32, step: u64) {
        self.predicted_step = step;
        self.predictions.push((generated, remaining));
        self.events.prediction(generated, remaining);
    }

    /// Releases the permit, then sends the last event.
    pub(super) fn finish(self, reason: FinishReason) {
        drop(self.permit);
        self.events.finish(reason);
    }

    /// The reason for which `token`, just generated, ends the answer; `None` if it does not.
    pub(super) fn ends_with(&self, token: u32, eos: &[u32]) -> Option<FinishReason> {
        if let Some(length) = self.request.forced_length {
            return (self.generated() >= length as usize).then_some(FinishReason::Length);
        }
        let stop = self.request.stop_tokens.contains(&token)
            || !self.request.ignore_eos && eos.contains(&token);
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

/// Words that the events of a prompt's token take: two, and one for each of the most likely tokens.
fn score_words(request: &Request) -> usize {
    request.sampling.prompt_logprobs.map_or(0, |top| 2 + usize::from(top))
}

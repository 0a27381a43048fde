//! An answer in progress: the engine's events with the text that they complete.

use std::sync::Arc;
use std::time::Duration;

use trail_runtime::engine::{Event, FinishReason, RequestHandle};
use trail_runtime::text::Step;

use crate::detokenizer::Detokenizer;

/// One answer. Dropping it cancels the request, unless another thread holds the handle.
pub struct Answer {
    handle: Arc<RequestHandle>,
    /// `None` for an answer of token ids alone.
    text: Option<Detokenizer>,
    /// The reason of the end, once it came.
    finished: Option<FinishReason>,
}

impl Answer {
    pub(crate) fn new(handle: RequestHandle, text: Option<Detokenizer>) -> Answer {
        Answer { handle: Arc::new(handle), text, finished: None }
    }

    /// The request in the engine: another thread cancels it by this.
    pub fn handle(&self) -> &Arc<RequestHandle> {
        &self.handle
    }

    /// The reason of the end, once its event was returned.
    pub fn finished(&self) -> Option<FinishReason> {
        self.finished
    }

    /// The stop string that ended the answer.
    pub fn stop(&self) -> Option<&str> {
        self.text.as_ref()?.stop()
    }

    /// The next event, with the text that is certain by it; waits at most `limit` for it. `None` if
    /// there is none yet, or no more. A token with which a stop string is complete is the last one:
    /// the end of the answer follows with [`FinishReason::Stop`].
    pub fn next(&mut self, limit: Duration) -> Option<(Event, String)> {
        if self.finished.is_some() {
            return None;
        }
        let event = match self.stop() {
            Some(_) => Event::Finished { reason: FinishReason::Stop },
            None if limit.is_zero() => self.handle.try_recv()?,
            None => self.handle.recv_timeout(limit)?,
        };
        let step = match (&event, &mut self.text) {
            (Event::Token { id, .. }, Some(text)) => text.push(*id),
            (Event::Finished { .. }, Some(text)) if text.stop().is_none() => text.finish(),
            _ => Step::default(),
        };
        if let Event::Finished { reason } = event {
            // Text that was held back for an incomplete character can complete a stop string.
            let reason = if self.stop().is_some() { FinishReason::Stop } else { reason };
            self.finished = Some(reason);
            return Some((Event::Finished { reason }, step.emit));
        }
        if step.stopped {
            self.handle.cancel();
        }
        Some((event, step.emit))
    }
}

//! One answer under way: the engine's events as text.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::sync::Notify;
use tokio::time::timeout;
use trail_runtime::engine::{Event, FinishReason, Request, RequestHandle};
use trail_runtime::text::StopMatcher;

use super::error::ApiError;
use super::logprobs::{Scored, Scorer};
use super::metrics::Watch;
use super::state::ServerState;
use crate::answer::Answer;

/// How long to trust that the engine will call. It always does; an engine whose thread died cannot.
const PATIENCE: Duration = Duration::from_secs(1);

/// What has come of an answer since the last look.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// Which of the request's answers.
    pub index: usize,
    /// New text.
    pub text: String,
    /// Tokens generated.
    pub tokens: u32,
    /// Their log-probabilities, where asked for.
    pub scored: Option<Vec<Scored>>,
    /// Why the answer ended, once it has.
    pub finish: Option<&'static str>,
}

impl Delta {
    /// Appends what came next.
    fn absorb(&mut self, next: Delta) {
        self.text.push_str(&next.text);
        self.tokens += next.tokens;
        self.finish = next.finish;
        if let (Some(scored), Some(more)) = (&mut self.scored, next.scored) {
            scored.extend(more);
        }
    }

    fn has_news(&self) -> bool {
        let scored = self.scored.as_ref().is_some_and(|scored| !scored.is_empty());
        scored || !self.text.is_empty() || self.finish.is_some()
    }
}

/// One answer under way. Dropping it, as happens when the client goes away, cancels it.
pub struct Choice {
    index: usize,
    /// Gone once the answer is complete.
    handle: Option<RequestHandle>,
    wake: Arc<Notify>,
    answer: Answer,
    scorer: Option<Scorer>,
    watch: Watch,
    /// Tokens whose text has not been reported: kept until there is news.
    pending: Delta,
}

impl Choice {
    /// Submits `request`; `scored` asks for log-probabilities.
    pub fn submit(
        state: &ServerState,
        index: usize,
        mut request: Request,
        stops: StopMatcher,
        scored: bool,
    ) -> Result<Self, ApiError> {
        let wake = Arc::new(Notify::new());
        let notify = wake.clone();
        request.notify = Some(Arc::new(move || notify.notify_one()));
        let eos = &state.engine.model().config.eos_tokens;
        let answer = Answer::new(state.tokenizer.clone(), stops, &request, eos);
        let handle = Some(state.engine.submit(request)?);
        let watch = state.metrics.watch();
        let scorer = scored.then(|| Scorer::new(state.tokenizer.clone()));
        let pending = Choice::empty(index, scored);
        Ok(Choice { index, handle, wake, answer, scorer, watch, pending })
    }

    fn empty(index: usize, scored: bool) -> Delta {
        Delta { index, scored: scored.then(Vec::new), ..Delta::default() }
    }

    /// The whole answer.
    pub async fn complete(mut self) -> Result<Delta, ApiError> {
        let mut whole = self.next().await?;
        while whole.finish.is_none() {
            whole.absorb(self.next().await?);
        }
        Ok(whole)
    }

    /// The answer piece by piece; the last one says why it ended.
    pub fn deltas(self) -> impl Stream<Item = Result<Delta, ApiError>> {
        stream::unfold(Some(self), |choice| async {
            let mut choice = choice?;
            let delta = choice.next().await;
            let more = matches!(&delta, Ok(delta) if delta.finish.is_none());
            Some((delta, more.then_some(choice)))
        })
    }

    /// Waits for news.
    async fn next(&mut self) -> Result<Delta, ApiError> {
        loop {
            self.take_events()?;
            if self.pending.has_news() {
                let empty = Choice::empty(self.index, self.scorer.is_some());
                return Ok(std::mem::replace(&mut self.pending, empty));
            }
            // The permit of a call that came since the last look is kept: nothing is missed.
            let _ = timeout(PATIENCE, self.wake.notified()).await;
        }
    }

    /// Takes every event that is there.
    fn take_events(&mut self) -> Result<(), ApiError> {
        while let Some(event) = self.handle.as_ref().and_then(RequestHandle::try_recv) {
            match event {
                Event::Alternative { id, logprob } => {
                    if let Some(scorer) = &mut self.scorer {
                        scorer.alternative(id, logprob);
                    }
                }
                Event::Token { id, logprob } => self.take_token(id, logprob),
                Event::Finished { reason } => self.take_end(reason)?,
                Event::Prediction { .. } | Event::Preempted { .. } => {}
            }
        }
        Ok(())
    }

    fn take_token(&mut self, id: u32, logprob: f32) {
        self.watch.token();
        self.pending.tokens += 1;
        if let (Some(scorer), Some(scored), false) =
            (&mut self.scorer, &mut self.pending.scored, self.answer.is_end(id))
        {
            scored.push(scorer.token(id, logprob));
        }
        let step = self.answer.push(id);
        self.pending.text.push_str(&step.emit);
        if step.stopped {
            self.end(FinishReason::Stop);
        }
    }

    fn take_end(&mut self, reason: FinishReason) -> Result<(), ApiError> {
        if !matches!(reason, FinishReason::Stop | FinishReason::Length) {
            return Err(ApiError::interrupted());
        }
        let step = self.answer.finish();
        self.pending.text.push_str(&step.emit);
        self.end(if step.stopped { FinishReason::Stop } else { reason });
        Ok(())
    }

    /// The answer is complete, whatever the engine would add.
    fn end(&mut self, reason: FinishReason) {
        self.handle = None;
        self.pending.finish = Some(reason.name());
        self.watch.end(reason.name());
    }
}

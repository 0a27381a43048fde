//! One choice of a response in progress: the engine's events as text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{self, Stream};
use tokio::sync::Notify;
use tokio::time::timeout;
use trail_runtime::engine::{Event, FinishReason, Request, RequestHandle, SubmitError};
use trail_runtime::text::StopMatcher;
use trail_simulator::forecast::ArrivalForecast;

use crate::access::Access;
use crate::answer_parts::{AnswerParser, AnswerParts};
use crate::delta::Delta;
use crate::echo::Echo;
use crate::error::ApiError;
use crate::lifecycle::{Phase, PhaseWatch};
use crate::live::{LiveAnswer, Owner, Progress};
use crate::logprobs::{Scored, Scorer};
use crate::model_entry::ModelUse;
use crate::prompt_scores::{PromptReport, PromptScores};
use crate::request_metrics::{RequestSize, Watch};
use crate::state::ServerState;
use crate::time_limits::TimeLimits;
use trail_cli::{Detokenizer, TextOptions};

/// Upper bound of a wait for the engine's wake-up. A live engine always wakes the task; an engine
/// whose thread has died cannot, so the events are polled after this time.
const WAKE_TIMEOUT: Duration = Duration::from_secs(1);

/// The same where an answer has a time limit, which is compared with its estimate.
const LIMIT_POLL: Duration = Duration::from_millis(50);

/// Finish reason of an answer with calls of tools.
pub(crate) const TOOL_CALLS: &str = "tool_calls";

/// Form in which a choice is reported.
pub(crate) struct ChoiceOptions {
    /// Index of the choice within the response.
    pub index: usize,
    /// True for the first answer to its prompt.
    pub is_first: bool,
    /// Text of the prompt, before the answer; empty for none.
    pub echo: Echo,
    /// Requests the echoed tokens, with as many of the most likely ones.
    pub echo_top: Option<u8>,
    /// Requests the prompt's tokens in vLLM's form, with as many of the most likely ones.
    pub prompt_logprobs: Option<u8>,
    /// Requests log-probabilities.
    pub logprobs: bool,
    /// Requests token ids of prompt and answer.
    pub token_ids: bool,
    /// Answers to the whole request.
    pub answers: usize,
    /// Stop strings.
    pub stops: StopMatcher,
    /// Times by which the client wants the answer.
    pub limits: TimeLimits,
    /// Requests what is expected of the rest, in each part.
    pub progress: bool,
    /// Parts of the answer beside content.
    pub parts: AnswerParts,
    /// Text beside that of ordinary tokens.
    pub text: TextOptions,
}

/// The times of an answer that arrives now, of these tokens of the prompt and at most of the
/// answer; an error if its `limits` would be missed.
fn estimate(
    model: &ModelUse,
    limits: &TimeLimits,
    (prompt_tokens, max_tokens): (u32, u32),
    predicted: Option<f32>,
    priority: i32,
) -> Result<Option<ArrivalForecast>, Refused> {
    let arrivals = model.live.frame().arrivals.clone();
    let estimate = arrivals.estimate(prompt_tokens, max_tokens, predicted, priority);
    if let Some(times) = &estimate {
        limits.check(times, arrivals.next_end_s()).map_err(Refused::ByTime)?;
    }
    Ok(estimate)
}

/// The reason for which an answer does not begin.
pub(crate) enum Refused {
    ByEngine(SubmitError),
    /// Its time limits would be missed.
    ByTime(ApiError),
}

/// One answer in progress. Dropping it, as when the client disconnects, cancels the request.
pub(crate) struct Choice {
    index: usize,
    is_first: bool,
    /// Tokens of the answer so far.
    tokens: u32,
    /// `None` once the answer is complete.
    handle: Option<RequestHandle>,
    wake: Arc<Notify>,
    answer: Detokenizer,
    /// `None` for an answer of content alone.
    parser: Option<AnswerParser>,
    scorer: Option<Scorer>,
    /// Report of the prompt, until it is complete.
    prompt: Option<PromptReport>,
    /// An echo with log-probabilities: the token that ends the answer has one as well.
    scores_end: bool,
    watch: Watch,
    live: LiveAnswer,
    /// Made on arrival.
    estimate: Option<ArrivalForecast>,
    limits: TimeLimits,
    progress: bool,
    access: Arc<Access>,
    phase: PhaseWatch,
    /// Characters of the answer's text so far, all parts together.
    sent_chars: usize,
    /// Text not yet reported.
    pending: Delta,
    /// Keeps the model loaded.
    model: ModelUse,
}

impl Choice {
    /// Submits `request`.
    pub(crate) fn submit(
        state: &ServerState,
        model: &ModelUse,
        access: &Arc<Access>,
        options: ChoiceOptions,
        mut request: Request,
    ) -> Result<Self, Refused> {
        let ChoiceOptions { index, is_first, echo, echo_top, prompt_logprobs, .. } = options;
        let ChoiceOptions { limits, progress, .. } = options;
        let ChoiceOptions { logprobs, token_ids, answers, stops, parts, text, .. } = options;
        let prompt_ids = token_ids.then(|| request.prompt.clone());
        let wake = Arc::new(Notify::new());
        let notify = wake.clone();
        request.notify = Some(Arc::new(move || notify.notify_one()));
        let eos = &model.engine.model().config.eos_tokens;
        let answer = Detokenizer::new(model.tokenizer.clone(), stops, &request, eos, text);
        let size = RequestSize {
            prompt_tokens: request.prompt.len(),
            max_tokens: request.max_tokens,
            answers,
        };
        let ids =
            if request.sampling.prompt_logprobs.is_some() { &request.prompt[..] } else { &[] };
        let scores = PromptScores::new(model.tokenizer.clone(), ids.to_vec());
        let (submitted, priority) = (Instant::now(), request.priority);
        let handle = model.engine.submit(request).map_err(Refused::ByEngine)?;
        let (prompt_tokens, max_tokens) = (size.prompt_tokens as u32, size.max_tokens);
        let predicted = handle.initial_prediction();
        let tokens = (prompt_tokens, max_tokens);
        let estimate = estimate(model, &limits, tokens, predicted, priority)?;
        let watch = model.entry().metrics.watch(access.clone(), size, submitted);
        let sizes = (prompt_tokens, max_tokens, priority);
        let live = model.live.enter(&handle, Owner::new(access, index), sizes, estimate);
        let mut choice = Choice {
            index,
            is_first,
            tokens: 0,
            handle: Some(handle),
            wake,
            answer,
            parser: parts.parser(),
            scorer: logprobs.then(|| Scorer::new(model.tokenizer.clone())),
            prompt: Some(PromptReport { echo, echo_top, top: prompt_logprobs, scores }),
            scores_end: echo_top.is_some(),
            watch,
            live,
            estimate,
            limits,
            progress,
            access: access.clone(),
            phase: state.lifecycle.watch(),
            sent_chars: 0,
            pending: Delta {
                index,
                is_first: true,
                scored: logprobs.then(Vec::new),
                token_ids: token_ids.then(Vec::new),
                prompt_ids,
                ..Delta::default()
            },
            model: model.clone(),
        };
        choice.report_prompt();
        Ok(choice)
    }

    /// The first prediction of the answer's length, tokens, while the answer is in progress.
    pub(crate) fn initial_prediction(&self) -> Option<f32> {
        self.handle.as_ref()?.initial_prediction()
    }

    /// The estimate made on arrival, while nothing was sent.
    pub(crate) fn estimate(&self) -> Option<ArrivalForecast> {
        self.estimate.filter(|_| self.tokens == 0)
    }

    /// Waits for the whole answer.
    pub(crate) async fn complete(mut self) -> Result<Delta, ApiError> {
        let mut whole = self.next().await?;
        while whole.finish.is_none() {
            whole.absorb(self.next().await?);
        }
        Ok(whole)
    }

    /// Streams the answer; the last delta has the finish reason.
    pub(crate) fn deltas(self) -> impl Stream<Item = Result<Delta, ApiError>> {
        stream::unfold(Some(self), |choice| async {
            let mut choice = choice?;
            let delta = choice.next().await;
            let more = matches!(&delta, Ok(delta) if delta.finish.is_none());
            Some((delta, more.then_some(choice)))
        })
    }

    /// Waits until there is text, log-probabilities or a finish reason to report.
    async fn next(&mut self) -> Result<Delta, ApiError> {
        loop {
            self.take_events()?;
            if self.pending.has_news() {
                return Ok(self.take_pending());
            }
            self.check_limits()?;
            let wake_timeout = if self.limits.is_any() { LIMIT_POLL } else { WAKE_TIMEOUT };
            // `Notify` stores the permit of a wake-up before this wait: none is lost.
            tokio::select! {
                _ = timeout(wake_timeout, self.wake.notified()) => {}
                () = self.access.cancelled() => {
                    self.access.fail(FinishReason::Cancelled.name());
                    return Err(ApiError::cancelled());
                }
                () = self.phase.reached(Phase::Cut) => {
                    self.access.fail(FinishReason::Shutdown.name());
                    return Err(ApiError::cut());
                }
            }
        }
    }

    /// Gives the answer up once it cannot meet a time limit.
    fn check_limits(&self) -> Result<(), ApiError> {
        if !self.limits.is_any() {
            return Ok(());
        }
        let times = self.live.row().map(|(row, elapsed_s)| row.times(elapsed_s));
        let (first, last) = times.unwrap_or_default();
        let first = (self.tokens == 0).then_some(first);
        match self.limits.missed(self.access.arrival, first, last) {
            None => Ok(()),
            Some(error) => {
                self.access.fail("deadline");
                Err(error)
            }
        }
    }

    /// Takes the text that can be reported now, and the scored tokens whose text that is. Tokens
    /// whose text was cut off by a stop string are never reported.
    fn take_pending(&mut self) -> Delta {
        let rest = Delta {
            index: self.index,
            prompt_chars: self.pending.prompt_chars,
            token_ids: self.pending.token_ids.as_ref().map(|_| Vec::new()),
            ..Delta::default()
        };
        let mut delta = std::mem::replace(&mut self.pending, rest);
        delta.progress = self.progress.then(|| match delta.finish {
            Some(_) => Progress::ENDED,
            None => self.live.progress(self.tokens),
        });
        let (sent, ended) = (self.sent_chars, delta.finish == Some(FinishReason::Length.name()));
        if let Some(scored) = &mut delta.scored {
            let is_sent = |token: &Scored| ended || token.is_end || token.offset < sent;
            let unsent = scored.iter().position(|token| !is_sent(token)).unwrap_or(scored.len());
            self.pending.scored = Some(scored.split_off(unsent));
        }
        delta
    }

    /// Drains the events that have arrived.
    fn take_events(&mut self) -> Result<(), ApiError> {
        while let Some(event) = self.handle.as_ref().and_then(RequestHandle::try_recv) {
            match event {
                Event::PromptToken { logprob, rank, .. } => {
                    if let Some(prompt) = &mut self.prompt {
                        prompt.scores.token(logprob, rank);
                    }
                    self.report_prompt();
                }
                Event::Alternative { id, logprob } => match (&mut self.prompt, &mut self.scorer) {
                    (Some(prompt), _) => prompt.scores.alternative(id, logprob),
                    (None, Some(scorer)) => scorer.alternative(id, logprob),
                    (None, None) => {}
                },
                Event::Token { id, logprob } => self.take_token(id, logprob),
                Event::Finished { reason } => self.take_end(reason)?,
                Event::Prediction { generated, remaining } => {
                    self.live.predict(generated, remaining);
                }
                Event::Preempted { .. } => {}
            }
        }
        Ok(())
    }

    /// Reports the prompt once all of it is there.
    fn report_prompt(&mut self) {
        if let Some(prompt) = self.prompt.take_if(|prompt| prompt.is_complete()) {
            prompt.finish(&mut self.pending);
        }
    }

    fn take_token(&mut self, id: u32, logprob: f32) {
        let handle = self.handle.as_ref();
        self.watch.token(|| handle.and_then(RequestHandle::started));
        self.access.token();
        if let Some(handle) = self.handle.as_ref().filter(|_| self.is_first && self.tokens == 0) {
            self.pending.cached_tokens = handle.cached_tokens();
        }
        if self.tokens == 0 {
            self.live.begin();
        }
        self.pending.tokens += 1;
        self.tokens += 1;
        if let Some(ids) = &mut self.pending.token_ids {
            ids.push(id);
        }
        let is_end = self.answer.is_end(id);
        if let (Some(scorer), Some(scored), true) =
            (&mut self.scorer, &mut self.pending.scored, self.scores_end || !is_end)
        {
            let mut token = scorer.token(id, logprob, self.answer.decoded_chars());
            token.is_end = is_end;
            scored.push(token);
        }
        let step = self.answer.push(id);
        let was_reasoning = self.is_reasoning();
        self.append(&step.emit);
        self.pending.reasoning_tokens += u32::from(was_reasoning || self.is_reasoning());
        if step.stopped {
            self.end(FinishReason::Stop);
        }
    }

    fn append(&mut self, text: &str) {
        self.sent_chars += text.chars().count();
        match &mut self.parser {
            Some(parser) => parser.push(text, &mut self.pending),
            None => self.pending.text.push_str(text),
        }
    }

    fn is_reasoning(&self) -> bool {
        self.parser.as_ref().is_some_and(AnswerParser::is_reasoning)
    }

    fn take_end(&mut self, reason: FinishReason) -> Result<(), ApiError> {
        if !matches!(reason, FinishReason::Stop | FinishReason::Length) {
            self.access.fail(reason.name());
            return Err(match reason {
                FinishReason::Error => ApiError::non_finite(),
                FinishReason::Constraint => {
                    let handle = self.handle.as_ref();
                    ApiError::constraint(handle.and_then(RequestHandle::constraint_fault))
                }
                FinishReason::Overloaded => ApiError::overloaded().after(self.model.next_end_s()),
                _ => ApiError::interrupted(),
            });
        }
        let step = self.answer.finish();
        self.append(&step.emit);
        self.end(if step.stopped { FinishReason::Stop } else { reason });
        Ok(())
    }

    /// Completes the answer and drops the handle, which cancels the request if it still runs.
    fn end(&mut self, reason: FinishReason) {
        if let Some(handle) = self.handle.take() {
            // The engine may have gone on behind a stop string.
            self.pending.accepted_tokens = handle.accepted_tokens().min(self.tokens);
        }
        let mut finish = reason.name();
        if let Some(parser) = &mut self.parser {
            parser.finish(&mut self.pending);
            if parser.has_calls() && reason == FinishReason::Stop {
                finish = TOOL_CALLS;
            }
        }
        self.pending.finish = Some(finish);
        self.pending.stop = self.answer.stop().map(str::to_owned);
        self.live.end(self.tokens);
        self.watch.end(reason.name());
    }
}

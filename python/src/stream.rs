//! One answer, as it is generated.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use trail_cli::Answer;
use trail_runtime::engine::{Event, FinishReason, NonFiniteLogits, RequestHandle};

use crate::error;
use crate::forecasts::{Progress, Watched};
use crate::process_model::ProcessModel;

/// Time between two looks for signals.
const SIGNALS: Duration = Duration::from_millis(100);

/// The string or the token that ended an answer.
#[derive(Clone, IntoPyObjectRef)]
pub(crate) enum StopReason {
    Text(String),
    Token(u32),
}

/// A part of an answer: all so far, or what is new.
#[pyclass(frozen, get_all, module = "trail_rt._native")]
pub(crate) struct Part {
    text: String,
    token_ids: Vec<u32>,
    cumulative_logprob: f64,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
    num_cached_tokens: u32,
    num_preemptions: u32,
    predicted_length: Option<f32>,
    predicted_remaining: Option<f32>,
    remaining_interval: Option<(f32, f32)>,
    eta: Option<f64>,
    eta_interval: Option<(f64, f64)>,
}

/// An answer so far.
struct State {
    answer: Answer,
    watched: Watched,
    text: String,
    tokens: Vec<u32>,
    logprob: f64,
    preemptions: u32,
    predicted_length: Option<f32>,
    /// Bytes of text and number of tokens that were taken.
    taken: (usize, usize),
}

/// One answer, as it is generated.
#[pyclass(frozen, module = "trail_rt._native")]
pub(crate) struct Stream {
    /// The number that a waker calls it by.
    #[pyo3(get)]
    number: u64,
    is_queued: Arc<AtomicBool>,
    model: Arc<ProcessModel>,
    stop_tokens: Vec<u32>,
    /// Apart from the state, which a thread that waits holds.
    handle: Arc<RequestHandle>,
    state: Mutex<State>,
}

impl State {
    /// Takes in the events of at most `limit`, until the end. True if there is something new.
    fn run(&mut self, limit: Duration, all: bool) -> bool {
        let begin = Instant::now();
        let mut is_new = false;
        loop {
            let wait = match is_new && !all {
                true => Duration::ZERO,
                false => limit.saturating_sub(begin.elapsed()),
            };
            let Some((event, piece)) = self.answer.next(wait) else { return is_new };
            self.text.push_str(&piece);
            is_new |= !piece.is_empty();
            match event {
                Event::Token { id, logprob } => {
                    if self.tokens.is_empty() {
                        self.watched.begin();
                    }
                    self.tokens.push(id);
                    self.logprob += f64::from(logprob);
                    is_new = true;
                }
                Event::Prediction { generated, remaining } => {
                    self.predicted_length.get_or_insert(generated as f32 + remaining);
                }
                Event::Preempted { times, .. } => self.preemptions += times,
                Event::Finished { reason } => {
                    let is_whole = matches!(reason, FinishReason::Stop | FinishReason::Length);
                    self.watched.end(is_whole, self.tokens.len() as u32);
                    return true;
                }
                Event::PromptToken { .. } | Event::Alternative { .. } => {}
            }
        }
    }
}

impl Stream {
    pub(crate) fn new(
        number: u64,
        is_queued: Arc<AtomicBool>,
        model: Arc<ProcessModel>,
        answer: Answer,
        watched: Watched,
        stop_tokens: Vec<u32>,
    ) -> Stream {
        let handle = answer.handle().clone();
        let state = Mutex::new(State {
            predicted_length: answer.handle().initial_prediction(),
            answer,
            watched,
            text: String::new(),
            tokens: Vec::new(),
            logprob: 0.0,
            preemptions: 0,
            taken: (0, 0),
        });
        Stream { number, is_queued, model, stop_tokens, handle, state }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the end, as vLLM has it; an error if the engine is at fault.
    fn finish_name(&self, reason: FinishReason) -> PyResult<&'static str> {
        let fault = || self.model.engine().fault().map(|fault| fault.to_string());
        match reason {
            FinishReason::Stop => Ok("stop"),
            FinishReason::Length => Ok("length"),
            FinishReason::Cancelled => Ok("abort"),
            FinishReason::Error => Err(error::engine(NonFiniteLogits)),
            FinishReason::Overloaded => {
                Err(error::engine("the engine is full, and all others rank before: retry later"))
            }
            FinishReason::Shutdown | FinishReason::Failed | FinishReason::Constraint => {
                Err(error::engine(fault().unwrap_or_else(|| "the engine has stopped".into())))
            }
        }
    }

    fn stop_reason(&self, state: &State) -> Option<StopReason> {
        if let Some(stop) = state.answer.stop() {
            return Some(StopReason::Text(stop.into()));
        }
        let last = state.tokens.last().filter(|last| self.stop_tokens.contains(last));
        let ended = state.answer.finished() == Some(FinishReason::Stop);
        last.filter(|_| ended).map(|&id| StopReason::Token(id))
    }
}

#[pymethods]
impl Stream {
    /// Takes in the events that are there. True if there is something new to take.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        self.model.check_process()?;
        // Before the events: one that arrives meanwhile wakes again, and what the last one wrote is
        // seen.
        self.is_queued.swap(false, Ordering::AcqRel);
        Ok(py.detach(|| self.lock().run(Duration::ZERO, false)))
    }

    /// Waits for something new to take: the whole answer if `all`. Signals are heard.
    fn wait(&self, py: Python<'_>, all: bool) -> PyResult<()> {
        self.model.check_process()?;
        loop {
            let ended = py.detach(|| {
                let mut state = self.lock();
                let is_new = state.run(SIGNALS, all);
                state.answer.finished().is_some() || (is_new && !all)
            });
            py.check_signals()?;
            if ended {
                return Ok(());
            }
        }
    }

    /// The answer so far, or with `delta` its part since the last call.
    fn take(&self, py: Python<'_>, delta: bool) -> PyResult<Part> {
        py.detach(|| {
            let mut state = self.lock();
            let finished = state.answer.finished();
            let finish_reason = finished.map(|reason| self.finish_name(reason)).transpose()?;
            let (text, tokens) = if delta { state.taken } else { (0, 0) };
            state.taken = (state.text.len(), state.tokens.len());
            let progress = match finished {
                Some(_) => Progress::default(),
                None => state.watched.progress(state.tokens.len() as u32),
            };
            Ok(Part {
                text: state.text[text..].to_owned(),
                token_ids: state.tokens[tokens..].to_vec(),
                cumulative_logprob: state.logprob,
                finish_reason,
                stop_reason: self.stop_reason(&state),
                num_cached_tokens: state.answer.handle().cached_tokens(),
                num_preemptions: state.preemptions,
                predicted_length: state.predicted_length,
                predicted_remaining: progress.remaining,
                remaining_interval: progress.interval,
                eta: progress.eta,
                eta_interval: progress.eta_interval,
            })
        })
    }

    /// True once the last event was taken in.
    #[getter]
    fn finished(&self, py: Python<'_>) -> bool {
        py.detach(|| self.lock().answer.finished().is_some())
    }

    /// Ends the answer where it is.
    fn abort(&self) {
        self.handle.cancel();
    }
}

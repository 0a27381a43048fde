//! Lengths of answers: predicted from prompts, by a predictor that is trained on the answers that
//! have passed through.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trail_cli::{Error, notice};
use trail_platform::kendall::kendall_tau_b;
use trail_probe::Predictor;
use trail_probe::file::Storage;

use super::features::Features;
use crate::process_limits::lower_thread_priority;

/// An answer to learn from: the inputs of its prompt that are not zero, with their indices, and its
/// output tokens.
pub type Example = (Vec<(u32, f64)>, u32);

/// Trains a predictor of [`features`](super::prompt_features) on answers; `None` if they do not
/// tell short ones from long ones.
pub type Train = dyn Fn(&[Example]) -> Option<Predictor> + Send + Sync;

/// Fewest answers to train on.
const FEWEST: u64 = 64;
/// Most answers between two trainings.
const INTERVAL: u64 = 1024;
/// Most answers that are kept, the last ones, and most inputs of their prompts: 16 bytes each.
const KEPT: usize = 8192;
const KEPT_INPUTS: usize = 1 << 21;

/// Predictions that are compared with what came.
const WINDOW: usize = 128;
/// Predictions before which a predictor is believed as it was trained.
const FEWEST_JUDGED: usize = 32;
/// Kendall's tau above which predictions order requests, where they did not before: 1.7 standard
/// errors of tau over a window where nothing is correlated.
const REGAIN: f64 = 0.1;

/// Name of these features in the file of a predictor.
const FINGERPRINT: &str = "words of prompts, by trail-rt proxy";
/// Member of such a file: the answers that it was trained on.
const ANSWERS: &str = "answers";

/// Nice value of the thread that trains: answers come first.
const NICE: i32 = 10;

/// The predictor and what it learns from.
pub(super) struct Lengths {
    train: Arc<Train>,
    file: Option<PathBuf>,
    state: Mutex<State>,
}

struct State {
    predictor: Option<Arc<Predictor>>,
    examples: VecDeque<Example>,
    /// Inputs of all examples.
    inputs: usize,
    /// Answers since the start.
    answers: u64,
    /// The number of answers at which the next training is due.
    due: u64,
    /// Sum of their tokens.
    tokens: f64,
    /// The last predictions, and the tokens that came.
    judged: VecDeque<(f64, f64)>,
    standing: Standing,
}

/// How good the last predictions were.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Standing {
    /// True if requests are ordered by predictions.
    pub trusted: bool,
    /// Kendall's tau-b of the last predictions and the tokens that came; 0 without any.
    pub tau: f64,
    /// Mean absolute error of the last predictions, tokens.
    pub mae: f64,
}

/// A prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Predicted {
    /// Expected output tokens; `None` before the first answer.
    pub tokens: Option<f32>,
    /// The length that requests are ranked by: at the place among the last answers that the
    /// expectation has among their expectations.
    pub rank_tokens: Option<f32>,
    /// True if it is of a trained predictor, not the mean of all answers.
    pub by_prompt: bool,
}

impl Lengths {
    /// Lengths learned by `train`. The predictor is read from `file` if it is there, and written to
    /// it whenever it was trained.
    pub(super) fn open(train: Arc<Train>, file: Option<PathBuf>) -> Result<Lengths, Error> {
        let predictor = match &file {
            Some(path) if path.metadata().is_ok_and(|file| file.len() == 0) => {
                notice(format_args!("{} is empty: nothing is learned yet", path.display()));
                None
            }
            Some(path) if path.exists() => Some(Arc::new(read(path)?)),
            // An error now, not after the first training.
            Some(path) => write(path, &[])
                .and_then(|()| std::fs::remove_file(path).map_err(|error| unwritable(path, &error)))
                .map(|()| None)?,
            None => None,
        };
        let learned = predictor.as_ref().and_then(|of| of.record.get(ANSWERS)?.parse::<u64>().ok());
        let due = learned.unwrap_or(FEWEST).clamp(FEWEST, INTERVAL);
        let standing = Standing { trusted: predictor.is_some(), ..Standing::default() };
        let state = State {
            predictor,
            examples: VecDeque::new(),
            inputs: 0,
            answers: 0,
            due,
            tokens: 0.0,
            judged: VecDeque::with_capacity(WINDOW),
            standing,
        };
        Ok(Lengths { train, file, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The length of an answer of at most `limit` tokens to a prompt with these features.
    pub(super) fn predict(&self, features: &Features, limit: Option<u32>) -> Predicted {
        let state = self.state();
        let (predictor, answers) = (state.predictor.clone(), state.answers);
        let mean = (answers > 0).then(|| (state.tokens / answers as f64) as f32);
        drop(state);
        let by_prompt = predictor.is_some();
        let tokens = predictor.map(|of| of.of_features(&features.inputs()).mean()).or(mean);
        let limit = limit.map_or(f32::MAX, |limit| limit as f32);
        let limited = |tokens: f32| tokens.min(limit).max(1.0);
        // As the expectations that were judged.
        let tokens = tokens.map(limited);
        let rank_tokens = tokens.map(|tokens| limited(self.state().spread(tokens)));
        Predicted { tokens, rank_tokens, by_prompt }
    }

    /// Takes in an answer of `tokens` to a prompt with these features, for which `predicted` was
    /// expected.
    pub(super) fn learn(self: &Arc<Self>, features: &Features, predicted: Predicted, tokens: u32) {
        let mut state = self.state();
        state.answers += 1;
        state.tokens += f64::from(tokens);
        state.keep((features.inputs(), tokens));
        if let Some(expected) = predicted.tokens.filter(|_| predicted.by_prompt) {
            state.judge(f64::from(expected), f64::from(tokens));
        }
        if state.answers >= state.due {
            state.due = u64::MAX;
            let examples: Vec<Example> = state.examples.iter().cloned().collect();
            drop(state);
            self.clone().train(examples);
        }
    }

    /// How good the predictions are.
    pub(super) fn standing(&self) -> Standing {
        self.state().standing
    }

    /// Trains on a separate thread.
    fn train(self: Arc<Self>, examples: Vec<Example>) {
        let lengths = self.clone();
        let train = move || {
            lower_thread_priority(NICE);
            let trained = (lengths.train)(&examples).map(|mut predictor| {
                predictor.model = Some(FINGERPRINT.to_owned());
                predictor.record.insert(ANSWERS.to_owned(), examples.len().to_string());
                predictor
            });
            if let (Some(predictor), Some(path)) = (&trained, &lengths.file)
                && let Err(error) = write(path, &predictor.to_bytes(Storage::Bf16))
            {
                notice(format_args!("warning: {error}"));
            }
            lengths.trained(trained);
        };
        let thread = std::thread::Builder::new().name("trail-train".into());
        if let Err(error) = thread.spawn(train) {
            notice(format_args!("warning: cannot start a thread to train: {error}"));
            self.trained(None);
        }
    }

    fn trained(&self, predictor: Option<Predictor>) {
        let mut state = self.state();
        state.due = state.answers + state.answers.clamp(FEWEST, INTERVAL);
        let Some(predictor) = predictor else { return };
        if state.predictor.is_none() {
            state.standing.trusted = true;
        }
        let answers = state.examples.len();
        state.predictor = Some(Arc::new(predictor));
        notice(format_args!("the length predictor was trained on {answers} answers"));
    }
}

impl State {
    /// The length whose place among the last lengths is that of `expected` among their
    /// expectations. These differ less than lengths do, the less the poorer they are, so that
    /// hardly any would be below a share of the mean ([`trail_scheduler::policies::Ranking`]).
    fn spread(&self, expected: f32) -> f32 {
        if self.judged.len() < FEWEST_JUDGED {
            return expected;
        }
        let below = self.judged.iter().filter(|(of, _)| *of < f64::from(expected)).count();
        let mut lengths: Vec<f64> = self.judged.iter().map(|(_, tokens)| *tokens).collect();
        lengths.sort_by(f64::total_cmp);
        lengths[below.min(lengths.len() - 1)] as f32
    }

    /// Keeps an answer to learn from, and as many of those before as there is room for.
    fn keep(&mut self, example: Example) {
        self.inputs += example.0.len();
        self.examples.push_back(example);
        while self.examples.len() > KEPT || self.inputs > KEPT_INPUTS {
            let Some((inputs, _)) = self.examples.pop_front() else { return };
            self.inputs -= inputs.len();
        }
    }

    fn judge(&mut self, predicted: f64, tokens: f64) {
        if self.judged.len() == WINDOW {
            self.judged.pop_front();
        }
        self.judged.push_back((predicted, tokens));
        let pairs = self.judged.make_contiguous();
        let Standing { trusted, .. } = self.standing;
        let tau = kendall_tau_b(pairs);
        let tau = if tau.is_finite() { tau } else { 0.0 };
        let errors = pairs.iter().map(|(predicted, tokens)| (predicted - tokens).abs());
        let mae = errors.sum::<f64>() / pairs.len() as f64;
        let is_known = pairs.len() >= FEWEST_JUDGED;
        let trusted = if is_known { tau > if trusted { 0.0 } else { REGAIN } } else { trusted };
        self.standing = Standing { trusted, tau, mae };
    }
}

/// Reads a predictor that an earlier run wrote.
fn read(path: &Path) -> Result<Predictor, Error> {
    let predictor = Predictor::open(path).map_err(|error| Error::usage(error.to_string()))?;
    if predictor.model.as_deref() != Some(FINGERPRINT) || *predictor.features() != Features::kind()
    {
        return Err(Error::usage(format!(
            "{} is a predictor over a model's tokens, which the proxy does not see: name a file \
             that an earlier proxy wrote, or a new one",
            path.display()
        )));
    }
    Ok(predictor)
}

fn unwritable(path: &Path, error: &std::io::Error) -> Error {
    Error::failed(format!("cannot write {}: {error}; choose another path", path.display()))
}

/// Replaces the file in one step: a killed process leaves the old one.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let written = std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|error| unwritable(path, &error))
}

#[cfg(test)]
mod tests;

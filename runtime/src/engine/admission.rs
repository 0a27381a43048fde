//! The check of a request before it enters the engine, and the errors of submission.

use std::fmt;

use trail_scheduler::{NewRequest, Refusal, SchedulerConfig};

use super::request::Request;
use crate::backend::{Backend, Fault};
use crate::model::{Model, ModelConfig};
use crate::sampling;

/// Treatment of a request beyond the most that the engine holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It is refused on submission.
    #[default]
    Reject,
    /// It enters, and the worst ranked request that never ran, perhaps itself, ends with
    /// [`super::FinishReason::Overloaded`]. So a queue full of long requests does not turn short
    /// ones away. Refused are only requests that arrive within one step beyond an eighth more.
    Shed,
}

impl WhenFull {
    /// Requests that the engine has room for, where `max_requests` stay.
    pub(super) fn capacity(self, max_requests: usize) -> usize {
        match self {
            WhenFull::Reject => max_requests,
            WhenFull::Shed => max_requests + max_requests.div_ceil(8),
        }
    }
}

/// Default of [`QueueConfig::max_requests`].
pub const DEFAULT_MAX_REQUESTS: usize = 4096;

/// Default of [`QueueConfig::max_bytes`]: 512 MiB.
pub const DEFAULT_MAX_QUEUE_BYTES: u64 = 512 << 20;

/// Bounds on the requests in the engine at once, running and waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Number of requests.
    pub max_requests: usize,
    /// Bytes of their prompts and other parameters. Memory of answers is not counted: a request
    /// reserves it when it first runs.
    pub max_bytes: u64,
    /// Treatment of a request beyond `max_requests`.
    pub when_full: WhenFull,
}

impl Default for QueueConfig {
    fn default() -> Self {
        QueueConfig {
            max_requests: DEFAULT_MAX_REQUESTS,
            max_bytes: DEFAULT_MAX_QUEUE_BYTES,
            when_full: WhenFull::default(),
        }
    }
}

/// The reason for which a request was not accepted: one line, with what to do.
#[derive(Clone, Debug, PartialEq)]
pub enum SubmitError {
    /// It cannot run at its size: the scheduler's check.
    Refused(Refusal),
    /// A sampling parameter is out of range.
    Sampling(String),
    /// The constraint allows no token, is beyond its limits, or the device keeps to none.
    Constraint(String),
    /// The adapter is of another model, or the device computes none.
    Adapter(String),
    /// Log-probabilities of the prompt were requested of a backend that has none.
    PromptLogprobs,
    /// A prompt token is outside the vocabulary.
    UnknownToken {
        /// The token id.
        id: u32,
        /// Tokens of the vocabulary.
        vocab_size: usize,
    },
    /// `forced_length` is not between 1 and `max_tokens`.
    ForcedLength {
        /// The length that was asked for, tokens.
        length: u32,
        /// The request's `max_tokens`.
        max_tokens: u32,
    },
    /// The engine holds as many requests as it can: try again later.
    Full {
        /// Requests that fit in the engine at once.
        max_requests: u32,
    },
    /// The requests in the engine hold as many bytes as they may: try again later.
    FullBytes {
        /// Bytes that all requests in the engine may hold.
        max_bytes: u64,
    },
    /// The request alone exceeds that limit.
    TooLarge {
        /// Bytes of the request.
        bytes: u64,
        /// Bytes that all requests in the engine may hold.
        max_bytes: u64,
    },
    /// The engine broke down and must be rebuilt.
    Failed(Fault),
}

impl SubmitError {
    /// True if the request itself is at fault, so that a retry is of no use.
    pub fn is_invalid(&self) -> bool {
        !self.is_full() && !matches!(self, SubmitError::Failed(_))
    }

    /// True if the engine is full, so that a later retry may succeed.
    pub fn is_full(&self) -> bool {
        matches!(self, SubmitError::Full { .. } | SubmitError::FullBytes { .. })
    }
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SubmitError::Refused(refusal) => refusal.fmt(f),
            SubmitError::Sampling(why)
            | SubmitError::Constraint(why)
            | SubmitError::Adapter(why) => f.write_str(why),
            SubmitError::PromptLogprobs => f.write_str(
                "log-probabilities of a prompt are computed on the CPU alone: \
                 serve with --device cpu, or ask for none",
            ),
            SubmitError::UnknownToken { id, vocab_size } => {
                write!(f, "prompt token {id} is not in the vocabulary of {vocab_size} tokens")
            }
            SubmitError::ForcedLength { length, max_tokens } => {
                write!(f, "forced_length is {length}: ask for 1 to max_tokens ({max_tokens})")
            }
            SubmitError::Full { max_requests } => {
                write!(f, "{max_requests} requests are waiting or running already: try again later")
            }
            SubmitError::FullBytes { max_bytes } => {
                let mib = max_bytes >> 20;
                write!(
                    f,
                    "the waiting and running requests fill the queue's {mib} MiB: try again later"
                )
            }
            SubmitError::TooLarge { bytes, max_bytes } => {
                write!(f, "the request takes {bytes} bytes, the queue holds {max_bytes} in all")
            }
            SubmitError::Failed(fault) => write!(f, "the engine broke down: {fault}"),
        }
    }
}

impl std::error::Error for SubmitError {}

/// The limits that a request must keep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admission {
    /// The scheduler's configuration, which it checks again on its own thread.
    pub(super) scheduler: SchedulerConfig,
    pub(super) vocab_size: usize,
    /// True if the backend keeps to the masks of constraints.
    pub(super) takes_masks: bool,
    /// True if it adds `logit_bias` to logits.
    pub(super) takes_bias: bool,
    /// True if it computes adapters.
    pub(super) takes_adapters: bool,
    /// The backend scores prompts.
    pub(super) scores: bool,
}

impl Admission {
    pub(super) fn new(scheduler: SchedulerConfig, model: &Model, backend: &dyn Backend) -> Self {
        Admission {
            scheduler,
            vocab_size: model.config.vocab_size,
            takes_masks: backend.takes_masks(),
            takes_bias: backend.takes_bias(),
            takes_adapters: backend.takes_adapters(),
            scores: backend.scores().is_some(),
        }
    }

    /// Checks `request`, which is `new` in the scheduler's terms, for a model of `config`.
    pub(super) fn check(
        &self,
        request: &Request,
        new: &NewRequest,
        config: &ModelConfig,
    ) -> Result<(), SubmitError> {
        sampling::validate(&request.sampling).map_err(SubmitError::Sampling)?;
        if request.sampling.prompt_logprobs.is_some() && !self.scores {
            return Err(SubmitError::PromptLogprobs);
        }
        self.scheduler.admit(new).map_err(SubmitError::Refused)?;
        if request.constraint.is_some() && !self.takes_masks {
            let why = "this device keeps to no constraints: leave them out";
            return Err(SubmitError::Constraint(why.into()));
        }
        if !request.sampling.logit_bias.is_empty() && !self.takes_bias {
            let why = "logit_bias is kept by the CPU backend alone: leave it out, or serve with \
                       --device cpu";
            return Err(SubmitError::Sampling(why.into()));
        }
        self.check_adapter(request, config)?;
        let max_tokens = request.max_tokens;
        if let Some(length) = request.forced_length.filter(|n| !(1..=max_tokens).contains(n)) {
            return Err(SubmitError::ForcedLength { length, max_tokens });
        }
        let vocab_size = self.vocab_size;
        let mut biased = request.sampling.logit_bias.iter();
        if let Some((id, _)) = biased.find(|(id, _)| *id as usize >= vocab_size) {
            let why = format!("logit_bias names token {id}, the vocabulary has {vocab_size}");
            return Err(SubmitError::Sampling(why));
        }
        match request.prompt.iter().find(|&&id| id as usize >= vocab_size) {
            Some(&id) => Err(SubmitError::UnknownToken { id, vocab_size }),
            None => Ok(()),
        }
    }

    fn check_adapter(&self, request: &Request, config: &ModelConfig) -> Result<(), SubmitError> {
        let Some(adapter) = &request.adapter else { return Ok(()) };
        let why = if !self.takes_adapters {
            "adapters are computed on the CPU alone: serve with --device cpu, or ask for the model \
             without one"
        } else if !adapter.fits(config) {
            "the adapter is of another base model: load it for this one"
        } else {
            return Ok(());
        };
        Err(SubmitError::Adapter(why.into()))
    }
}

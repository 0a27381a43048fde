//! The engine: takes requests, schedules, runs the model, samples, sends tokens.
//!
//! One thread owns everything that a step touches ([`core`]); callers reach it through lock-free
//! doors and hear back through a channel per request. No async runtime: it links into any program.

mod assemble;
mod backend;
mod builder;
mod comings;
mod core;
mod device;
mod doors;
mod event;
mod flight;
mod forecast;
mod handle;
mod host;
mod moves;
mod observe;
mod pace;
mod policy;
mod request;
pub mod sampling;
mod slot;
mod stats;
mod tap;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use trail_probe::Predictor;

pub use backend::{Backend, Choice, Choices, Fault, Step, Transfers};
pub use builder::{BuildError, DEFAULT_MAX_REQUESTS, EngineBuilder};
pub use device::{ComputeDevice, CudaSettings, ProbeDevice};
pub use event::{Event, FinishReason};
pub use forecast::{Forecast, HostTap, Smoothed};
pub use handle::RequestHandle;
pub use policy::{DEFAULT_C, Needs, PolicyKind};
pub use request::{Request, SamplingParams};
pub use stats::{SLACK_BOUNDS_US, Stats};
pub use tap::{MeanRun, TapPlan, TapReceiver, TapRow, Tenant};

use crate::batch::BLOCK_TOKENS;
use crate::model::Model;
use doors::Doors;
use handle::Ticket;
use slot::Active;
use stats::Counters;

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The request itself cannot be served: the reason, in one line.
    Invalid(String),
    /// The engine has its fill: try again later.
    Full {
        /// Requests that fit in the engine at once.
        max_requests: u32,
    },
    /// The engine broke down: what went wrong. It must be built anew.
    Failed(Fault),
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SubmitError::Invalid(why) => f.write_str(why),
            SubmitError::Failed(fault) => write!(f, "the engine broke down: {fault}"),
            SubmitError::Full { max_requests } => {
                write!(f, "{max_requests} requests are waiting or running already: try again later")
            }
        }
    }
}

impl std::error::Error for SubmitError {}

/// A running engine. Dropping it ends every request with [`FinishReason::Shutdown`].
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::{path::Path, sync::Arc};
/// use trail_runtime::engine::{Engine, Event, Request};
/// use trail_runtime::model::Model;
/// let model = Arc::new(Model::load(Path::new("assets/demo"))?);
/// let engine = Engine::builder().model(model).build()?;
/// for event in engine.submit(Request::new(vec![1, 2, 3], 16))? {
///     if let Event::Token { id, .. } = event {
///         println!("{id}");
///     }
/// }
/// # Ok(()) }
/// ```
pub struct Engine {
    model: Arc<Model>,
    predictor: Option<Predictor>,
    policy: PolicyKind,
    device: String,
    slots: usize,
    kv_blocks: usize,
    doors: Arc<Doors>,
    counters: Arc<Counters>,
    start: Instant,
    next_id: AtomicU64,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// An engine to be put together.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// Hands a request in. Refused at once: what can never be served, and what finds the engine full.
    pub fn submit(&self, request: Request) -> Result<RequestHandle, SubmitError> {
        self.check(&request).map_err(SubmitError::Invalid)?;
        if let Some(fault) = self.fault() {
            return Err(SubmitError::Failed(fault.clone()));
        }
        let predict = || Some(self.predictor.as_ref()?.predict(&request.prompt));
        let initial = request.initial_prediction.or_else(predict);
        // An answer is cut at max_tokens, whatever the predictor thinks.
        let initial = initial.map(|tokens| tokens.clamp(1.0, request.max_tokens as f32));
        let (sender, events) = crossbeam_channel::bounded(Active::event_capacity(&request));
        let ticket = Arc::new(Ticket::new());
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let arrival_s = self.start.elapsed().as_secs_f64();
        let active = Active::new(id, request, initial, arrival_s, ticket.clone(), sender);
        match self.doors.submit(Box::new(active)) {
            Ok(()) => Ok(RequestHandle { id, events, ticket, doors: self.doors.clone() }),
            Err(_) => Err(SubmitError::Full { max_requests: self.doors.max_requests() }),
        }
    }

    /// What can be said of a request without running it.
    fn check(&self, request: &Request) -> Result<(), String> {
        let config = &self.model.config;
        sampling::validate(&request.sampling)?;
        if request.prompt.is_empty() {
            return Err("the prompt is empty: give at least one token".into());
        }
        if request.max_tokens == 0 {
            return Err("max_tokens is 0: ask for at least one token".into());
        }
        if let Some(length) =
            request.forced_length.filter(|n| !(1..=request.max_tokens).contains(n))
        {
            return Err(format!(
                "forced_length is {length}: ask for 1 to max_tokens ({})",
                request.max_tokens
            ));
        }
        if let Some(id) = request.prompt.iter().find(|&&id| id as usize >= config.vocab_size) {
            return Err(format!(
                "prompt token {id} is not in the vocabulary of {} tokens",
                config.vocab_size
            ));
        }
        let total = request.prompt.len() as u64 + u64::from(request.max_tokens);
        if total > config.max_context as u64 {
            return Err(format!(
                "prompt ({} tokens) plus max_tokens ({}) is {total}, the model's context {}: shorten the prompt or lower max_tokens",
                request.prompt.len(),
                request.max_tokens,
                config.max_context
            ));
        }
        let blocks = total.div_ceil(BLOCK_TOKENS as u64);
        if blocks > self.kv_blocks as u64 {
            return Err(format!(
                "the request needs {blocks} KV blocks, the cache has {}: lower max_tokens or raise --kv-blocks",
                self.kv_blocks
            ));
        }
        Ok(())
    }

    /// The model that is served.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The policy that ranks.
    pub fn policy(&self) -> PolicyKind {
        self.policy
    }

    /// What runs the model, in words.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Sequences in one forward pass.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// KV blocks of 16 tokens in the cache.
    pub fn kv_blocks(&self) -> usize {
        self.kv_blocks
    }

    /// What the engine has counted so far.
    pub fn stats(&self) -> Stats {
        self.counters.snapshot(self.kv_blocks as u64)
    }

    /// What broke the engine, if something did: every request then ended, or ends, with [`FinishReason::Failed`].
    pub fn fault(&self) -> Option<&Fault> {
        self.doors.fault()
    }

    /// Requests submitted and not finished.
    pub fn live(&self) -> u32 {
        self.doors.live()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.doors.stop();
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the panic hook; the handles say Shutdown.
            let _ = thread.join();
        }
    }
}

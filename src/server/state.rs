//! State shared by all requests.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State;
use trail_runtime::backend::BLOCK_TOKENS;
use trail_runtime::engine::Engine;
use trail_runtime::text::{ChatTemplate, Tokenizer};
use trail_setup::{Error, Setup};

use super::error::ApiError;
use super::intake::Intake;
use super::lifecycle::{Lifecycle, Phase};
use super::metrics::Metrics;
use super::timeouts::Timeouts;

/// The served model, its engine, and the server's own records.
pub struct ServerState {
    /// Name of the served model.
    pub name: String,
    /// Start of the server, seconds since 1970.
    pub created: u64,
    /// Engine that runs the requests.
    pub engine: Engine,
    /// Tokenizer of the model.
    pub tokenizer: Arc<Tokenizer>,
    /// Chat template of the model.
    pub template: ChatTemplate,
    /// Metrics of the server.
    pub metrics: Metrics,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Phase of the server.
    pub lifecycle: Lifecycle,
    /// Bounds on bodies that are read, parsed and tokenized at once.
    pub intake: Arc<Intake>,
    /// Tokens that a request has room for: the context, or the KV cache if that is smaller.
    capacity: usize,
    /// Bytes that a text of `capacity` tokens cannot exceed.
    max_text_bytes: usize,
}

/// The state as handlers receive it.
pub type Shared = State<Arc<ServerState>>;

impl ServerState {
    /// Creates the state of a server that accepts requests.
    pub fn new(setup: Setup, engine: Engine, timeouts: Timeouts) -> Result<Self, Error> {
        let tokenizer = setup.tokenizer()?;
        let context = engine.model().config.max_context;
        let capacity = context.min(engine.kv_blocks() * BLOCK_TOKENS);
        Ok(ServerState {
            created: unix_time(),
            max_text_bytes: tokenizer.max_text_bytes(capacity),
            tokenizer,
            template: setup.template,
            name: setup.name,
            metrics: Metrics::new()?,
            timeouts,
            lifecycle: Lifecycle::new(),
            intake: Intake::new(trail_base::available_threads(), timeouts.body),
            capacity,
            engine,
        })
    }

    /// Returns an error if `text`, of the request's `field`, cannot fit the context whatever its
    /// tokens are: tokenizing it would be in vain, and take a hundred times its bytes.
    pub fn check_text(&self, field: &str, text: &str) -> Result<(), ApiError> {
        let (bytes, most, capacity) = (text.len(), self.max_text_bytes, self.capacity);
        if bytes <= most {
            return Ok(());
        }
        let message = format!(
            "this server has room for {capacity} tokens in a request, which have at most {most} bytes of text, and the prompt has {bytes}: shorten it"
        );
        Err(ApiError::too_long(field, message))
    }

    /// Returns an error while the server drains.
    pub fn check_open(&self) -> Result<(), ApiError> {
        match self.engine.fault() {
            Some(fault) => Err(ApiError::broken(fault)),
            None if self.lifecycle.phase() > Phase::Open => Err(ApiError::draining()),
            None => Ok(()),
        }
    }

    /// Returns an error if `name` is not the served model; a request without a name is accepted.
    pub fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            Some(name) if name != self.name => Err(ApiError::no_such_model(name, &self.name)),
            _ => Ok(()),
        }
    }
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    // A clock before 1970 is wrong; 0 is as good as any value.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `GET /health`: 200 while requests are accepted, 503 while the server drains or after an engine
/// failure.
pub async fn health(State(state): Shared) -> Result<&'static str, ApiError> {
    state.check_open()?;
    Ok("ok\n")
}

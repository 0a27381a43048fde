//! State shared by all requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State;
use trail_runtime::engine::Engine;
use trail_runtime::text::{ChatTemplate, Tokenizer};
use trail_setup::{Error, Setup};

use super::ServerOptions;
use super::error::ApiError;
use super::metrics::Metrics;

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
    /// Writes a line for each request to stderr.
    pub verbose: bool,
    /// Special tokens in messages of users and tools are control tokens.
    pub allow_special_tokens: bool,
    draining: AtomicBool,
}

/// The state as handlers receive it.
pub type Shared = State<Arc<ServerState>>;

impl ServerState {
    /// Creates the state of a server that accepts requests.
    pub fn new(setup: Setup, engine: Engine, options: ServerOptions) -> Result<Self, Error> {
        Ok(ServerState {
            created: unix_time(),
            tokenizer: setup.tokenizer()?,
            template: setup.template,
            name: setup.name,
            metrics: Metrics::new()?,
            verbose: options.verbose,
            allow_special_tokens: options.allow_special_tokens,
            draining: AtomicBool::new(false),
            engine,
        })
    }

    /// Rejects new requests from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Returns an error while the server drains.
    pub fn check_open(&self) -> Result<(), ApiError> {
        match self.engine.fault() {
            Some(fault) => Err(ApiError::broken(fault)),
            None if self.draining.load(Ordering::Acquire) => Err(ApiError::draining()),
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

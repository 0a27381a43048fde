//! What all requests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State;
use trail_runtime::engine::Engine;
use trail_runtime::text::{ChatTemplate, Tokenizer};
use trail_setup::{Error, Setup};

use super::error::ApiError;
use super::metrics::Metrics;

/// The served model, its engine, and the server's own records.
pub struct ServerState {
    /// What the model is called.
    pub name: String,
    /// When the server started, seconds since 1970.
    pub created: u64,
    /// The engine.
    pub engine: Engine,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Conversations to tokens.
    pub template: ChatTemplate,
    /// What the server measures.
    pub metrics: Metrics,
    draining: AtomicBool,
}

/// How handlers hold it.
pub type Shared = State<Arc<ServerState>>;

impl ServerState {
    /// The state of a server that is about to start.
    pub fn new(setup: Setup, engine: Engine) -> Result<Self, Error> {
        Ok(ServerState {
            created: unix_time(),
            tokenizer: setup.tokenizer()?,
            template: setup.template,
            name: setup.name,
            metrics: Metrics::new()?,
            draining: AtomicBool::new(false),
            engine,
        })
    }

    /// From now on nothing new is taken.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Refuses while the server drains.
    pub fn check_open(&self) -> Result<(), ApiError> {
        match self.engine.fault() {
            Some(fault) => Err(ApiError::broken(fault)),
            None if self.draining.load(Ordering::Acquire) => Err(ApiError::draining()),
            None => Ok(()),
        }
    }

    /// Refuses a model that is not the one served; a request that names none means this one.
    pub fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            Some(name) if name != self.name => Err(ApiError::no_such_model(name, &self.name)),
            _ => Ok(()),
        }
    }
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    // A clock set before 1970 is wrong anyway.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `GET /health`: 200 while requests are taken, 503 while the server drains, or once the engine broke down.
pub async fn health(State(state): Shared) -> Result<&'static str, ApiError> {
    state.check_open()?;
    Ok("ok\n")
}

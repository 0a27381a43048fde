//! The OpenAI-compatible HTTP server.
//!
//! A request's path, one module per stage: [`access`] (arrival, log) -> [`body`] (JSON) ->
//! [`chat`] or [`completions`] (tokens) -> [`sampling`] -> [`choice`] (the engine's events as
//! text) -> [`reply`] (one object, or a stream of events). [`state`] is shared by all requests,
//! [`metrics`] counts, [`shutdown`] drains.

mod access;
mod body;
mod chat;
mod choice;
mod completions;
mod error;
mod logprobs;
mod metrics;
mod models;
mod one_or_many;
mod prompt;
mod reply;
mod sampling;
mod shutdown;
mod state;
mod unsupported;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use trail_runtime::engine::Engine;
use trail_setup::{Error, Setup};

use error::ApiError;
use state::ServerState;

/// Largest request body, bytes. A context of 128 Ki tokens is under 1 MiB as text or as ids.
const MAX_BODY_BYTES: usize = 4 << 20;

/// Options of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerOptions {
    /// Writes a line for each request to stderr.
    pub verbose: bool,
    /// Special tokens in messages of users and tools are control tokens.
    pub allow_special_tokens: bool,
}

/// Serves `engine` at `address` until a signal, then finishes the running requests. `listening` is
/// called with the bound address once connections are accepted.
pub fn run(
    setup: Setup,
    engine: Engine,
    address: SocketAddr,
    options: ServerOptions,
    listening: impl FnOnce(SocketAddr, &ServerState) -> Result<(), Error>,
) -> Result<(), Error> {
    let state = Arc::new(ServerState::new(setup, engine, options)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("trail-http")
        .enable_all()
        .build()
        .map_err(|error| Error::failed(format!("cannot start the server's threads: {error}")))?;
    runtime.block_on(async {
        let unusable = |error| Error::failed(format!("cannot listen on {address}: {error}"));
        let listener = TcpListener::bind(address).await.map_err(unusable)?;
        let signals = shutdown::Signals::listen()?;
        listening(listener.local_addr().map_err(unusable)?, &state)?;
        let drain = shutdown::drain_on_signal(signals, state.clone());
        axum::serve(listener, router(state.clone()))
            .with_graceful_shutdown(drain)
            .await
            .map_err(|error| Error::failed(format!("the server failed: {error}")))?;
        match state.engine.fault() {
            Some(fault) => Err(Error::failed(format!("the engine broke down: {fault}"))),
            None => Ok(()),
        }
    })
}

fn router(state: Arc<ServerState>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::retrieve))
        .route("/health", get(state::health))
        .route("/metrics", get(metrics::scrape))
        .fallback(|uri: axum::http::Uri| async move { ApiError::no_such_path(uri.path()) })
        .method_not_allowed_fallback(|method: axum::http::Method| async move {
            ApiError::method_not_allowed(&method)
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(from_fn_with_state(state.clone(), access::record))
        .with_state(state)
}

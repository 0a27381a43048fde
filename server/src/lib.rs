#![doc = include_str!("../README.md")]
//! ## Files
//!
//! A request's path, one module per stage: `listener` -> `connection` (TLS, HTTP, bounded in time)
//! -> `request_log` (arrival, id, log) -> `cors` -> `request_head` (Host, Origin, types) ->
//! `authentication` (key, its limits) -> `body_limits` (bounded in bytes) -> `body` (JSON) -> an
//! endpoint (`chat`, `completions`, `responses`, `messages`: tokens) -> `options` -> `submit` ->
//! `choice` (the engine's events as text) -> the endpoint's reply (one object, or an
//! `event_stream`). `state` is shared by all requests, `model_entry` loads and unloads a model,
//! `metrics` counts, `reload` reads files again, `shutdown` drains.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![forbid(unsafe_code)]

mod access;
mod activity;
mod adapters;
mod answer_parts;
mod api;
mod api_keys;
mod authentication;
mod body;
mod body_limits;
mod body_permit;
mod chat;
mod chat_message;
mod choice;
mod client_watch;
mod completions;
mod connection;
mod constraint;
mod conversation;
mod cors;
mod delta;
mod dialect;
mod echo;
mod embeddings;
mod engine_metrics;
mod envelope;
mod error;
mod event_stream;
mod format_names;
mod harmony;
mod key_file;
mod lane;
mod length_hint;
mod lifecycle;
mod listener;
mod live;
mod live_requests;
mod live_stream;
mod logprobs;
mod memory_budget;
mod message_blocks;
mod message_events;
mod messages;
mod metrics;
mod model_entry;
mod model_source;
mod models;
mod number;
mod one_or_many;
mod openapi;
mod options;
mod page;
mod past_call;
mod policy;
mod policy_defaults;
mod process_limits;
mod prompt;
mod prompt_scores;
mod prompts;
pub mod proxy;
mod rate_limit;
mod reasoning;
mod reload;
mod reply;
mod request_head;
mod request_log;
mod request_metrics;
mod response_events;
mod response_input;
mod response_items;
mod response_object;
mod response_store;
mod responses;
mod root_path;
mod routes;
mod scrape;
mod secret;
mod served_model;
mod served_models;
mod server_options;
mod shutdown;
mod signals;
mod socket;
mod state;
mod structured_outputs;
mod submit;
mod template_fields;
mod thrash_watch;
mod time_limits;
mod timed_stream;
mod timeouts;
mod tls;
mod token_fields;
mod tokenize;
mod tool_calls;
mod tools;
#[cfg_attr(not(unix), path = "no_unix_socket.rs")]
mod unix_socket;
mod unsupported;
mod vllm_metrics;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
pub use trail_cli::{Error, ModelArgs, NamedAdapter, Setup};
use trail_cli::{notice, queue_notices};

pub use api::Api;
use body_limits::BodyLimits;
use cors::Origins;
use error::ApiError;
use listener::{Listener, Reach};
use memory_budget::MemoryBudget;
pub use model_source::{LoadAgain, Loaded, ModelSource};
pub use reasoning::ReasoningFormat;
use request_head::HeadRules;
#[cfg(fuzzing)]
pub use request_head::check_text as check_head;
use routes::Guard;
pub use secret::Secret;
pub use server_options::ServerOptions;
pub use signals::Signals;
use state::{ServerState, Shared};
pub use timeouts::Timeouts;
pub use tool_calls::ToolFormat;

/// Host to listen on, a name or an address, and port.
pub type Host<'a> = (&'a str, u16);

/// Fails if nothing can listen there, with the error of [`run`]: to be asked before a model is
/// loaded.
pub fn check_host(host: Host<'_>) -> Result<(), Error> {
    listener::check(host)
}

/// Serves `models` at `host`, or on a Unix socket, until a signal, then finishes the running
/// requests. `listening` is called with the bound address, as a URL, once connections are accepted.
pub fn run(
    models: Vec<ModelSource>,
    host: Host,
    options: ServerOptions,
    signals: Signals,
    listening: impl FnOnce(&str) -> Result<(), Error>,
) -> Result<(), Error> {
    let idle_unload = options.idle_unload;
    let begin = |state: &Arc<ServerState>| {
        tokio::spawn(thrash_watch::run(state.clone()));
        if let Some(idle) = idle_unload {
            tokio::spawn(served_models::unload_idle(state.clone(), idle));
        }
        Ok(Routes::of_models())
    };
    serve(models, host, options, signals, begin, listening)
}

/// Serves the routes that `begin` returns, with `models`, as [`run`] does.
fn serve(
    models: Vec<ModelSource>,
    host: Host,
    options: ServerOptions,
    signals: Signals,
    begin: impl FnOnce(&Arc<ServerState>) -> Result<Routes, Error>,
    listening: impl FnOnce(&str) -> Result<(), Error>,
) -> Result<(), Error> {
    queue_notices()?;
    let origins = Origins::new(&options.cors_origins)?;
    let allowed_hosts = options.allowed_hosts.clone();
    let (protects_metrics, uds) = (options.protect_metrics, options.uds.clone());
    let connections = listener::max_connections(options.max_connections);
    let budget = MemoryBudget::new(connections);
    let state = Arc::new(ServerState::new(models, options, budget.clone())?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("trail-http")
        .enable_all()
        .build()
        .map_err(|error| Error::failed(format!("cannot start the server's threads: {error}")))?;
    runtime.block_on(async {
        let (listener, reach) = listener::open(host, uds.as_deref()).await?;
        if let Listener::Unix(socket) = &listener {
            signals.remove_at_exit(socket.file.clone());
        }
        // Before a client knows the address, so that no SIGHUP is too early.
        if reload::has_files(&state) {
            tokio::spawn(reload::run(signals.reloads(), state.clone()));
        }
        let routes = begin(&state)?;
        signals.begin_serving();
        listening(&listener.url(state.tls.is_some()))?;
        tokio::spawn(budget.release_memory());
        if reach == Reach::Network && state.keys.is_none() {
            notice(
                "warning: every machine that reaches this address can use the server (give it a \
                 key with --api-key)",
            );
        }
        let rules = HeadRules {
            is_loopback: reach == Reach::Loopback,
            allowed_hosts,
            takes_json_alone: !routes.passes_on,
            origins,
        };
        let router = routes.guarded(state.clone(), rules, protects_metrics);
        tokio::select! {
            never = listener::accept(listener, router, state.clone()) => match never {},
            ended = shutdown::run(signals, state.clone()) => ended,
        }
    })
}

/// The routes of a server, by the checks before them.
struct Routes {
    /// [`Guard::Key`], and all paths that are not named.
    keyed: Router<Arc<ServerState>>,
    /// [`Guard::Open`].
    open: Router<Arc<ServerState>>,
    /// [`Guard::Metrics`].
    metrics: Router<Arc<ServerState>>,
    /// [`Guard::Always`].
    always: Router<Arc<ServerState>>,
    /// True if bodies are passed on, whatever their type.
    passes_on: bool,
}

impl Routes {
    /// Those of a server of models.
    fn of_models() -> Routes {
        let group = |guard| {
            let routes = routes::all().into_iter().filter(|route| route.guard == guard);
            routes.fold(Router::new(), |router, route| router.route(route.path, route.service))
        };
        let unknown = |uri: axum::http::Uri| async move { ApiError::no_such_path(uri.path()) };
        Routes {
            keyed: group(Guard::Key).fallback(unknown),
            open: group(Guard::Open),
            metrics: group(Guard::Metrics),
            always: group(Guard::Always),
            passes_on: false,
        }
    }

    /// The router, with the checks before each route.
    fn guarded(self, state: Arc<ServerState>, rules: HeadRules, protects_metrics: bool) -> Router {
        let (protected, open) = match protects_metrics {
            true => (self.metrics, Router::new()),
            false => (Router::new(), self.metrics),
        };
        let origins = rules.origins.clone();
        let routes = self
            .keyed
            .layer(from_fn_with_state(state.clone(), authentication::check))
            .merge(self.open)
            .layer(from_fn_with_state(state.clone(), refuse_unless_open))
            .merge(protected.layer(from_fn_with_state(state.clone(), authentication::check)))
            .merge(self.always)
            .merge(open)
            .method_not_allowed_fallback(|method: axum::http::Method| async move {
                ApiError::method_not_allowed(&method)
            })
            .layer(from_fn_with_state(Arc::new(rules), request_head::check));
        origins
            .apply(routes)
            .layer(from_fn_with_state(state.clone(), request_log::record))
            .with_state(state)
    }
}

/// Refuses a request while the server drains or after an engine failure. Its body is read all the
/// same: a connection closed on unread bytes is reset, and a gateway that has lost the status does
/// not try another server.
async fn refuse_unless_open(
    State(state): Shared,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if let Err(refusal) = state.check_open() {
        BodyLimits::discard(request).await;
        return Err(refusal);
    }
    Ok(next.run(request).await)
}

/// Reasoning, content and calls of an answer in `deltas`, for the fuzz target.
#[cfg(fuzzing)]
pub fn answer_parts(tools: ToolFormat, reasoning: ReasoningFormat, deltas: &[&str]) -> [String; 3] {
    answer_parts::parts(tools, reasoning, deltas)
}

/// Reads `bytes` as the body of a chat and of a completion, for the fuzz target. Returns the
/// errors.
#[cfg(fuzzing)]
pub fn check_body(bytes: &[u8]) -> [Option<serde_json::Value>; 2] {
    [chat::check(bytes), completions::check(bytes)].map(|read| read.err().map(|error| error.body()))
}

//! A proxy before any OpenAI-compatible server: requests wait here, and the scheduler says which
//! one is next.
//!
//! The path of a request: `asked` (what it asks for) -> `lengths` (the answer's expected length) ->
//! `queue` (the queue) -> `upstream` (sent, and again if there was no answer) -> `answer` (passed
//! on as it comes, counted by `token_count`) -> back into `lengths`.

mod answer;
mod asked;
mod features;
mod generate;
mod lengths;
mod metrics;
mod pace;
mod path;
mod queue;
mod slot;
mod token_count;
mod upstream;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::post;
use prometheus::IntCounter;
use trail_cli::Error;
use trail_probe::predictor::Features as Inputs;
use trail_scheduler::LogSink;
use trail_scheduler::policies::PolicyKind;

use crate::request_metrics::RequestMetrics;
use crate::routes::Guard;
use crate::secret::Secret;
use crate::server_options::ServerOptions;
use crate::signals::Signals;
use crate::state::{ServerState, Shared};
use crate::{Host, Routes, routes};
use lengths::Lengths;
pub use lengths::{Example, Train};
pub(crate) use queue::Queue;
use upstream::{Keys, Upstream};

/// Paths whose requests wait for a slot: those that generate, of OpenAI's and Anthropic's APIs,
/// and llama.cpp's, vLLM's, TGI's and SGLang's own.
const WAITING: [&str; 11] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/chat/completions",
    "/completions",
    "/completion",
    "/responses",
    "/infill",
    "/generate",
    "/generate_stream",
];

/// Policies that take no slot from a request that has one: the upstream's requests cannot be
/// preempted from here.
pub const POLICIES: [&str; 2] = ["sjf", "fcfs"];

/// Options of a proxy.
pub struct ProxyOptions {
    /// The server behind it.
    pub upstream: String,
    /// The key that this server wants.
    pub upstream_key: Option<Secret>,
    /// Requests that it answers at once.
    pub slots: u32,
    /// Most requests, waiting and being answered.
    pub max_requests: u32,
    /// Order of the requests: one of [`POLICIES`].
    pub policy: PolicyKind,
    /// Time for which a request is sent again while the server does not answer.
    pub retry: Duration,
    /// File of the length predictor, which is read at the start and written when it was trained.
    pub predictor: Option<PathBuf>,
    /// Trains a predictor of [`prompt_features`].
    pub train: Arc<Train>,
    /// Receives the decisions.
    pub record: Option<Box<dyn LogSink>>,
}

/// The features of prompts that predictors are trained on.
pub fn prompt_features() -> Inputs {
    features::Features::kind()
}

/// The state of a proxy.
struct Proxy {
    upstream: Upstream,
    queue: Arc<Queue>,
    lengths: Arc<Lengths>,
    answers: Arc<RequestMetrics>,
    retry: Duration,
    retries: IntCounter,
    generated: IntCounter,
    /// Bytes of the bodies that wait.
    queued_bytes: AtomicUsize,
}

/// Serves at `host` until a signal, then finishes the requests that were accepted. `listening` is
/// called with the bound address, as a URL, once connections are accepted.
pub fn run(
    proxy: ProxyOptions,
    host: Host,
    options: ServerOptions,
    signals: Signals,
    listening: impl FnOnce(&str) -> Result<(), Error>,
) -> Result<(), Error> {
    if !POLICIES.contains(&proxy.policy.name()) {
        return Err(Error::usage(format!(
            "--policy {}: the requests of another server cannot be preempted: choose {}",
            proxy.policy.name(),
            POLICIES.join(" or ")
        )));
    }
    let has_keys = options.api_key.is_some() || options.api_keys.is_some();
    let keys = Keys { upstream: proxy.upstream_key, are_for_proxy: has_keys };
    let upstream = Upstream::new(&proxy.upstream, &keys)?;
    let lengths = Arc::new(Lengths::open(proxy.train, proxy.predictor)?);
    let queue = Queue::new(proxy.slots, proxy.max_requests, proxy.policy, proxy.record)
        .map_err(|error| Error::usage(error.to_string()))?;
    queue.trust_predictions(|| lengths.standing().trusted);
    let begin = |state: &Arc<ServerState>| {
        let failed = |error| Error::failed(format!("cannot set up metrics: {error}"));
        let registry = state.metrics.registry();
        let answers = Arc::new(RequestMetrics::register(registry).map_err(failed)?);
        let [retries, generated] = metrics::counters(registry).map_err(failed)?;
        let (retry, queued_bytes) = (proxy.retry, AtomicUsize::new(0));
        metrics::register(registry, &queue, &lengths).map_err(failed)?;
        tokio::spawn(queue.clone().keep_time());
        // A server has one.
        let _ = state.queue.set(queue.clone());
        let proxy =
            Proxy { upstream, queue, lengths, answers, retry, retries, generated, queued_bytes };
        Ok(Arc::new(proxy).routes())
    };
    crate::serve(Vec::new(), host, options, signals, begin, listening)
}

impl Proxy {
    fn routes(self: Arc<Self>) -> Routes {
        let proxy = self.clone();
        let pass = move |State(state): Shared, request: Request| {
            let proxy = proxy.clone();
            async move { proxy.pass(state, request).await }
        };
        let proxy = self.clone();
        let generate = move |State(state): Shared, request: Request| {
            let proxy = proxy.clone();
            async move { proxy.generate(state, request).await }
        };
        let waiting = |router: Router<Arc<ServerState>>, path: &str| {
            router.route(path, post(generate.clone()).fallback(pass.clone()))
        };
        let keyed = WAITING.into_iter().fold(Router::new(), waiting).fallback(pass.clone());
        let own = routes::all()
            .into_iter()
            .filter(|route| ["/health", "/ready", "/live", "/metrics"].contains(&route.path));
        let (metrics, always): (Vec<_>, Vec<_>) =
            own.partition(|route| route.guard == Guard::Metrics);
        let group = |routes: Vec<routes::Route>| {
            routes
                .into_iter()
                .fold(Router::new(), |router, route| router.route(route.path, route.service))
        };
        Routes {
            keyed,
            open: Router::new(),
            metrics: group(metrics),
            always: group(always),
            passes_on: true,
        }
    }
}

/// Reads `bytes` as the body of a request, and as a stream of events, whole and in two pieces, for
/// the fuzz target. Returns the tokens counted of each stream.
#[cfg(fuzzing)]
pub fn check(bytes: &[u8], cut: usize) -> [Option<u32>; 2] {
    let _ = asked::Asked::read(axum::body::Bytes::copy_from_slice(bytes));
    let (first, second) = bytes.split_at(cut.min(bytes.len()));
    [[bytes, &[]], [first, second]].map(|pieces| {
        let mut count = token_count::TokenCount::of("text/event-stream");
        pieces.into_iter().for_each(|piece| {
            count.add(piece);
        });
        count.total()
    })
}

//! State shared by all requests.

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use trail_cli::Error;
use utoipa::ToSchema;

use crate::api_keys::ApiKeys;
use crate::body_limits::BodyLimits;
use crate::body_permit::BodyPermit;
use crate::embeddings::EmbeddingModel;
use crate::error::ApiError;
use crate::lifecycle::{Lifecycle, Phase};
use crate::live_stream::FrameTexts;
use crate::memory_budget::MemoryBudget;
use crate::metrics::Metrics;
use crate::model_entry::{ModelState, ModelUse};
use crate::model_source::ModelSource;
use crate::proxy::Queue;
use crate::response_store::ResponseStore;
use crate::root_path;
use crate::served_model::Formats;
use crate::served_models::Models;
use crate::server_options::ServerOptions;
use crate::timeouts::Timeouts;
use crate::tls::Tls;

/// The served models, and the server's own records.
pub(crate) struct ServerState {
    /// The models of answers.
    pub models: Models,
    /// The queue of a proxy, which has no models.
    pub queue: OnceLock<Arc<Queue>>,
    /// The encoder of embeddings.
    pub embedding: Option<Arc<EmbeddingModel>>,
    /// Responses that later requests can go on from.
    pub responses: ResponseStore,
    /// Start of the server, seconds since 1970.
    pub created: u64,
    /// Certificate and key; `None` for plain HTTP.
    pub tls: Option<Tls>,
    /// Path under which a proxy serves this server; empty for none.
    pub root_path: String,
    /// API keys; `None` if every request is let in.
    pub keys: Option<ApiKeys>,
    /// Requests of different keys share no KV block.
    pub salts_by_key: bool,
    /// Metrics of the server.
    pub metrics: Metrics,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Frames of live requests as text.
    pub frame_texts: FrameTexts,
    /// Phase of the server.
    pub lifecycle: Lifecycle,
    /// Bounds on bodies that are read, parsed and tokenized at once.
    pub body_limits: Arc<BodyLimits>,
    /// Writes a line for each request to stderr.
    pub verbose: bool,
    /// Writes the prompts of requests to stderr.
    pub log_prompts: bool,
    /// Special tokens in messages of users and tools are control tokens.
    pub allow_special_tokens: bool,
}

/// The state as handlers receive it.
pub(crate) type Shared = State<Arc<ServerState>>;

impl ServerState {
    /// Creates the state of a server that accepts requests.
    pub(crate) fn new(
        models: Vec<ModelSource>,
        options: ServerOptions,
        budget: Arc<MemoryBudget>,
    ) -> Result<Self, Error> {
        let keys = ApiKeys::open(options.api_key.as_ref(), options.api_keys)?;
        if options.salts_by_key && keys.is_none() {
            return Err(Error::usage(
                "--prefix-cache per-key needs keys: give --api-key or --api-keys",
            ));
        }
        root_path::check(&options.root_path)?;
        let tls =
            options.tls.map(|(certificate, key)| Tls::open(&certificate, &key)).transpose()?;
        let embedding = options.embedding_model.as_deref().map(EmbeddingModel::open).transpose()?;
        let embedding_name = embedding.as_ref().map(|model| &*model.name);
        let formats = Formats { tools: options.tool_format, reasoning: options.reasoning_format };
        let updates = options.allow_runtime_lora_updating;
        Ok(ServerState {
            models: Models::new(models, embedding_name, updates, formats)?,
            queue: OnceLock::new(),
            created: unix_time(),
            embedding: embedding.map(Arc::new),
            responses: ResponseStore::default(),
            tls,
            root_path: options.root_path,
            keys,
            salts_by_key: options.salts_by_key,
            metrics: Metrics::new()?,
            timeouts: options.timeouts,
            frame_texts: FrameTexts::default(),
            lifecycle: Lifecycle::new(),
            body_limits: BodyLimits::new(
                trail_platform::available_threads(),
                options.timeouts.body,
                budget,
            ),
            verbose: options.verbose,
            log_prompts: options.log_prompts,
            allow_special_tokens: options.allow_special_tokens,
        })
    }

    /// Requests that are being answered, or wait for that.
    pub(crate) fn live(&self) -> u32 {
        let models: u32 = self.models.all().iter().map(|entry| entry.live()).sum();
        models + self.queue.get().map_or(0, |queue| queue.live())
    }

    /// Returns an error while the server drains, and after an engine failure.
    pub(crate) fn check_open(&self) -> Result<(), ApiError> {
        match self.models.fault() {
            Some(fault) => Err(ApiError::broken(&fault)),
            None if self.lifecycle.phase() > Phase::Open => Err(ApiError::draining()),
            None => Ok(()),
        }
    }

    /// The model that a request names: one of a model's names, or an adapter's. It is loaded for
    /// the request if it is not, and stays so until the request is done with it.
    /// While it waits for that, a large body gives its turn to others.
    pub(crate) async fn model_for(
        &self,
        name: Option<&str>,
        permit: &mut BodyPermit,
    ) -> Result<ModelUse, ApiError> {
        if self.models.find(name)?.state() != ModelState::Loaded {
            permit.give_back_turn();
        }
        self.model(name).await
    }

    /// The same without a body.
    pub(crate) async fn model(&self, name: Option<&str>) -> Result<ModelUse, ApiError> {
        let entry = self.models.find(name)?;
        tokio::select! {
            in_use = entry.acquire() => in_use,
            () = self.lifecycle.reached(Phase::Cut) => Err(ApiError::cut()),
        }
    }
}

/// The answer of `GET /version`.
#[derive(Serialize, ToSchema)]
pub(crate) struct Version {
    version: &'static str,
}

/// Version of the program.
pub(crate) fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// `GET /version`.
pub(crate) async fn show_version() -> Json<Version> {
    Json(Version { version: version() })
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    // A clock before 1970 is wrong; 0 is as good as any value.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `GET /health` and `GET /ready`: 200 while requests are accepted, 503 while the server drains or
/// after an engine failure.
pub(crate) async fn health(State(state): Shared) -> Result<&'static str, ApiError> {
    state.check_open()?;
    Ok("ok\n")
}

/// `GET /live`: 200 as long as the process answers, also while it drains: a liveness probe that
/// failed during a drain would cut it.
pub(crate) async fn live() -> &'static str {
    "ok\n"
}

//! State shared by all requests.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use sha2::{Digest, Sha256};
use trail_cli::{Error, Setup};
use trail_grammar::GrammarCompiler;
use trail_runtime::backend::BLOCK_TOKENS;
use trail_runtime::engine::{Engine, SamplingParams};
use trail_runtime::model::Adapter;
use trail_runtime::text::{ChatTemplate, Tokenizer};
use utoipa::ToSchema;

use crate::adapters::Adapters;
use crate::api_keys::ApiKeys;
use crate::body_limits::BodyLimits;
use crate::embeddings::EmbeddingModel;
use crate::error::ApiError;
use crate::lifecycle::{Lifecycle, Phase};
use crate::memory_budget::MemoryBudget;
use crate::metrics::Metrics;
use crate::reasoning::ReasoningFormat;
use crate::response_store::ResponseStore;
use crate::root_path;
use crate::server_options::ServerOptions;
use crate::timeouts::Timeouts;
use crate::tls::Tls;
use crate::tool_calls::ToolFormat;

/// The served model, its engine, and the server's own records.
pub(crate) struct ServerState {
    /// Names of the served model: that of responses, and others of requests.
    pub names: Vec<String>,
    /// The model's adapters.
    pub adapters: Adapters,
    /// Model and program, as one name.
    pub fingerprint: String,
    /// The encoder of embeddings.
    pub embedding: Option<Arc<EmbeddingModel>>,
    /// Responses that later requests can go on from.
    pub responses: ResponseStore,
    /// Start of the server, seconds since 1970.
    pub created: u64,
    /// Engine that runs the requests.
    pub engine: Engine,
    /// Tokenizer of the model.
    pub tokenizer: Arc<Tokenizer>,
    /// Compiles the grammars of requests.
    pub grammars: GrammarCompiler,
    /// Chat template of the model.
    pub template: ChatTemplate,
    /// Form in which the model writes calls of tools, if it is known.
    pub tool_format: Option<ToolFormat>,
    /// Form in which the model writes its reasoning.
    pub reasoning_format: ReasoningFormat,
    /// Sampling parameters of a request that names none.
    pub sampling: SamplingParams,
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
    /// Phase of the server.
    pub lifecycle: Lifecycle,
    /// Bounds on bodies that are read, parsed and tokenized at once.
    pub body_limits: Arc<BodyLimits>,
    /// Writes a line for each request to stderr.
    pub verbose: bool,
    /// Special tokens in messages of users and tools are control tokens.
    pub allow_special_tokens: bool,
    /// Tokens that a request has room for: the context, or the KV cache if that is smaller.
    pub capacity: usize,
}

/// Bytes of a text that usually have a token or more.
const BYTES_OF_TOKEN: usize = 8;

/// The state as handlers receive it.
pub(crate) type Shared = State<Arc<ServerState>>;

impl ServerState {
    /// Creates the state of a server that accepts requests.
    pub(crate) fn new(
        setup: Setup,
        engine: Engine,
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
        let tokenizer = setup.tokenizer()?;
        setup.notice_template_limits();
        let context = engine.model().config.max_context;
        let capacity = context.min(engine.kv_blocks() * BLOCK_TOKENS);
        let names = match options.model_names.is_empty() {
            true => vec![setup.name.clone()],
            false => options.model_names,
        };
        let taken = taken_names(&names, embedding.as_ref());
        let adapters =
            Adapters::new(options.adapters, &taken, options.allow_runtime_lora_updating)?;
        Ok(ServerState {
            adapters,
            created: unix_time(),
            sampling: setup.load_sampling_defaults()?,
            grammars: GrammarCompiler::new(tokenizer.clone(), &engine.model().config),
            tokenizer,
            tool_format: options
                .tool_format
                .or_else(|| ToolFormat::of_template(&setup.template.source())),
            reasoning_format: options
                .reasoning_format
                .unwrap_or_else(|| ReasoningFormat::of_template(&setup.template.source())),
            template: setup.template,
            names,
            fingerprint: fingerprint(&engine),
            embedding: embedding.map(Arc::new),
            responses: ResponseStore::default(),
            tls,
            root_path: options.root_path,
            keys,
            salts_by_key: options.salts_by_key,
            metrics: Metrics::new()?,
            timeouts: options.timeouts,
            lifecycle: Lifecycle::new(),
            body_limits: BodyLimits::new(
                trail_platform::available_threads(),
                options.timeouts.body,
                budget,
            ),
            verbose: options.verbose,
            allow_special_tokens: options.allow_special_tokens,
            capacity,
            engine,
        })
    }

    /// Returns an error if `text`, of the request's `field`, cannot fit the context whatever its
    /// tokens are: tokenizing it would be in vain, and take a hundred times its bytes.
    pub(crate) fn check_text(&self, field: &str, text: &str) -> Result<(), ApiError> {
        self.check_least(field, text, self.tokenizer.least_tokens(text))
    }

    /// Returns an error if a prompt `text`, the request's `field`, has no room by the tokens of its
    /// beginning. So a text that is much too long is not tokenized whole. Takes as long as to
    /// tokenize the beginning, at most two thirds of the text.
    pub(crate) fn check_beginning(&self, field: &str, text: &str) -> Result<(), ApiError> {
        let bytes = self.capacity.saturating_mul(BYTES_OF_TOKEN);
        if text.len() <= bytes.saturating_add(bytes / 2) {
            return Ok(());
        }
        self.check_least(field, text, self.tokenizer.least_tokens_of_beginning(text, bytes))
    }

    /// Token ids of a text that an answer is expected to repeat in part: no more of it than an
    /// answer has room for is read.
    pub(crate) fn encode_expected(&self, text: &str) -> Result<Vec<u32>, ApiError> {
        let bytes = self.capacity.saturating_mul(BYTES_OF_TOKEN).min(text.len());
        let bytes = (0..=bytes).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        let ids = self.tokenizer.encode(&text[..bytes], false);
        let mut ids =
            ids.map_err(|error| ApiError::invalid_field("prediction", error.to_string()))?;
        ids.truncate(self.capacity);
        Ok(ids)
    }

    fn check_least(&self, field: &str, text: &str, least: usize) -> Result<(), ApiError> {
        let capacity = self.capacity;
        if least <= capacity {
            return Ok(());
        }
        let message = format!(
            "this server has room for {capacity} tokens in a request, and the prompt of {} bytes has {least} at least: shorten it",
            text.len()
        );
        Err(ApiError::too_long(field, message))
    }

    /// Returns an error if a prompt of `tokens`, the request's `field`, has no room.
    pub(crate) fn check_ids(&self, field: &str, tokens: usize) -> Result<(), ApiError> {
        let capacity = self.capacity;
        if tokens <= capacity {
            return Ok(());
        }
        let message = format!(
            "this server has room for {capacity} tokens in a request, and the prompt has {tokens}: shorten it"
        );
        Err(ApiError::too_long(field, message))
    }

    /// Returns an error while the server drains.
    pub(crate) fn check_open(&self) -> Result<(), ApiError> {
        match self.engine.fault() {
            Some(fault) => Err(ApiError::broken(fault)),
            None if self.lifecycle.phase() > Phase::Open => Err(ApiError::draining()),
            None => Ok(()),
        }
    }

    /// The model's name in responses.
    pub(crate) fn name(&self) -> &str {
        &self.names[0]
    }

    /// Returns an error if `name` is neither the served model nor an adapter of it; a request
    /// without a name is accepted.
    pub(crate) fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        self.adapter(name).map(drop)
    }

    /// The adapter called `name`; `None` for the served model as it is, and without a name.
    pub(crate) fn adapter(&self, name: Option<&str>) -> Result<Option<Arc<Adapter>>, ApiError> {
        let Some(name) = name.filter(|name| self.names.iter().all(|served| served != name)) else {
            return Ok(None);
        };
        match self.adapters.find(name) {
            Some(served) => Ok(Some(served.of.adapter.clone())),
            None => Err(ApiError::no_such_model(name, &self.known_names())),
        }
    }

    /// The name in the response to a request for `name`, which was checked: the adapter's, or the
    /// model's first one.
    pub(crate) fn answering_name(&self, name: Option<&str>) -> String {
        let is_adapter = |name: &&str| self.names.iter().all(|served| served != name);
        name.filter(is_adapter).unwrap_or(self.name()).to_owned()
    }

    /// The names that requests can choose, for messages.
    pub(crate) fn known_names(&self) -> String {
        let mut names = self.names.clone();
        names.extend(self.adapters.all().iter().map(|served| served.of.name.clone()));
        names.join("', '")
    }

    /// The names of models, which no adapter can have.
    pub(crate) fn taken_names(&self) -> Vec<String> {
        taken_names(&self.names, self.embedding.as_deref())
    }
}

fn taken_names(names: &[String], embedding: Option<&EmbeddingModel>) -> Vec<String> {
    names.iter().chain(embedding.map(|model| &model.name)).cloned().collect()
}

/// Digits that depend on the model's weights, the device that computes and the program's version.
fn fingerprint(engine: &Engine) -> String {
    let parts = [&trail_cli::fingerprint(engine.model()), engine.device(), version()];
    let digits = format!("{:x}", Sha256::digest(parts.join("\n")));
    format!("fp_{}", &digits[..12])
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

//! Options of a server.

use std::path::PathBuf;
use std::time::Duration;

use crate::reasoning::ReasoningFormat;
use crate::secret::Secret;
use crate::timeouts::Timeouts;
use crate::tool_calls::ToolFormat;

/// Options of a server.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Time limits.
    pub timeouts: Timeouts,
    /// Connections at once; `None` for the default.
    pub max_connections: Option<usize>,
    /// Writes a line for each request to stderr.
    pub verbose: bool,
    /// Writes the prompts of requests to stderr.
    pub log_prompts: bool,
    /// Special tokens in messages of users and tools are control tokens.
    pub allow_special_tokens: bool,
    /// Hosts that a request to a loopback address may name besides the loopback ones.
    pub allowed_hosts: Vec<String>,
    /// A Unix socket to listen on in place of the address.
    pub uds: Option<PathBuf>,
    /// PEM files of the certificate and its private key, for TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Origins whose pages may use the server.
    pub cors_origins: Vec<String>,
    /// Path under which a proxy serves this server; empty for none.
    pub root_path: String,
    /// Time without a request after which a model is unloaded; `None` for no bound.
    pub idle_unload: Option<Duration>,
    /// `/v1/load_lora_adapter` and `/v1/unload_lora_adapter` change them.
    pub allow_runtime_lora_updating: bool,
    /// Form in which the model writes calls of tools; `None` for the one that its template shows.
    pub tool_format: Option<ToolFormat>,
    /// Form in which the model writes its reasoning; `None` for the one that its template shows.
    pub reasoning_format: Option<ReasoningFormat>,
    /// Folder of an encoder for `/v1/embeddings`.
    pub embedding_model: Option<PathBuf>,
    /// The API key that a request needs.
    pub api_key: Option<Secret>,
    /// File with further API keys.
    pub api_keys: Option<PathBuf>,
    /// `/metrics` needs a key too.
    pub protect_metrics: bool,
    /// Requests of different keys share no KV block.
    pub salts_by_key: bool,
}

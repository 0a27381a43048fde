//! Options of `serve` and `proxy` about the requests that are let in.

use std::path::PathBuf;

use clap::Args;
use trail_cli::Error;
use trail_server::{Secret, ServerOptions};

/// Options about the requests that are let in.
#[derive(Args, Clone, Default, PartialEq, Eq)]
pub struct AccessArgs {
    /// Key that requests must present (Authorization: Bearer KEY, or x-api-key); TRAIL_API_KEY
    /// keeps it out of the list of processes
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// TOML file of keys, tables `keys` with name, key, requests_per_minute and tokens_per_minute;
    /// SIGHUP reads it again
    #[arg(long, hide = true, value_name = "FILE")]
    api_keys: Option<PathBuf>,
    /// Ask for a key at /metrics too
    #[arg(long, hide = true)]
    protect_metrics: bool,
    /// Origins whose web pages may use the server, as scheme://host:port, separated by
    /// commas; * for all
    #[arg(long, hide = true, value_name = "ORIGINS", value_delimiter = ',')]
    cors_origin: Vec<String>,
    /// TLS: PEM file of the certificate, with those of its issuers; SIGHUP reads it again
    #[arg(long, hide = true, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// TLS: PEM file of the certificate's private key
    #[arg(long, hide = true, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Listen on a Unix socket, for this user alone, in place of --host and --port
    #[arg(long, hide = true, value_name = "PATH")]
    uds: Option<PathBuf>,
    /// Path under which a proxy serves this server, such as /llm
    #[arg(long, hide = true, value_name = "PATH")]
    root_path: Option<String>,
    /// Names under which a loopback server may be addressed, besides localhost: those that a proxy
    /// on this machine passes on
    #[arg(long, hide = true, value_name = "NAMES", value_delimiter = ',')]
    allowed_hosts: Vec<String>,
}

impl AccessArgs {
    /// Returns true if the server listens on a Unix socket.
    pub fn has_socket(&self) -> bool {
        self.uds.is_some()
    }

    /// Returns these options, with `others` in place of those that are not set.
    pub fn or(self, others: AccessArgs) -> AccessArgs {
        AccessArgs {
            api_key: self.api_key.or(others.api_key),
            api_keys: self.api_keys.or(others.api_keys),
            protect_metrics: self.protect_metrics || others.protect_metrics,
            cors_origin: or_list(self.cors_origin, others.cors_origin),
            tls_cert: self.tls_cert.or(others.tls_cert),
            tls_key: self.tls_key.or(others.tls_key),
            uds: self.uds.or(others.uds),
            root_path: self.root_path.or(others.root_path),
            allowed_hosts: or_list(self.allowed_hosts, others.allowed_hosts),
        }
    }

    /// Returns these options, with the key `api_key` if they have none.
    pub fn or_key(&self, api_key: Option<String>) -> AccessArgs {
        self.clone().or(AccessArgs { api_key, ..AccessArgs::default() })
    }

    /// `options` with these.
    pub fn apply(&self, options: ServerOptions) -> Result<ServerOptions, Error> {
        // The parser's own message would show the key.
        let api_key = self.api_key.as_deref().map(Secret::new).transpose();
        Ok(ServerOptions {
            api_key: api_key.map_err(|why| Error::usage(format!("--api-key: {why}")))?,
            api_keys: self.api_keys.clone(),
            protect_metrics: self.protect_metrics,
            allowed_hosts: self.allowed_hosts.clone(),
            cors_origins: self.cors_origin.clone(),
            tls: self.tls_cert.clone().zip(self.tls_key.clone()),
            uds: self.uds.clone(),
            root_path: self.root_path.clone().unwrap_or_default(),
            ..options
        })
    }
}

/// The first list, or the second if the first is empty.
pub(super) fn or_list<T>(list: Vec<T>, others: Vec<T>) -> Vec<T> {
    match list.is_empty() {
        true => others,
        false => list,
    }
}

/// Without the key.
impl std::fmt::Debug for AccessArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("AccessArgs").field("api_keys", &self.api_keys).finish_non_exhaustive()
    }
}

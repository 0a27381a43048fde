//! Options of `serve` about the requests that are let in.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use trail_cli::{EngineArgs, Error};
use trail_server::{Secret, ServerOptions};

/// Options about the requests that are let in.
#[derive(Args, Default, PartialEq, Eq)]
pub struct AccessArgs {
    /// Key that requests must present (Authorization: Bearer KEY, or x-api-key); TRAIL_API_KEY
    /// keeps it out of the list of processes
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// TOML file of keys, [[keys]] with name, key, requests_per_minute and tokens_per_minute;
    /// SIGHUP reads it again
    #[arg(long, hide = true, value_name = "FILE")]
    api_keys: Option<PathBuf>,
    /// Ask for a key at /metrics too
    #[arg(long, hide = true)]
    protect_metrics: bool,
    /// Prefix cache: on, off, or per-key, in which requests of different API keys share nothing
    /// [default: on]
    #[arg(long, hide = true, value_name = "MODE")]
    prefix_cache: Option<PrefixCache>,
    /// Names under which a loopback server may be addressed, besides localhost: those that a proxy
    /// on this machine passes on
    #[arg(long, hide = true, value_name = "NAMES", value_delimiter = ',')]
    allowed_hosts: Vec<String>,
}

/// Requests that share KV blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrefixCache {
    /// All that begin alike.
    On,
    /// None.
    Off,
    /// Those of one API key.
    PerKey,
}

impl AccessArgs {
    /// Returns these options, with `others` in place of those that are not set.
    pub fn or(self, others: AccessArgs) -> AccessArgs {
        AccessArgs {
            api_key: self.api_key.or(others.api_key),
            api_keys: self.api_keys.or(others.api_keys),
            protect_metrics: self.protect_metrics || others.protect_metrics,
            prefix_cache: self.prefix_cache.or(others.prefix_cache),
            allowed_hosts: or_list(self.allowed_hosts, others.allowed_hosts),
        }
    }

    /// `engine` with the prefix cache that these options name.
    pub fn with_prefix_cache(&self, engine: &EngineArgs) -> Result<EngineArgs, Error> {
        match self.prefix_cache {
            Some(PrefixCache::Off) => Ok(engine.without_prefix_cache()),
            Some(_) if !engine.shares_prefixes() => Err(Error::usage(
                "--no-prefix-cache is --prefix-cache off: leave one of the two options out",
            )),
            _ => Ok(engine.clone()),
        }
    }

    /// `options` with these.
    pub fn apply(&self, options: ServerOptions) -> Result<ServerOptions, Error> {
        // The parser's own message would show the key.
        let api_key = self.api_key.as_deref().map(Secret::new).transpose();
        Ok(ServerOptions {
            api_key: api_key.map_err(|why| Error::usage(format!("--api-key: {why}")))?,
            api_keys: self.api_keys.clone(),
            protect_metrics: self.protect_metrics,
            salts_by_key: self.prefix_cache == Some(PrefixCache::PerKey),
            allowed_hosts: self.allowed_hosts.clone(),
            ..options
        })
    }
}

/// The first list, or the second if the first is empty.
pub(super) fn or_list(list: Vec<String>, others: Vec<String>) -> Vec<String> {
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

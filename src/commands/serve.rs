//! `trail-rt serve`: the OpenAI-compatible server.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use trail_cli::{EngineArgs, Error, LoraArgs, ModelArgs, Output, described_policy, notice};
use trail_platform::printable::printable;
use trail_runtime::backend::BLOCK_TOKENS;
use trail_runtime::engine::PolicyKind;
use trail_server::{ModelSource, ReasoningFormat, ServerOptions, Signals, Timeouts, ToolFormat};

use super::access_args::{AccessArgs, or_list};
use super::log_args::LogArgs;
use super::served_models::ModelWeight;

/// Options of `trail-rt serve`.
#[derive(Args, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Server")]
pub struct ServeArgs {
    /// Options in a TOML file, by their long names; those of the command line and the environment
    /// (TRAIL_PORT for --port) win
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address or name to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Port to listen on; 0 for any that is free [default: 8000]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Time for a request's header, from its first byte [default: 30]
    #[arg(long, hide = true, value_name = "SECONDS", value_parser = seconds(1))]
    header_timeout: Option<u64>,
    /// Time for a request's body [default: 60]
    #[arg(long, hide = true, value_name = "SECONDS", value_parser = seconds(1))]
    body_timeout: Option<u64>,
    /// Time that a connection may wait for its next request [default: 75]
    #[arg(long, hide = true, value_name = "SECONDS", value_parser = seconds(1))]
    idle_timeout: Option<u64>,
    /// Time that a client may read nothing of its response [default: 60]
    #[arg(long, hide = true, value_name = "SECONDS", value_parser = seconds(1))]
    write_timeout: Option<u64>,
    /// Connections at once; more are refused with 503 [default: 4096, or what the limit of open
    /// files leaves]
    #[arg(long, hide = true, value_name = "N", value_parser = connections())]
    max_connections: Option<u32>,
    /// Time for running requests to finish after SIGTERM or SIGINT; then they are cut [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = seconds(0))]
    drain_seconds: Option<u64>,
    /// Names of the model in requests, separated by commas; the first is that of responses
    /// [default: that of its file or folder]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) served_model_name: Vec<String>,
    /// Weight of one of several models, 1 to 1000: its share of the CPU while others have work, and
    /// of the memory beside the weights [default: 1]
    #[arg(long, hide = true, value_name = "NAME=WEIGHT")]
    pub(super) model_share: Vec<ModelWeight>,
    /// Unload a model that had no request for so long; the next one loads it again
    #[arg(long, hide = true, value_name = "SECONDS", value_parser = seconds(1))]
    idle_unload: Option<u64>,
    #[command(flatten)]
    pub(super) lora: LoraArgs,
    /// POST /v1/load_lora_adapter and /v1/unload_lora_adapter change the adapters
    #[arg(long, hide = true)]
    pub(super) allow_runtime_lora_updating: bool,
    /// Folder of an encoder (BERT, MiniLM, BGE) that answers /v1/embeddings
    #[arg(long, hide = true, value_name = "PATH")]
    embedding_model: Option<PathBuf>,
    /// Form of the calls of tools in answers: hermes, llama3_json, pythonic, mistral, openai
    /// (gpt-oss), or none [default: the one that the chat template shows]
    #[arg(long, hide = true, value_name = "FORMAT")]
    tool_call_parser: Option<ToolFormat>,
    /// Form of the reasoning in answers: deepseek_r1, qwen3, openai_gptoss, or none [default: the
    /// one that the chat template shows]
    #[arg(long, hide = true, value_name = "FORMAT")]
    reasoning_parser: Option<ReasoningFormat>,
    /// Write a line to stderr for each request: method, path, status, duration, tokens
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Treat special tokens in chat messages of users and tools as control tokens, not as text
    #[arg(long, hide = true)]
    allow_special_tokens: bool,
    #[command(flatten)]
    access: AccessArgs,
    /// Prefix cache: on, off, or per-key, in which requests of different API keys share nothing
    /// [default: on]
    #[arg(long, hide = true, value_name = "MODE")]
    prefix_cache: Option<PrefixCache>,
    /// Write a decision log to FILE: requests, predictions and each decision with its reason, for
    /// trail-rt replay
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    /// Replace FILE, whatever it is; without, an earlier log stays, and FILE has +2 in its name
    #[arg(long, requires = "record")]
    pub(super) force: bool,
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

/// Parser of a number of seconds, up to a year.
pub(super) fn seconds(least: u64) -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(least..=365 * 24 * 3600)
}

/// Parser of a number of connections.
fn connections() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

impl ServeArgs {
    /// Returns these options, with `others` in place of those that are not set.
    pub fn or(self, others: ServeArgs) -> ServeArgs {
        ServeArgs {
            config: self.config.or(others.config),
            host: self.host.or(others.host),
            port: self.port.or(others.port),
            header_timeout: self.header_timeout.or(others.header_timeout),
            body_timeout: self.body_timeout.or(others.body_timeout),
            idle_timeout: self.idle_timeout.or(others.idle_timeout),
            write_timeout: self.write_timeout.or(others.write_timeout),
            max_connections: self.max_connections.or(others.max_connections),
            drain_seconds: self.drain_seconds.or(others.drain_seconds),
            served_model_name: or_list(self.served_model_name, others.served_model_name),
            model_share: or_list(self.model_share, others.model_share),
            idle_unload: self.idle_unload.or(others.idle_unload),
            lora: self.lora.or(others.lora),
            allow_runtime_lora_updating: self.allow_runtime_lora_updating
                || others.allow_runtime_lora_updating,
            embedding_model: self.embedding_model.or(others.embedding_model),
            tool_call_parser: self.tool_call_parser.or(others.tool_call_parser),
            reasoning_parser: self.reasoning_parser.or(others.reasoning_parser),
            verbose: self.verbose || others.verbose,
            log: self.log.or(others.log),
            allow_special_tokens: self.allow_special_tokens || others.allow_special_tokens,
            access: self.access.or(others.access),
            prefix_cache: self.prefix_cache.or(others.prefix_cache),
            record: self.record.or(others.record),
            force: self.force || others.force,
        }
    }

    /// Returns true if no option is set.
    pub fn is_empty(&self) -> bool {
        *self == ServeArgs::default()
    }

    /// The port to listen on.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(8000)
    }

    fn host(&self) -> &str {
        self.host.as_deref().unwrap_or("127.0.0.1")
    }

    /// `engine` with the prefix cache that these options name.
    fn with_prefix_cache(&self, engine: &EngineArgs) -> Result<EngineArgs, Error> {
        match self.prefix_cache {
            Some(PrefixCache::Off) => Ok(engine.without_prefix_cache()),
            Some(_) if !engine.shares_prefixes() => Err(Error::usage(
                "--no-prefix-cache is --prefix-cache off: leave one of the two options out",
            )),
            _ => Ok(engine.clone()),
        }
    }

    fn timeouts(&self) -> Timeouts {
        let or = |seconds: Option<u64>, default| seconds.map_or(default, Duration::from_secs);
        let default = Timeouts::default();
        Timeouts {
            header: or(self.header_timeout, default.header),
            body: or(self.body_timeout, default.body),
            idle: or(self.idle_timeout, default.idle),
            write: or(self.write_timeout, default.write),
            drain: or(self.drain_seconds, default.drain),
        }
    }
}

/// Serves until a signal stops it. With `json`, prints one object once the server listens.
pub fn run(
    model: &ModelArgs,
    engine: &EngineArgs,
    args: &ServeArgs,
    json: bool,
) -> Result<(), Error> {
    args.log.settings().set();
    let signals = Signals::install()?;
    let engine = args.with_prefix_cache(engine)?;
    let host = (args.host(), args.port());
    if !args.access.has_socket() {
        // Before a model is loaded for minutes, and a decision log begun.
        trail_server::check_host(host)?;
    }
    let models = args.load_models(model, &engine)?;
    let options = args.access.apply(ServerOptions {
        idle_unload: args.idle_unload.map(Duration::from_secs),
        salts_by_key: args.prefix_cache == Some(PrefixCache::PerKey),
        allow_runtime_lora_updating: args.allow_runtime_lora_updating,
        timeouts: args.timeouts(),
        max_connections: args.max_connections.map(|connections| connections as usize),
        verbose: args.verbose,
        log_prompts: args.log.log_prompts,
        allow_special_tokens: args.allow_special_tokens,
        embedding_model: args.embedding_model.clone(),
        tool_format: args.tool_call_parser,
        reasoning_format: args.reasoning_parser,
        ..ServerOptions::default()
    })?;
    models.iter().for_each(warn_of_small_cache);
    let served: Vec<Served> = models.iter().map(Served::of).collect();
    trail_server::run(models, host, options, signals, |at| {
        let shown: Vec<String> = served.iter().map(Served::shown).collect();
        notice(format_args!("trail-rt serves {} on {at}", shown.join(", ")));
        if json {
            let mut object = match &served[..] {
                [one] => one.object(),
                several => {
                    json!({ "models": several.iter().map(Served::object).collect::<Vec<_>>() })
                }
            };
            object["url"] = json!(at);
            return Output::stdout().line(&object.to_string());
        }
        Ok(())
    })
}

/// Says so where the KV cache is smaller than the context.
fn warn_of_small_cache(source: &ModelSource) {
    let (setup, engine) = &source.loaded;
    let (context, blocks) = (setup.model.config.max_context, engine.kv_blocks());
    let room = blocks * BLOCK_TOKENS;
    if room < context {
        let model = printable(&setup.name).replace('\n', "\\n");
        notice(format_args!(
            "warning: {model}: {blocks} KV blocks have room for {room} of the context's {context} \
             tokens: longer requests are refused; more with --kv-blocks, or no warning with \
             --max-model-len {room}"
        ));
    }
}

/// A served model, as the start reports it.
struct Served {
    model: String,
    policy: PolicyKind,
    device: String,
}

impl Served {
    fn of(source: &ModelSource) -> Served {
        let (setup, engine) = &source.loaded;
        let (policy, device) = (engine.policy(), engine.device().to_owned());
        Served { model: setup.name.clone(), policy, device }
    }

    /// In one line, whatever the name of the model's file.
    fn shown(&self) -> String {
        let model = printable(&self.model).replace('\n', "\\n");
        format!("{model} under {} ({})", described_policy(self.policy), self.device)
    }

    fn object(&self) -> Value {
        json!({ "model": self.model, "policy": self.policy.name(), "device": self.device })
    }
}

//! `trail-rt proxy`: the queue before another server.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use trail_cli::{EngineArgs, Error, LogFile, Output, notice};
use trail_probe::{Bins, Predictor};
use trail_runtime::engine::PolicyKind;
use trail_scheduler::LogSink;
use trail_scheduler::limits::MAX_RUNNING;
use trail_server::proxy::{Example, ProxyOptions, prompt_features};
use trail_server::{Secret, ServerOptions, Signals, Timeouts};
use trail_training::objective::Objective;
use trail_training::predictor::{Example as Answer, Recipe, train};

use super::access_args::AccessArgs;
use super::decision_logs::DecisionLogs;
use super::log_args::LogArgs;
use super::serve::seconds;

/// Help of the command.
pub const ABOUT: &str = "\
Order the requests to another OpenAI-compatible server, shortest expected answer first

Requests wait in the proxy and are sent to the server when one of its slots is free: as many as it \
answers at once (llama-server --parallel, vLLM's --max-num-seqs). What an answer will take is \
learned from the answers that pass through; until there are enough, requests go by arrival. \
Streams and objects pass through as they are, and all other paths are passed on at once.

  trail-rt proxy --upstream http://127.0.0.1:8080 --slots 4";

/// Most requests, waiting and being answered: the scheduler's tables of a long context each.
const MAX_REQUESTS: usize = 1 << 14;
/// Bins of the lengths that a predictor tells apart.
const BINS: usize = 12;
/// One answer in so many is kept from the training, to say whether it is of use.
const HELD_OUT: usize = 5;
/// Kendall's tau-b on those, above which a predictor is of use: this, and so many standard
/// deviations of tau where nothing is correlated.
const LEAST_TAU: f64 = 0.1;
const LEAST_DEVIATIONS: f64 = 2.0;

/// Options of `trail-rt proxy`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Proxy")]
pub struct ProxyArgs {
    /// The server behind the proxy, such as http://127.0.0.1:8080
    #[arg(long, value_name = "URL")]
    upstream: String,
    /// Key that it wants (Authorization: Bearer KEY), in place of the clients' keys;
    /// TRAIL_UPSTREAM_KEY keeps it out of the list of processes
    #[arg(long, value_name = "KEY")]
    upstream_key: Option<KeyText>,
    /// Requests that it answers at once: others wait in the proxy
    #[arg(long, value_name = "N", value_parser = slots())]
    slots: u32,
    /// Address to listen on; port 0 for any that is free
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8000")]
    listen: Listen,
    /// File that keeps what was learned: read at the start if it is there, written when it changes
    #[arg(long, value_name = "FILE")]
    predictor: Option<PathBuf>,
    /// Time for which a request is sent again while the server does not answer, before the first
    /// byte of its answer
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = seconds(0))]
    retry_seconds: u64,
    /// Time for accepted requests to finish after SIGTERM or SIGINT; then they are cut
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = seconds(0))]
    drain_seconds: u64,
    /// Write a line to stderr for each request: method, path, status, duration, tokens
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    access: AccessArgs,
    /// Write a decision log to FILE, for trail-rt replay and advise
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Replace FILE, whatever it is; without, an earlier log stays, and FILE has +2 in its name
    #[arg(long, requires = "record")]
    force: bool,
}

/// Parser of a number of slots.
fn slots() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(MAX_RUNNING))
}

/// The text of a key, which no debug form shows.
#[derive(Clone)]
struct KeyText(String);

impl From<String> for KeyText {
    fn from(text: String) -> KeyText {
        KeyText(text)
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("KeyText(hidden)")
    }
}

/// The key in the environment's `variable`. An empty one is not set.
fn key_of_environment(variable: &str) -> Option<String> {
    let key = std::env::var(variable).ok()?;
    if key.is_empty() {
        notice(format_args!("warning: {variable} is empty: it is not used"));
    }
    Some(key).filter(|key| !key.is_empty())
}

/// A host and a port.
#[derive(Clone, Debug)]
struct Listen {
    host: String,
    port: u16,
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let Some((host, port)) = parts.filter(|(host, _)| !host.is_empty()) else {
            return Err("give HOST:PORT, such as 127.0.0.1:8000".into());
        };
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        Ok(Listen { host: inner.unwrap_or(host).to_owned(), port })
    }
}

/// Serves until a signal stops it. With `json`, prints one object once the proxy listens.
pub fn run(engine: &EngineArgs, args: &ProxyArgs, json: bool) -> Result<(), Error> {
    args.log.settings().set();
    let signals = Signals::install()?;
    if !args.access.has_socket() {
        trail_server::check_host((&args.listen.host, args.listen.port))?;
    }
    let record = args.record.clone().map(|path| {
        let file = DecisionLogs::new(path, args.force).next(None)?;
        Ok::<_, Error>(Box::new(LogFile::create(&file)?) as Box<dyn LogSink>)
    });
    let max_requests = engine.max_requests();
    if max_requests > MAX_REQUESTS {
        return Err(Error::usage(format!(
            "--max-requests is {max_requests}: the proxy has at most {MAX_REQUESTS}"
        )));
    }
    let upstream_key = args.upstream_key.clone().map(|key| key.0);
    let upstream_key = upstream_key.or_else(|| key_of_environment("TRAIL_UPSTREAM_KEY"));
    // The parser's own message would show the key.
    let upstream_key = upstream_key.map(|key| Secret::new(&key)).transpose();
    let policy = engine.policy_or(PolicyKind::Sjf(Default::default()));
    let proxy = ProxyOptions {
        upstream: args.upstream.clone(),
        upstream_key: upstream_key.map_err(|why| Error::usage(format!("--upstream-key: {why}")))?,
        slots: args.slots,
        max_requests: max_requests as u32,
        policy,
        retry: Duration::from_secs(args.retry_seconds),
        predictor: args.predictor.clone(),
        train: Arc::new(trained),
        record: record.transpose()?,
    };
    let drain = Duration::from_secs(args.drain_seconds);
    let options = args.access.or_key(key_of_environment("TRAIL_API_KEY")).apply(ServerOptions {
        timeouts: Timeouts { drain, ..Timeouts::default() },
        verbose: args.verbose,
        ..ServerOptions::default()
    })?;
    let (upstream, slots) = (&args.upstream, args.slots);
    trail_server::proxy::run(proxy, (&args.listen.host, args.listen.port), options, signals, |at| {
        notice(format_args!("trail-rt orders requests to {upstream} under {policy} on {at}"));
        if json {
            let policy = policy.name();
            let object =
                json!({ "upstream": upstream, "slots": slots, "policy": policy, "url": at });
            return Output::stdout().line(&object.to_string());
        }
        Ok(())
    })
}

/// A predictor trained on `answers`; `None` if it orders those that it did not see hardly better
/// than chance.
fn trained(answers: &[Example]) -> Option<Predictor> {
    let longest = answers.iter().map(|(_, tokens)| *tokens).max()?;
    if longest < 2 * BINS as u32 {
        return None;
    }
    let answer = |(inputs, tokens): &Example| Answer { inputs: inputs.clone(), tokens: *tokens };
    let is_held = |at: &usize| at.is_multiple_of(HELD_OUT);
    let of = |held: bool| {
        let chosen = answers.iter().enumerate().filter(move |(at, _)| is_held(at) == held);
        chosen.map(|(_, of)| answer(of)).collect::<Vec<_>>()
    };
    let recipe = Recipe {
        features: prompt_features(),
        objective: Objective::CrossEntropy(Box::new(Bins::log(BINS, longest))),
        hidden: 0,
        layers: 0,
        seed: 1,
    };
    let held_out = of(true);
    let found = train(&recipe, &of(false), &held_out);
    let tau_b = found.curve.get(found.epochs as usize - 1)?.tau_b;
    is_of_use(tau_b, held_out.len()).then_some(found.predictor)
}

/// True if Kendall's tau-b over `answers` is no chance (Kendall 1938: its variance without ties).
fn is_of_use(tau_b: f64, answers: usize) -> bool {
    let n = answers as f64;
    let deviation = (2.0 * (2.0 * n + 5.0) / (9.0 * n * (n - 1.0))).sqrt();
    tau_b > LEAST_TAU.max(LEAST_DEVIATIONS * deviation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_predictor_is_of_use_beyond_chance() {
        // Two deviations over 13 answers are 0.42, over 205 they are 0.094.
        for (tau_b, answers, expected) in [
            (0.41, 13, false),
            (0.43, 13, true),
            (0.099, 205, false),
            (0.101, 205, true),
            (0.101, 2000, true),
            (1.0, 1, false),
            (f64::NAN, 13, false),
        ] {
            assert_eq!(is_of_use(tau_b, answers), expected, "{tau_b} {answers}");
        }
    }
}

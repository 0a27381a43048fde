//! `bench http`: open-loop load on an OpenAI-compatible server, this one or another.
//!
//! Requests are sent at their times, however long earlier ones take, and latencies count from those
//! times: a server that falls behind cannot slow its load down (coordinated omission). With
//! `--compare` the policy is switched by the admin endpoint between interleaved rounds.

mod client;
mod report;
mod slo;
mod workload;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use trail_cli::{Error, Signal, SignalKind, count, notice};
use trail_platform::delivery::READING_SPEED;

use crate::report::BenchReport;
use client::{Answer, Client};
use report::{Conditions, Run};
use slo::Slo;
use workload::Workload;

/// Options of `bench http`.
#[derive(Args, Clone, Debug)]
pub struct HttpArgs {
    /// The server, such as http://127.0.0.1:8000
    #[arg(long)]
    url: String,
    /// Key of the server, with --compare that of an admin (TRAIL_API_KEY)
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Name of the model; the server's first one if there is none
    #[arg(long, value_name = "NAME")]
    served_model: Option<String>,
    /// Prompts, one JSON object with a "prompt" a line, over and over; without them synthetic ones
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Words of a synthetic prompt; with --trace those of its requests
    #[arg(long, default_value_t = 64, value_parser = count::<100_000>)]
    prompt_words: usize,
    /// Requests of a run
    #[arg(long, default_value_t = 200, value_parser = count::<1_000_000>)]
    requests: usize,
    /// Most output tokens; with --trace of each request also those of the trace
    #[arg(long, default_value_t = 256, value_parser = count::<1_000_000>)]
    max_tokens: usize,
    /// Temperature of the answers; 0 for greedy ones, equal in runs that are compared
    #[arg(long, default_value_t = 1.0, value_parser = temperature)]
    temperature: f64,
    /// Process of the arrivals
    #[arg(long, value_enum, default_value_t = Process::Poisson)]
    arrivals: Process,
    /// File of a trace, as simulate reads it: lengths of prompts and answers, and with --arrivals
    /// trace the times, scaled to each rate
    #[arg(long, value_name = "FILE", conflicts_with = "prompts")]
    trace: Option<PathBuf>,
    /// Arrival rates, as shares of the capacity, which is measured first: all requests at once
    #[arg(long, value_delimiter = ',', value_parser = positive, default_value = "0.5,0.8,0.95,1.1")]
    rate_share: Vec<f64>,
    /// Instead of shares: arrivals per second
    #[arg(long, value_delimiter = ',', value_parser = positive, conflicts_with = "rate_share")]
    rate: Vec<f64>,
    /// Policies of a trail-rt server, in interleaved rounds
    #[arg(long, value_delimiter = ',', value_name = "POLICIES")]
    compare: Vec<String>,
    /// Rounds of each rate and policy
    #[arg(long, default_value_t = 1, value_parser = count::<100>)]
    rounds: usize,
    /// Limits of a good request, seconds: ttft=1,gap=0.5,e2e=30
    #[arg(long, value_name = "LIMITS", default_value = "")]
    slo: Slo,
    /// Tokens a second that a reader takes, for the share of answers without a stall
    #[arg(long, default_value_t = READING_SPEED, value_parser = positive)]
    reading_speed: f64,
    /// Draw latencies over the rates to FILE (SVG)
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Longest time of a request, seconds
    #[arg(long, default_value_t = 600.0, value_parser = positive)]
    timeout: f64,
    /// Seed of arrivals, prompts and answers
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A process of arrivals at a rate.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    /// Independent
    Poisson,
    /// Burstier: the gaps that ELIS fits to a production trace
    Gamma,
    /// All at once
    Burst,
    /// As in the file of --trace
    Trace,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.001..=1e6).contains(&value) => Ok(value),
        _ => Err("expected a number from 0.001 to 1e6".into()),
    }
}

fn temperature(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=2.0).contains(&value) => Ok(value),
        _ => Err("expected a number from 0 to 2".into()),
    }
}

/// Measures the capacity if rates are shares of it, then each rate and policy in rounds.
pub fn run(args: &HttpArgs) -> Result<BenchReport, Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Error::failed(format!("cannot start threads: {error}")))?;
    runtime.block_on(measure(args))
}

async fn measure(args: &HttpArgs) -> Result<BenchReport, Error> {
    if args.plot.is_some() && args.arrivals == Process::Burst {
        return Err(Error::usage("--plot draws over rates, and a burst has none: leave it out"));
    }
    let timeout = Duration::from_secs_f64(args.timeout);
    // As for `serve`.
    let key = args.api_key.clone().or_else(|| std::env::var("TRAIL_API_KEY").ok());
    let mut client = Client::new(&args.url, key, timeout)?;
    let model = match &args.served_model {
        Some(name) => name.clone(),
        None => client.first_model().await?,
    };
    client.set_model(model.clone(), args.temperature);
    let workload = Workload::new(args)?;
    // Warm: the first request may load, compile or page in.
    workload.send_one(&client).await?;
    let capacity = match args.rate.is_empty() && args.arrivals != Process::Burst {
        true => Some(workload.capacity(&client).await?),
        false => None,
    };
    let rates = rates(args, capacity);
    let runs = match args.compare.is_empty() {
        true => all_runs(args, &client, &workload, rates).await?,
        false => {
            let mut interrupt = Signal::listen(SignalKind::Interrupt)
                .map_err(|error| Error::failed(format!("cannot listen for signals: {error}")))?;
            let runs = tokio::select! {
                runs = all_runs(args, &client, &workload, rates) => runs,
                () = interrupt.recv() => Err(Error::interrupted("interrupted")),
            };
            if let Err(why) = client.reset_policy().await {
                notice(format_args!("warning: {why}"));
            }
            runs?
        }
    };
    let conditions = Conditions::new(args, &model, workload.requests(), capacity);
    Ok(report::report(&conditions, &runs))
}

/// Every rate, in rounds, under each policy in turn.
async fn all_runs(
    args: &HttpArgs,
    client: &Client,
    workload: &Workload,
    rates: Vec<(Option<f64>, Option<f64>)>,
) -> Result<Vec<Run>, Error> {
    let policies: Vec<Option<&String>> = match args.compare.is_empty() {
        true => vec![None],
        false => args.compare.iter().map(Some).collect(),
    };
    let mut runs = Vec::new();
    for (share, rate) in rates {
        for round in 0..args.rounds {
            for &policy in &policies {
                if let Some(policy) = policy {
                    client.set_policy(policy).await?;
                }
                let times = workload.times(args.arrivals, rate, round);
                let answers = workload.send(client, times).await;
                runs.push(Run::new(args, (policy, share, rate, round), &answers)?);
            }
        }
    }
    Ok(runs)
}

/// Shares of the capacity, where they are given, and rates; `None` for a burst.
fn rates(args: &HttpArgs, capacity: Option<f64>) -> Vec<(Option<f64>, Option<f64>)> {
    match capacity {
        _ if args.arrivals == Process::Burst => vec![(None, None)],
        Some(capacity) => {
            args.rate_share.iter().map(|share| (Some(*share), Some(share * capacity))).collect()
        }
        None => args.rate.iter().map(|rate| (None, Some(*rate))).collect(),
    }
}

/// Fails if no answer of a run came: its figures would be those of nothing.
fn check(answers: &[Answer]) -> Result<(), Error> {
    let failed: Vec<&String> = answers.iter().filter_map(|of| of.error.as_ref()).collect();
    match failed.first() {
        Some(why) if failed.len() == answers.len() => {
            Err(Error::failed(format!("all {} requests failed; the first: {why}", failed.len())))
        }
        _ => Ok(()),
    }
}

//! trail-rt as a worker of NVIDIA Dynamo: tokens in, tokens out.

#![forbid(unsafe_code)]

mod args;
mod backend;
mod engine;
mod job;
mod kv_events;
mod load_book;
mod reports;
mod sim;
mod sim_prefix;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use dynamo_backend_common::WorkerConfig;
use trail_cli::{Error, Setup};
use trail_dynamo_proto::environment;
use trail_runtime::engine::{StepCost, load_step_cost};
use trail_scheduler::SchedulerConfig;

use args::{Args, EngineName};
use backend::TrailBackend;
use engine::TokenEngine;
use kv_events::KvEvents;
use sim::{SimEngine, SimSettings};

/// Time of a simulated step where no file is named.
const STEP: StepCost = StepCost {
    fixed: 20e6,
    decode_row: 0.0,
    prefill_token: 0.0,
    context_token: 0.0,
    experts: None,
};

/// Characters of simulated answers, by position.
const ALPHABET: &str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

fn main() -> ExitCode {
    let args = Args::parse();
    // Dynamo's own limit for all of a shutdown, after which it aborts the process.
    let limit = (args.drain_seconds + 10).to_string();
    let mut defaults = environment::LOOPBACK.to_vec();
    defaults.push(("DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT", &limit));
    let started = environment::apply(&defaults).map_err(anyhow::Error::from);
    let loaded = started.and_then(|()| load(&args));
    let (backend, config) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("trail-dynamo-worker: {error:#}");
            let code = error.downcast_ref::<Error>().map_or(1, Error::code);
            return ExitCode::from(code);
        }
    };
    let backend = Arc::new(backend);
    let ended = dynamo_backend_common::run(backend.clone(), config);
    // Dynamo's shutdown after a breakdown reports no error.
    let broken = backend.breakdown().map(|fault| anyhow::anyhow!("the engine broke down: {fault}"));
    match ended.and_then(|()| broken.map_or(Ok(()), Err)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trail-dynamo-worker: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Loads the model and builds its engine.
fn load(args: &Args) -> anyhow::Result<(TrailBackend, WorkerConfig)> {
    let setup = Setup::load(&args.model)?;
    let name = args.served_model_name.clone().unwrap_or_else(|| setup.name.clone());
    let events = KvEvents::default();
    let engine = match args.engine {
        EngineName::Real => TokenEngine::real(&setup, &args.engine_args, || events.sink())?,
        EngineName::Sim => TokenEngine::Sim(Box::new(simulated(args, &setup, &events)?)),
    };
    let common = args.common.clone();
    let config = WorkerConfig {
        namespace: common.namespace,
        component: common.component,
        endpoint: common.endpoint,
        endpoint_types: common.endpoint_types,
        custom_jinja_template: common.custom_jinja_template,
        model_name: setup.folder.display().to_string(),
        served_model_name: Some(name.clone()),
        // Routers that start later ask the worker for its blocks.
        enable_local_indexer: true,
        enable_kv_routing: args.engine_args.shares_prefixes(),
        runtime: common.runtime,
        ..WorkerConfig::default()
    };
    let drain = Duration::from_secs(args.drain_seconds.into());
    Ok((TrailBackend::new(name, engine, events, drain), config))
}

/// An engine with the model's context and tokenizer, without its weights' work.
fn simulated(args: &Args, setup: &Setup, events: &KvEvents) -> anyhow::Result<SimEngine> {
    let context = setup.model.config.max_context as u32;
    let sizes = SchedulerConfig { max_running: 4, max_context: context, ..Default::default() };
    let mut scheduler = args.engine_args.simulated(sizes, sizes.max_requests as usize);
    scheduler.cached_blocks =
        if args.engine_args.shares_prefixes() { scheduler.num_blocks } else { 0 };
    let cost = match &args.step_cost {
        Some(file) => load_step_cost(file).map_err(Error::usage)?,
        None => STEP,
    };
    let tokenizer = setup.tokenizer()?;
    let token = |letter: char| match tokenizer.encode(&letter.to_string(), false)?[..] {
        [token] => Ok(token),
        _ => anyhow::bail!("the tokenizer has no token for {letter:?}: choose another model"),
    };
    Ok(SimEngine::start(SimSettings {
        scheduler,
        policy: args.engine_args.policy_or_trail(),
        cost,
        noise: args.noise.clone(),
        alphabet: ALPHABET.chars().map(token).collect::<anyhow::Result<_>>()?,
        block_sink: events.sink(),
        break_after: args.break_after,
    })?)
}

//! Options of `trail-rt simulate`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use trail_cli::{EngineArgs, Error, ModelArgs, Setup, count, notice, read_json_lines};
use trail_runtime::engine::{Needs, PolicyKind};
use trail_runtime::model::Dtype;
use trail_scheduler::limits::blocks_for;
use trail_scheduler::{BLOCK_TOKENS, Preemption, SchedulerConfig};
use trail_simulator::{Dataset, Noise, Simulation, StepModel, Trace, TraceSet};

use super::scenario::{Pace, RequestSource, Scenario};
use crate::commands::load::Load;

/// Most requests and workers of a simulation.
const MAX_REQUESTS: usize = 1 << 20;
const MAX_WORKERS: usize = Simulation::MAX_WORKERS as usize;

/// Arrival process of the option `--arrivals`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ArrivalKind {
    /// Exponential gaps.
    Poisson,
    /// Gamma-distributed gaps of shape 0.73 (ELIS): burstier.
    Gamma,
    /// The gaps of --trace, scaled to the load or rate.
    Recorded,
    /// All at once.
    Burst,
}

/// Options of `trail-rt simulate`.
#[derive(Args, Debug)]
pub struct SimulateArgs {
    /// Policies to compare, in order
    #[arg(long, value_delimiter = ',', default_value = "fcfs,sjf,trail,oracle")]
    policies: Vec<PolicyKind>,
    /// Arrival rates as multiples of the capacity measured first, or burst [default: 1.1]
    #[arg(long, value_delimiter = ',', value_name = "LOADS")]
    load: Vec<Load>,
    /// Arrival rates in requests per second, instead of loads
    #[arg(long, value_delimiter = ',', conflicts_with = "load", value_parser = rate)]
    rate: Vec<f64>,
    /// Requests of each run
    #[arg(long, default_value_t = 5000, value_parser = count::<MAX_REQUESTS>)]
    requests: usize,
    /// Seeds of lengths, predictions and arrivals [default: 1; experiments: 1,2,3]
    #[arg(long, value_delimiter = ',')]
    seeds: Vec<i64>,
    /// Time of steps: `DEVICE[:MODEL][:tpN]` of a100-80g, h200, l4 and 1b, 8b, 13b, 70b on N of
    /// 2, 4, 8 devices; or measured: the step costs beside --model
    #[arg(long, value_name = "NAME", default_value = "a100-80g:8b")]
    step_model: String,
    /// File of the step costs of --step-model measured
    #[arg(long, value_name = "FILE")]
    step_cost: Option<PathBuf>,
    /// Constants of the step model: t0, weight_s, kv_token_s, token_s (seconds), kv_tokens,
    /// block_s; of a measured one fixed, decode_row, prefill_token, context_token (ns)
    #[arg(long, value_delimiter = ',', value_name = "NAME=VALUE", value_parser = constant)]
    step_constants: Vec<(String, f64)>,
    /// Lengths of prompts and outputs: alpaca, lmsys, sharegpt or rr-sjf
    #[arg(long, value_name = "NAME", default_value = "alpaca")]
    lengths: Dataset,
    /// Arrival process; burst is the same as --load burst
    #[arg(long, value_enum, default_value_t = ArrivalKind::Poisson)]
    arrivals: ArrivalKind,
    /// Predictions: demo (the bundled probe's, recorded), release (as wrong as TRAIL's released
    /// ones), oracle, none, gaussian:SIGMA or tau:TAU [default: demo; with --trace the file's]
    #[arg(long, value_name = "NAME")]
    noise: Option<Noise>,
    /// Predictions recorded in this trace file, resampled by length, instead of --noise
    #[arg(long, value_name = "FILE", conflicts_with = "noise")]
    noise_traces: Option<PathBuf>,
    /// Requests of a trace file: CSV of Azure's or BurstGPT's traces, Mooncake's JSON lines, or one
    /// JSON object a line: id, arrival_s, prompt_tokens, output_tokens; r and remaining where
    /// predictions were recorded; block_hashes (numbers) of the prompt's KV blocks of 16 tokens,
    /// where requests share them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["requests", "lengths"])]
    trace: Option<PathBuf>,
    /// Most output tokens of a request that a policy knows of [default: those of the lengths; of a
    /// trace 512 or its longest output]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    max_tokens: Option<u32>,
    /// Workers behind a balancer that gives each request to the one with the fewest
    #[arg(long, default_value_t = 1, value_parser = count::<MAX_WORKERS>)]
    workers: usize,
    /// A figure or table of a paper: its name, or list
    #[arg(
        long, value_name = "NAME",
        conflicts_with_all = ["load", "rate", "trace", "noise_traces", "step_constants"],
    )]
    pub(super) experiment: Option<String>,
    /// Folder for an experiment's plot (NAME.svg)
    #[arg(long, value_name = "DIR", default_value = "out")]
    pub(super) out: PathBuf,
    /// Replace a plot that no earlier run wrote
    #[arg(long)]
    pub(super) force: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (1e-6..=1e9).contains(&rate) => Ok(rate),
        _ => Err("give requests per second, from 1e-6 to 1e9".into()),
    }
}

fn constant(text: &str) -> Result<(String, f64), String> {
    let (name, value) = text.split_once('=').ok_or("give NAME=VALUE")?;
    let value = value.parse().map_err(|_| format!("'{value}' is not a number"))?;
    Ok((name.into(), value))
}

/// Reads a trace file.
fn read_traces(path: &Path) -> Result<Vec<Trace>, Error> {
    let name = path.display();
    let text = read_json_lines(path)
        .map_err(|error| Error::usage(format!("cannot read the trace {name}: {error}")))?;
    Trace::parse(&text).map_err(|error| Error::usage(format!("{name}: {error}")))
}

impl SimulateArgs {
    /// The seeds; `default` unless they are named.
    pub(super) fn seeds(&self, default: &[u64]) -> Vec<u64> {
        match &self.seeds[..] {
            [] => default.to_vec(),
            seeds => seeds.iter().map(|&seed| seed as u64).collect(),
        }
    }

    /// The runs that the options ask for: at each load all policies in turn.
    pub(super) fn scenarios(
        &self,
        model: &ModelArgs,
        engine: &EngineArgs,
    ) -> Result<Vec<Scenario>, Error> {
        let source = self.source()?;
        if self.policies.iter().any(|policy| matches!(policy, PolicyKind::Gittins(_))) {
            notice("note: predictions here are points: gittins ranks as trail does");
        }
        let simulation = self.simulation(model, engine, &source)?;
        let mut scenarios = Vec::new();
        for pace in self.paces() {
            for &policy in &self.policies {
                scenarios.push(Scenario {
                    policy: engine.with_options(policy),
                    pace,
                    source: source.clone(),
                    simulation: simulation.clone(),
                });
            }
        }
        Ok(scenarios)
    }

    fn paces(&self) -> Vec<Pace> {
        let gamma = self.arrivals == ArrivalKind::Gamma;
        let loads = self.load.iter().map(|load| match *load {
            Load::Rate(load) => Pace::Load { load, gamma },
            Load::Burst => Pace::Burst,
        });
        let rates = self.rate.iter().map(|&rate| Pace::Rate { rate, gamma });
        match (self.arrivals, &self.trace, self.load.is_empty() && self.rate.is_empty()) {
            (ArrivalKind::Burst, ..) => vec![Pace::Burst],
            (_, Some(_), true) => vec![Pace::Recorded],
            (_, None, true) => vec![Pace::Load { load: 1.1, gamma }],
            _ => loads.chain(rates).collect(),
        }
    }

    fn source(&self) -> Result<RequestSource, Error> {
        let Some(path) = &self.trace else {
            if self.arrivals == ArrivalKind::Recorded {
                return Err(Error::usage("--arrivals recorded needs --trace".to_string()));
            }
            let noise = self.predictions()?.unwrap_or(Noise::Demo);
            let max_tokens = self.max_tokens.unwrap_or(self.lengths.max_tokens);
            let dataset = self.lengths.capped(max_tokens);
            let (noise, requests) = (Arc::new(noise), self.requests);
            return Ok(RequestSource::Synthetic { dataset, noise, requests });
        };
        let traces = read_traces(path)?;
        let noise = self.predictions()?;
        self.check_predictions(path, &traces, noise.as_ref())?;
        let max = self.max_tokens.unwrap_or(512);
        let longest = traces.iter().map(|trace| trace.output_tokens).max().unwrap_or(0);
        let jobs = traces.iter().map(|trace| trace.job(max.max(longest))).collect();
        let keeps_gaps = self.arrivals == ArrivalKind::Recorded;
        Ok(RequestSource::Trace { jobs, noise: noise.map(Arc::new), keeps_gaps })
    }

    /// The predictions that the options name.
    fn predictions(&self) -> Result<Option<Noise>, Error> {
        let Some(path) = &self.noise_traces else { return Ok(self.noise.clone()) };
        let set = TraceSet::new(&read_traces(path)?);
        let set = set.map_err(|why| Error::usage(format!("{}: {why}", path.display())))?;
        Ok(Some(Noise::Recorded(set)))
    }

    /// Refuses a policy without the predictions that it ranks by, and predictions besides those of
    /// the trace.
    fn check_predictions(
        &self,
        path: &Path,
        traces: &[Trace],
        noise: Option<&Noise>,
    ) -> Result<(), Error> {
        let name = path.display();
        let recorded = traces.iter().any(|trace| trace.r.is_some() || trace.remaining.is_some());
        if recorded && noise.is_some() {
            return Err(Error::usage(format!(
                "{name} has predictions: leave --noise and --noise-traces out"
            )));
        }
        if recorded || noise.is_some_and(|noise| *noise != Noise::None) {
            return Ok(());
        }
        let ranks =
            |policy: &&PolicyKind| matches!(policy.needs(), Needs::Predictor | Needs::Probe);
        match self.policies.iter().find(ranks) {
            None => Ok(()),
            Some(policy) => Err(Error::usage(format!(
                "{policy} ranks by predictions, and {name} has none: give --noise or --noise-traces"
            ))),
        }
    }

    fn simulation(
        &self,
        model: &ModelArgs,
        engine: &EngineArgs,
        source: &RequestSource,
    ) -> Result<Simulation, Error> {
        let (mut step_model, default, max_gap) = match self.step_model.as_str() {
            "measured" => self.measured(model)?,
            name => {
                let parsed: StepModel = name.parse().map_err(Error::usage)?;
                (parsed, SchedulerConfig::default(), Duration::ZERO)
            }
        };
        for (name, value) in &self.step_constants {
            step_model.set(name, *value).map_err(Error::usage)?;
        }
        step_model.check().map_err(Error::usage)?;
        let base = SchedulerConfig {
            max_running: default.max_running,
            token_budget: default.token_budget,
            ..step_model.scheduler()
        };
        let mut scheduler = engine.simulated(base, source.requests());
        if step_model.kv_tokens.is_none() && engine.kv_blocks().is_none() {
            // As on the CPU: 1.5 times the need of all running sequences.
            scheduler.num_blocks = blocks_for(default.max_context) * scheduler.max_running * 3 / 2;
        }
        scheduler.host_blocks = match scheduler.preemption {
            // The KV of the CPU backend is in host memory already.
            Preemption::Auto if self.step_model == "measured" => 0,
            _ => scheduler.num_blocks,
        };
        if engine.shares_prefixes() && source.has_block_hashes() {
            scheduler.cached_blocks = scheduler.num_blocks;
        }
        scheduler.max_context = source.longest();
        scheduler.validate().map_err(|error| Error::usage(error.to_string()))?;
        let max_gap = engine.max_gap(max_gap);
        Ok(Simulation { scheduler, model: step_model, max_gap, workers: self.workers as u32 })
    }

    /// The step costs of a machine, the sizes of its engine by default, and its bound on gaps.
    fn measured(&self, model: &ModelArgs) -> Result<(StepModel, SchedulerConfig, Duration), Error> {
        let setup = Setup::load(model)?;
        let cost = setup.step_cost(self.step_cost.as_deref())?;
        let device = trail_runtime::engine::ComputeDevice::Cpu;
        let config = &setup.model.config;
        let block_bytes = config.kv_token_bytes(Dtype::F32) * BLOCK_TOKENS as usize;
        let sizes = SchedulerConfig {
            max_running: device.default_max_running() as u32,
            token_budget: device.default_token_budget() as u32,
            max_context: config.max_context as u32,
            ..SchedulerConfig::default()
        };
        let name = format!("measured:{}", setup.name);
        let model = StepModel::measured(&name, cost, block_bytes as f64);
        Ok((model, sizes, device.default_max_gap()))
    }
}

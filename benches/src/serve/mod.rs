//! `bench serve`: scheduling policies compared on the engine that serves, under load.
//!
//! With random weights there is nothing to predict, and output lengths that depend on the generated
//! text would differ between devices. So each request has a forced length, which the policies do
//! not see, and replayed predictions: recorded ones of the demo model's probe for answers of about
//! its length, or others (`--noise`). All runs have the same requests.

mod report;
mod requests;

use clap::Args;
use trail_cli::drive::{self, Display, TimedRequest};
use trail_cli::{EngineArgs, Error, ModelArgs, Setup};
use trail_runtime::engine::{Engine, PolicyKind};
use trail_runtime::model::Dtype;
use trail_scheduler::rng::Rng;
use trail_simulator::Noise;
use trail_simulator::arrivals::Arrivals;

use crate::model::parse_dtype;
use crate::report::BenchReport;
use report::{Comparison, Conditions, Peak, PolicyRun};

/// Options of `bench serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// A model of this shape with random weights, instead of --model: tiny, demo, llama3-8b, ...
    #[arg(long, value_name = "SHAPE", conflicts_with = "model")]
    random_weights: Option<String>,
    /// Storage type of random weights: bf16, f16 or f32
    #[arg(long, default_value = "bf16", value_parser = parse_dtype)]
    dtype: Dtype,
    /// Requests of each run; with --turns, conversations
    #[arg(long, default_value_t = 400,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: u32,
    /// Arrival rates, as shares of the capacity measured first
    #[arg(long, value_delimiter = ',', default_value = "0.6,0.8,1.0,1.2", value_parser = load)]
    loads: Vec<f64>,
    /// Instead of loads: a burst of N requests, all at once
    #[arg(long, value_name = "N", conflicts_with_all = ["requests", "loads"],
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    burst: Option<u32>,
    /// Policies, in order; trail with its share c, or --c
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "fcfs,sjf,trail:0.2,trail:0.5,trail:0.8,trail:1,oracle"
    )]
    policies: Vec<PolicyKind>,
    /// Mean tokens of a prompt; lengths are uniform from half of it to one and a half
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=65_536))]
    prompt_tokens: u32,
    /// Tokens with which all prompts begin alike, before their own
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    shared_prefix: u32,
    /// Turns of a conversation: each but the first arrives when the one before has ended, and its
    /// prompt is the conversation so far and new tokens
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    /// Most output tokens: lengths have the shape of Alpaca's answers, cut here
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_tokens: u32,
    /// Predictions to replay: demo (the bundled probe's, recorded), release (as wrong as TRAIL's
    /// released ones), oracle, none, gaussian:SIGMA or tau:TAU
    #[arg(long, value_name = "NAME", default_value = "demo")]
    noise: Noise,
    /// Seed of lengths, prompts, predictions and arrivals
    #[arg(long, default_value_t = 1)]
    seed: i64,
}

fn load(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(load) if (0.001..=1000.0).contains(&load) => Ok(load),
        _ => Err("expected a number from 0.001 to 1000".into()),
    }
}

/// Measures the capacity, then each policy at each load.
pub fn run(args: &ServeArgs, model: &ModelArgs, engine: &EngineArgs) -> Result<BenchReport, Error> {
    let setup = match &args.random_weights {
        Some(shape) => Setup::random(shape, args.dtype)?,
        None => Setup::load(model)?,
    };
    let setup = setup.replaying();
    let (jobs, replayed_mae) = requests::jobs(args, &setup.model.config);
    let loads = match args.burst {
        Some(_) => vec![None],
        None => args.loads.iter().copied().map(Some).collect(),
    };
    let display = Display::new(1 + loads.len() * args.policies.len());
    let mut bench = Bench { args, setup: &setup, options: engine, jobs, display };

    let (capacity, conditions) = bench.capacity(replayed_mae)?;
    let mut runs = Vec::new();
    for &load in &loads {
        for &policy in &args.policies {
            let policy = engine.with_options(policy);
            runs.push(bench.run(policy, load, load.map(|load| load * capacity))?);
        }
    }
    bench.display.finish();
    let comparison = Comparison { conditions, runs };
    Ok(BenchReport { json: comparison.json(), text: comparison.text() })
}

/// The workload; each run has its own engine.
struct Bench<'a> {
    args: &'a ServeArgs,
    setup: &'a Setup,
    options: &'a EngineArgs,
    jobs: Vec<TimedRequest>,
    display: Display,
}

impl Bench<'_> {
    /// All requests at once, first come first served: tokens per second while requests wait, over
    /// the mean length.
    fn capacity(&mut self, replayed_mae: Option<f64>) -> Result<(f64, Conditions), Error> {
        self.schedule(None);
        let engine = self.engine(PolicyKind::Fcfs)?;
        let (_, run) = self.drive(&engine, "capacity", None)?;
        let tokens: u64 = run.outcomes.iter().map(|outcome| outcome.tokens.len() as u64).sum();
        let capacity = run.saturated_tokens_per_s * run.outcomes.len() as f64 / tokens as f64;
        let conditions = Conditions {
            device: engine.device().into(),
            model: self.setup.name.clone(),
            random_weights: self.args.random_weights.is_some(),
            requests: self.jobs.len(),
            turns: self.args.turns,
            shared_prefix: self.args.shared_prefix,
            output_tokens: tokens,
            capacity_requests_per_s: capacity,
            capacity_tokens_per_s: run.saturated_tokens_per_s,
            max_running: engine.max_running(),
            kv_blocks: engine.kv_blocks(),
            max_tokens: self.args.max_tokens,
            seed: self.args.seed,
            noise: self.args.noise.to_string(),
            replayed_mae,
        };
        Ok((capacity, conditions))
    }

    /// Runs one policy with `rate` arrivals per second, or as a burst.
    fn run(
        &mut self,
        policy: PolicyKind,
        load: Option<f64>,
        rate: Option<f64>,
    ) -> Result<PolicyRun, Error> {
        self.schedule(rate);
        let engine = self.engine(policy)?;
        Ok(self.drive(&engine, &policy.to_string(), load)?.0)
    }

    fn engine(&self, policy: PolicyKind) -> Result<Engine, Error> {
        self.setup.engine_with(self.options, policy, self.jobs.len(), None)
    }

    /// Sets the arrival times of the jobs, of conversations those of the first turns: the same gaps
    /// at every load, scaled.
    fn schedule(&mut self, rate: Option<f64>) {
        let rate = rate.map(|rate| rate / f64::from(self.args.turns));
        let process = rate.map_or(Arrivals::Burst, |rate| Arrivals::Poisson { rate });
        let times = process.seconds(self.jobs.len(), &mut Rng::new(self.args.seed as u64));
        for (job, arrival_s) in self.jobs.iter_mut().zip(times) {
            job.arrival_s = arrival_s;
        }
    }

    fn drive(
        &mut self,
        engine: &Engine,
        policy: &str,
        load: Option<f64>,
    ) -> Result<(PolicyRun, drive::DriveRun), Error> {
        let label = load.map_or(policy.into(), |load| format!("{policy} {load:.2}"));
        self.display.begin(&label, self.jobs.len());
        let (display, mut peak) = (&mut self.display, Peak::default());
        let driven = drive::run_on_wall_clock(engine, &self.jobs, |progress| {
            peak.sample(&engine.stats());
            display.show(progress, engine);
        })?;
        self.display.end();
        verify(&self.jobs, &driven.outcomes)?;
        let first_turns = self.jobs.len() / self.args.turns as usize;
        let (outcomes, makespan_s) = ((&driven.outcomes[..], first_turns), driven.makespan_s);
        let run = PolicyRun::new(policy, load, outcomes, makespan_s, engine.stats(), peak);
        Ok((run, driven))
    }
}

/// Fails if a request has not exactly its forced number of tokens.
fn verify(jobs: &[TimedRequest], outcomes: &[drive::RequestOutcome]) -> Result<(), Error> {
    for (index, (job, outcome)) in jobs.iter().zip(outcomes).enumerate() {
        let (want, got) = (job.request.forced_length.unwrap_or(0), outcome.tokens.len());
        if got as u64 != u64::from(want) {
            return Err(Error::failed(format!(
                "request {index} has {got} tokens instead of {want}: this is a defect of trail-rt, please report it"
            )));
        }
    }
    Ok(())
}

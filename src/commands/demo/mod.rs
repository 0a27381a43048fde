//! `trail-rt demo`: the bundled prompts under several policies, on the real engine and the real clock.
//!
//! One recording run first (all prompts at once, first come first served): it measures the capacity that
//! loads are multiples of, gives the true lengths to `oracle`, and its answers are what every policy's
//! answers must equal, token for token.

mod plot;
mod prompts;
mod report;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use trail_runtime::engine::{PolicyKind, Request, SamplingParams};
use trail_scheduler::rng::Rng;
use trail_scheduler::workload;
use trail_setup::drive::{self, Display, Job, Outcome, drive};
use trail_setup::{EngineArgs, Error, ModelArgs, Setup};

use plot::Curves;
use report::{Conditions, Report, Summary};

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Arrivals {
    /// Exponential gaps, at `--load` times the measured capacity.
    Poisson,
    /// All at once.
    Burst,
}

/// Options of `trail-rt demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Prompts to answer, from the front of the set; 0 for all of them
    #[arg(long, default_value_t = 300)]
    prompts: usize,
    /// File of prompts, one JSON object a line [default: prompts.jsonl beside the model]
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Policies to compare, in order
    #[arg(long, value_delimiter = ',', default_value = "fcfs,trail")]
    policies: Vec<PolicyKind>,
    /// Arrival rate as a multiple of the capacity measured in the same run
    #[arg(long, default_value_t = 2.0)]
    load: f64,
    /// How requests arrive
    #[arg(long, value_enum, default_value_t = Arrivals::Poisson)]
    arrivals: Arrivals,
    /// Most output tokens of a request
    #[arg(long, default_value_t = 512)]
    max_tokens: u32,
    /// Seed of the arrival times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the plot (demo.svg) and the figures (demo.json)
    #[arg(long, value_name = "DIR", default_value = "out")]
    out: PathBuf,
}

/// Runs the demonstration.
pub fn run(
    model: &ModelArgs,
    engine: &EngineArgs,
    args: &DemoArgs,
    json: bool,
) -> Result<(), Error> {
    args.check()?;
    let setup = Setup::load(model)?;
    let mut jobs = jobs(&setup, args)?;
    let display = Display::new(args.policies.len() + 1);
    let mut runner = Runner { setup: &setup, engine, display };

    let recorded = runner.run(PolicyKind::Fcfs, "record", &jobs)?;
    let capacity = jobs.len() as f64 / recorded.makespan_s;
    for (job, outcome) in jobs.iter_mut().zip(&recorded.outcomes) {
        job.request.true_length = Some(outcome.tokens.len() as u32);
    }
    args.schedule(&mut jobs, capacity);

    let (mut summaries, mut curves) = (Vec::new(), Vec::new());
    for policy in &args.policies {
        let run = runner.run(engine.with_c(*policy), policy.name(), &jobs)?;
        same_answers(policy.name(), &recorded.outcomes, &run.outcomes)?;
        curves.push(run.curves(policy.name()));
        summaries.push(run.summary);
    }
    runner.display.finish();
    let conditions = args.conditions(&setup, &recorded, capacity);
    finish(args, &Report { conditions, summaries }, &curves, json)
}

/// One policy's run over the whole workload.
struct Run {
    outcomes: Vec<Outcome>,
    makespan_s: f64,
    summary: Summary,
    device: String,
    slots: usize,
    kv_blocks: usize,
}

impl Run {
    fn curves(&self, policy: &str) -> Curves {
        Curves {
            policy: policy.into(),
            latency_s: self.outcomes.iter().map(|o| o.latency_s).collect(),
            ttft_s: self.outcomes.iter().map(|o| o.ttft_s).collect(),
        }
    }
}

/// Runs workloads, each on an engine of its own.
struct Runner<'a> {
    setup: &'a Setup,
    engine: &'a EngineArgs,
    display: Display,
}

impl Runner<'_> {
    fn run(&mut self, policy: PolicyKind, label: &str, jobs: &[Job]) -> Result<Run, Error> {
        let engine = self.setup.engine_with(self.engine, policy, jobs.len())?;
        self.display.begin(label, jobs.len());
        let display = &mut self.display;
        let show = |progress: &drive::Progress| display.show(progress, &engine);
        let (outcomes, makespan_s) = drive(&engine, jobs, show)?;
        self.display.end();
        let summary = Summary::new(label, &outcomes, makespan_s, engine.stats());
        let (device, slots, kv_blocks) =
            (engine.device().to_string(), engine.slots(), engine.kv_blocks());
        Ok(Run { outcomes, makespan_s, summary, device, slots, kv_blocks })
    }
}

impl DemoArgs {
    fn check(&self) -> Result<(), Error> {
        if !(self.load.is_finite() && self.load > 0.0) {
            return Err(Error::usage(format!("--load is {}: give a number above 0", self.load)));
        }
        if self.max_tokens == 0 {
            return Err(Error::usage("--max-tokens is 0: ask for at least one token"));
        }
        Ok(())
    }

    /// Gives the jobs their arrival times.
    fn schedule(&self, jobs: &mut [Job], capacity: f64) {
        let process = match self.arrivals {
            Arrivals::Burst => workload::Arrivals::Burst,
            Arrivals::Poisson => workload::Arrivals::Poisson { rate: self.load * capacity },
        };
        let times = process.seconds(jobs.len(), &mut Rng::new(self.seed));
        for (job, arrival_s) in jobs.iter_mut().zip(times) {
            job.arrival_s = arrival_s;
        }
    }

    fn conditions(&self, setup: &Setup, recorded: &Run, capacity: f64) -> Conditions {
        Conditions {
            device: recorded.device.clone(),
            model: setup.name.clone(),
            arrivals: match self.arrivals {
                Arrivals::Poisson => "poisson".into(),
                Arrivals::Burst => "burst".into(),
            },
            load: (self.arrivals == Arrivals::Poisson).then_some(self.load),
            capacity_requests_per_s: capacity,
            slots: recorded.slots,
            kv_blocks: recorded.kv_blocks,
            max_tokens: self.max_tokens,
            seed: self.seed,
        }
    }
}

/// The prompts as jobs that all arrive at once.
fn jobs(setup: &Setup, args: &DemoArgs) -> Result<Vec<Job>, Error> {
    let file = args.prompt_file.clone().unwrap_or_else(|| setup.folder.join("prompts.jsonl"));
    let mut prompts = prompts::read(&file)?;
    if args.prompts > prompts.len() {
        return Err(Error::usage(format!(
            "--prompts is {}, {} has {}: ask for fewer, or give another --prompt-file",
            args.prompts,
            file.display(),
            prompts.len()
        )));
    }
    if args.prompts > 0 {
        prompts.truncate(args.prompts);
    }
    prompts
        .iter()
        .map(|prompt| {
            let sampling = SamplingParams { seed: prompt.seed, ..SamplingParams::default() };
            let tokens = setup.user_prompt(&prompt.prompt)?;
            let request = Request { sampling, ..Request::new(tokens, args.max_tokens) };
            Ok(Job { request, arrival_s: 0.0 })
        })
        .collect()
}

/// Every answer is the same whatever the policy: randomness is keyed by seed and position, and a row's
/// logits do not depend on its batch. Anything else is a defect, so it ends the demonstration.
fn same_answers(policy: &str, recorded: &[Outcome], run: &[Outcome]) -> Result<(), Error> {
    for (index, (a, b)) in recorded.iter().zip(run).enumerate() {
        if a.tokens != b.tokens {
            let at = a.tokens.iter().zip(&b.tokens).take_while(|(a, b)| a == b).count();
            return Err(Error::failed(format!(
                "prompt {index} was answered differently under {policy}, from token {at} on: this is a defect of trail-rt, please report it"
            )));
        }
    }
    Ok(())
}

/// Prints the table or the JSON object, and leaves plot and figures in the folder.
fn finish(args: &DemoArgs, report: &Report, curves: &[Curves], json: bool) -> Result<(), Error> {
    let object = report.json();
    let (figures, picture) = (args.out.join("demo.json"), args.out.join("demo.svg"));
    std::fs::create_dir_all(&args.out)
        .and_then(|()| std::fs::write(&figures, format!("{object:#}\n")))
        .map_err(|error| {
            Error::failed(format!(
                "cannot write {}: {error}; choose another --out",
                figures.display()
            ))
        })?;
    let title = match report.conditions.load {
        Some(load) => format!("{} at {load:.2} x capacity", report.conditions.model),
        None => format!("{}, a burst", report.conditions.model),
    };
    plot::draw(&picture, &title, curves)?;
    if json {
        println!("{object}");
    } else {
        println!("{}", report.table());
        println!("Every answer was the same, token for token, under every policy.");
        println!("Plot: {}   Figures: {}", picture.display(), figures.display());
    }
    Ok(())
}

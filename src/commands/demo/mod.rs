//! `trail-rt demo`: the bundled prompts under several policies, on the real engine.
//!
//! One recording run first (all prompts at once, first come first served): it measures the capacity
//! that loads are multiples of, gives the true lengths to `oracle`, and its answers are those that
//! every policy must reproduce, token for token. By default time is simulated from step costs, so
//! that the comparison does not depend on other load of the machine.

mod args;
mod curves;
mod prompts;
mod report;
mod runner;
mod summary;
mod traces;

use std::time::Instant;

use trail_cli::drive::{RequestOutcome, TimedRequest};
use trail_cli::output_file::{GENERATOR, generator, signed_svg};
use trail_cli::{EngineArgs, Error, ModelArgs, Output, OutputFile, Setup};
use trail_runtime::engine::PolicyKind;
use trail_scheduler::rng::Rng;
use trail_simulator::arrivals::Arrivals;

use crate::commands::load::Load;
use crate::plot;
pub use args::DemoArgs;
use args::Files;
use curves::Curves;
use report::{Conditions, DemoReport};
use runner::{Completed, Runner, Timing};
use summary::{Cell, Recording, Summary};

/// Runs the demonstration.
pub fn run(
    model: &ModelArgs,
    engine: &EngineArgs,
    args: &DemoArgs,
    json: bool,
) -> Result<(), Error> {
    args.check()?;
    let setup = Setup::load(model)?;
    let timing = Timing::new(args, &setup)?;
    let mut jobs = prompts::jobs(&setup, args)?;
    let files = args.files()?;
    let begin = Instant::now();
    let cells = args.loads().len() * args.seed.len();
    let runs = 1 + cells * args.policies.len() * args.rounds();
    let mut runner = Runner::new(&setup, engine, timing, runs);

    let recorded = runner.run(PolicyKind::Fcfs, "record", &jobs, None)?;
    for (job, outcome) in jobs.iter_mut().zip(&recorded.run.outcomes) {
        job.request.true_length = Some(outcome.tokens.len() as u32);
    }
    let recording = Recording::of(&recorded);
    let (mut measured, mut curves) = (Vec::new(), Vec::new());
    for load in args.loads() {
        for &seed in &args.seed {
            schedule(&mut jobs, load, seed as u64, &recording);
            if let Some(file) = files.traces.as_ref().filter(|_| curves.is_empty()) {
                traces::write(file, &setup, &jobs, &recorded.run.outcomes)?;
            }
            let cell = Cell { load, seed, rounds: Vec::new() };
            let logs = if curves.is_empty() { &files.logs[..] } else { &[] };
            let run = Runs { args, jobs: &jobs, recorded: &recorded, logs };
            let (cell, of_cell) = run.cell(&mut runner, cell)?;
            if curves.is_empty() {
                curves = of_cell;
            }
            measured.push(cell);
        }
    }
    runner.finish();
    let conditions = Conditions {
        device: recorded.device.clone(),
        model: setup.name.clone(),
        max_running: recorded.max_running,
        kv_blocks: recorded.kv_blocks,
        max_tokens: args.max_tokens,
        clock: args.clock,
        step_cost: runner.step_cost(),
        wall_s: begin.elapsed().as_secs_f64(),
    };
    finish(&files, &DemoReport { conditions, recording, cells: measured }, &curves, json)
}

/// The runs of a cell: every policy, `--rounds` times in turn.
struct Runs<'a> {
    args: &'a DemoArgs,
    jobs: &'a [TimedRequest],
    recorded: &'a Completed,
    /// Decision logs of the first round; empty for none.
    logs: &'a [OutputFile],
}

impl Runs<'_> {
    fn cell(&self, runner: &mut Runner<'_>, mut cell: Cell) -> Result<(Cell, Vec<Curves>), Error> {
        let mut curves = Vec::new();
        for round in 0..self.args.rounds() {
            let mut summaries = Vec::new();
            for (index, policy) in self.args.policies.iter().enumerate() {
                let label = policy.label();
                let log = self.logs.get(index).filter(|_| round == 0);
                let run = runner.run(*policy, &label, self.jobs, log)?;
                same_answers(&label, &self.recorded.run.outcomes, &run.run.outcomes)?;
                if round == 0 {
                    curves.push(Curves::of(&label, &run.run.outcomes));
                }
                summaries.push(Summary::new(&label, &run));
            }
            cell.rounds.push(summaries);
        }
        Ok((cell, curves))
    }
}

/// Gives the jobs their arrival times: at every load the same gaps, scaled.
fn schedule(jobs: &mut [TimedRequest], load: Load, seed: u64, recording: &Recording) {
    let process = match load {
        Load::Burst => Arrivals::Burst,
        Load::Rate(load) => Arrivals::Poisson { rate: load * recording.requests_per_s() },
    };
    let times = process.seconds(jobs.len(), &mut Rng::new(seed));
    for (job, arrival_s) in jobs.iter_mut().zip(times) {
        job.arrival_s = arrival_s;
    }
}

/// Every answer is the same under every policy: randomness is keyed by seed and position, and a
/// row's logits do not depend on its batch. A difference is a defect, and ends the demonstration.
fn same_answers(
    policy: &str,
    recorded: &[RequestOutcome],
    run: &[RequestOutcome],
) -> Result<(), Error> {
    for (index, (a, b)) in recorded.iter().zip(run).enumerate() {
        if a.tokens != b.tokens {
            let at = a.tokens.iter().zip(&b.tokens).take_while(|(a, b)| a == b).count();
            return Err(Error::failed(format!(
                "prompt {index} was answered differently under {policy}, from token {at} on: \
                 this is a defect of trail-rt, please report it"
            )));
        }
    }
    Ok(())
}

/// Prints the table or the JSON object, and leaves plot and figures in `files`.
fn finish(files: &Files, report: &DemoReport, curves: &[Curves], json: bool) -> Result<(), Error> {
    let mut object = report.json();
    // The table of a run that took minutes is printed though the files cannot be written, and they
    // are written though it cannot be printed.
    let mut output = Output::stdout();
    let printed = output.line(&if json { object.to_string() } else { report.text() });
    object[GENERATOR] = generator("demo").into();
    files.figures.write(&format!("{object:#}\n"))?;
    let picture = plot::draw(&report.title(), &curves::panels(curves, report.factor()))?;
    files.plot.write(&signed_svg(&picture, "demo"))?;
    printed?;
    if json {
        return Ok(());
    }
    let (plot, figures) = (files.plot.path().display(), files.figures.path().display());
    output.line("Every answer was the same, token for token, under every policy.")?;
    output.line(&format!("Plot: {plot}   Figures: {figures}"))
}

//! `trail-rt simulate`: policies compared on a virtual clock, without a model.
//!
//! The scheduler is the engine's; a model of the step time stands in for the device. Loads are
//! multiples of the capacity, which a burst under FCFS measures first.

mod args;
mod experiment;
mod figures;
mod report;
mod runner;
mod scenario;

use trail_cli::{EngineArgs, Error, ModelArgs, Output};

pub use args::SimulateArgs;
use report::{Bound, SimulationReport};
use runner::Runner;
use scenario::Scenario;

use crate::interrupt::Interrupt;

/// Runs the simulations, or an experiment.
pub fn run(
    model: &ModelArgs,
    engine: &EngineArgs,
    args: &SimulateArgs,
    json: bool,
) -> Result<(), Error> {
    match args.experiment.as_deref() {
        Some("list") => return experiment::list(json),
        Some(name) => return experiment::run(name, args, json),
        None => {}
    }
    let scenarios = args.scenarios(model, engine)?;
    let seeds = args.seeds(&[1]);
    let mut runner = Runner::new(scenarios.len() * seeds.len(), Interrupt::listen()?);
    let mut figures = Vec::new();
    for (scenario, seed) in pairs(&scenarios, &seeds) {
        let run = runner.run(scenario, seed)?;
        let interrupted = run.interrupted;
        figures.push(figures::Figures::of(scenario, seed, &run));
        if interrupted {
            break;
        }
    }
    runner.finish();
    let cut = runner.is_interrupted();
    let bounds = if cut { Vec::new() } else { bounds(&mut runner, &scenarios, &seeds)? };
    let unfinished = figures.last().filter(|figures| figures.interrupted);
    let cut = cut.then(|| match unfinished {
        Some(of) => format!("interrupted: {} at {} is not complete", of.policy, of.load),
        None => "interrupted: the lower bounds are not computed".into(),
    });
    let report = SimulationReport { figures, bounds, capacities: runner.into_capacities() };
    Output::stdout().line(&if json { report.json().to_string() } else { report.text() })?;
    cut.map_or(Ok(()), |message| Err(Error::interrupted(message)))
}

/// A mean latency below which no policy comes, for each load and seed; of one worker.
fn bounds(runner: &mut Runner, scenarios: &[Scenario], seeds: &[u64]) -> Result<Vec<Bound>, Error> {
    let mut bounds: Vec<Bound> = Vec::new();
    for (scenario, seed) in pairs(scenarios, seeds) {
        let load = scenario.pace.to_string();
        let is_known = bounds.iter().any(|bound| bound.load == load && bound.seed == seed);
        if !is_known && scenario.simulation.workers == 1 {
            bounds.push(Bound { load, seed, latency_mean_s: runner.bound_s(scenario, seed)? });
        }
    }
    Ok(bounds)
}

/// Every scenario with every seed: at one load and seed all policies in turn.
fn pairs<'a>(
    scenarios: &'a [Scenario],
    seeds: &'a [u64],
) -> impl Iterator<Item = (&'a Scenario, u64)> {
    scenarios.iter().flat_map(move |scenario| seeds.iter().map(move |&seed| (scenario, seed)))
}

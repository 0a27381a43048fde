//! Runs scenarios one after another: capacity, progress, interruption.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use trail_cli::Error;
use trail_cli::drive::Display;
use trail_runtime::engine::PolicyKind;
use trail_simulator::{Job, Progress, SimulationRun, lower_bound};

use super::scenario::{Pace, Scenario};
use crate::interrupt::Interrupt;

/// Requests for each running sequence by which the capacity is measured.
const CAPACITY_ROUNDS: usize = 20;

/// Capacity of one source on one simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Output tokens per second while requests wait.
    pub tokens_per_s: f64,
    /// The same over the mean output length.
    pub requests_per_s: f64,
}

/// Runs scenarios.
pub struct Runner {
    display: Display,
    interrupt: Interrupt,
    /// By source, sizes and seed.
    capacities: BTreeMap<String, Capacity>,
}

impl Runner {
    /// A runner whose display counts `runs` runs.
    pub fn new(runs: usize, interrupt: Interrupt) -> Runner {
        Runner { display: Display::new(runs), interrupt, capacities: BTreeMap::new() }
    }

    /// Runs `scenario` with `seed`; an interrupted run has the requests answered until then.
    pub fn run(&mut self, scenario: &Scenario, seed: u64) -> Result<SimulationRun, Error> {
        let label = format!("{} {}", scenario.policy, scenario.pace);
        self.display.begin(&label, scenario.source.requests());
        let jobs = self.jobs(scenario, seed)?;
        let (display, interrupt) = (&mut self.display, &self.interrupt);
        let run = simulate(scenario, scenario.policy, &jobs, &mut |progress| {
            display.draw(progress.finished, |seconds| {
                let rate = 60.0 * progress.finished as f64 / seconds;
                format!("{} steps, {rate:.0} requests/min", progress.steps)
            });
            match interrupt.is_set() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        self.display.end();
        Ok(run)
    }

    /// Mean latency below which no policy comes on the requests of `scenario`, seconds.
    pub fn bound_s(&mut self, scenario: &Scenario, seed: u64) -> Result<f64, Error> {
        let jobs = self.jobs(scenario, seed)?;
        Ok(lower_bound(&scenario.simulation, &jobs))
    }

    fn jobs(&mut self, scenario: &Scenario, seed: u64) -> Result<Vec<Job>, Error> {
        let capacity = match scenario.pace {
            Pace::Load { .. } => self.capacity(scenario, seed)?.requests_per_s,
            _ => 1.0,
        };
        Ok(scenario.jobs(seed, capacity))
    }

    /// Tokens per second while requests wait: all at once, first come first served.
    fn capacity(&mut self, scenario: &Scenario, seed: u64) -> Result<Capacity, Error> {
        let Scenario { source, simulation, .. } = scenario;
        let model = &simulation.model.name;
        let key = format!("{} on {model}, seed {seed}", source.name());
        if let Some(capacity) = self.capacities.get(&key) {
            return Ok(*capacity);
        }
        let sequences = (simulation.scheduler.max_running * simulation.workers) as usize;
        let requests =
            (CAPACITY_ROUNDS * sequences).min(simulation.scheduler.max_requests as usize);
        let jobs = source.burst(requests, seed);
        let run = simulate(scenario, PolicyKind::Fcfs, &jobs, &mut |_| ControlFlow::Continue(()))?;
        let mean_tokens = run.tokens as f64 / run.outcomes.len().max(1) as f64;
        let tokens_per_s = run.saturated_tokens_per_s;
        let capacity = Capacity { tokens_per_s, requests_per_s: tokens_per_s / mean_tokens };
        self.capacities.insert(key, capacity);
        Ok(capacity)
    }

    /// Ends the display.
    pub fn finish(&self) {
        self.display.finish();
    }

    /// True after SIGINT.
    pub fn is_interrupted(&self) -> bool {
        self.interrupt.is_set()
    }

    /// The capacities measured.
    pub fn into_capacities(self) -> BTreeMap<String, Capacity> {
        self.capacities
    }
}

fn simulate(
    scenario: &Scenario,
    policy: PolicyKind,
    jobs: &[Job],
    watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<SimulationRun, Error> {
    let run = scenario.simulation.run(&|| policy.build(), jobs, watch);
    run.map_err(|error| Error::usage(error.to_string()))
}

//! Runs of the demonstration, each on its own engine.

use std::sync::Arc;

use trail_cli::drive::{self, Display, DriveRun, TimedRequest};
use trail_cli::{EngineArgs, Error, OutputFile, Setup};
use trail_runtime::engine::{Engine, PolicyKind, Stats, StepClock, StepCost};

use super::args::{ClockKind, DemoArgs};

/// Source of time of every run.
#[derive(Clone, Copy, Debug)]
pub enum Timing {
    /// The wall clock.
    Wall,
    /// Simulated from these costs.
    Steps(StepCost),
}

impl Timing {
    /// The timing that the options ask for.
    pub fn new(args: &DemoArgs, setup: &Setup) -> Result<Timing, Error> {
        match args.clock {
            ClockKind::Wall => Ok(Timing::Wall),
            ClockKind::Steps => setup.step_cost(args.step_cost.as_deref()).map(Timing::Steps),
        }
    }
}

/// A completed run, and properties of its engine.
pub struct Completed {
    /// Outcomes and times.
    pub run: DriveRun,
    /// The engine's counters at the end.
    pub stats: Stats,
    /// Description of the device.
    pub device: String,
    /// Most sequences in a step.
    pub max_running: usize,
    /// KV blocks of 16 tokens.
    pub kv_blocks: usize,
}

/// Runs workloads, each on its own engine.
pub struct Runner<'a> {
    setup: &'a Setup,
    engine: &'a EngineArgs,
    timing: Timing,
    display: Display,
}

impl<'a> Runner<'a> {
    /// A runner whose display counts `runs` runs.
    pub fn new(setup: &'a Setup, engine: &'a EngineArgs, timing: Timing, runs: usize) -> Self {
        Runner { setup, engine, timing, display: Display::new(runs) }
    }

    /// Runs `jobs` under `policy` with the options of the rank, with a decision log in `log`.
    pub fn run(
        &mut self,
        policy: PolicyKind,
        label: &str,
        jobs: &[TimedRequest],
        log: Option<&OutputFile>,
    ) -> Result<Completed, Error> {
        self.display.begin(label, jobs.len());
        let Runner { setup, engine: args, timing, display } = self;
        let policy = setup.with_options(args, policy)?;
        let completed = match timing {
            Timing::Wall => {
                let engine = setup.engine_with(args, policy, jobs.len(), log)?;
                let run = drive::run_on_wall_clock(&engine, jobs, |progress| {
                    display.show(progress, &engine)
                })?;
                complete(run, &engine)
            }
            Timing::Steps(cost) => {
                let clock = Arc::new(StepClock::new(*cost));
                let mut engine =
                    setup.stepped_engine_with(args, policy, jobs.len(), log, clock.clone())?;
                let show = |progress: &drive::Progress, engine: &Engine| {
                    display.show(progress, engine);
                };
                let run = drive::run_on_step_clock(&mut engine, &clock, jobs, show)?;
                complete(run, &engine)
            }
        };
        self.display.end();
        Ok(completed)
    }

    /// The costs of a simulated clock.
    pub fn step_cost(&self) -> Option<StepCost> {
        match self.timing {
            Timing::Wall => None,
            Timing::Steps(cost) => Some(cost),
        }
    }

    /// Ends the display.
    pub fn finish(&self) {
        self.display.finish();
    }
}

fn complete(run: DriveRun, engine: &Engine) -> Completed {
    Completed {
        run,
        stats: engine.stats(),
        device: engine.device().to_string(),
        max_running: engine.max_running(),
        kv_blocks: engine.kv_blocks(),
    }
}

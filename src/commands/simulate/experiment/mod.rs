//! The papers' scheduling experiments: one value per figure or table.

mod curves;
mod elis;
mod example;
mod ltr;
mod report;
mod rr_sjf;
mod trail;

use trail_cli::output_file::signed_svg;
use trail_cli::{Error, Output, OutputFile, Table};
use trail_simulator::SimulationRun;

use super::SimulateArgs;
use super::figures::Figures;
use super::runner::Runner;
use super::scenario::Scenario;
use crate::interrupt::Interrupt;
use crate::plot::{self, Panel};

/// Seeds of every run, unless they are named.
const SEEDS: [u64; 3] = [1, 2, 3];

/// A figure or table of a paper.
pub struct Experiment {
    /// Name on the command line.
    pub name: &'static str,
    /// Paper, and figure or table.
    pub source: &'static str,
    /// The paper's claim.
    pub claim: &'static str,
    /// Conditions here, and the reasons for which results may differ.
    pub conditions: &'static str,
    /// The runs.
    pub grid: fn() -> Vec<Trial>,
    /// The results beside the paper's.
    pub read: fn(&[Measured]) -> Vec<Finding>,
    /// The panels of the plot.
    pub panels: fn(&[Measured]) -> Vec<Panel>,
}

/// One point of a grid.
pub struct Trial {
    /// Name of its curve.
    pub label: String,
    /// Its place on the x axis, where that is a parameter.
    pub x: f64,
    /// The run.
    pub scenario: Scenario,
}

/// The runs of a trial: one per seed.
pub struct Measured {
    /// Name of its curve.
    pub label: String,
    /// Its place on the x axis.
    pub x: f64,
    /// Seed and run.
    pub runs: Vec<(u64, SimulationRun)>,
    /// Figures of each run.
    pub figures: Vec<Figures>,
}

impl Measured {
    /// One number of each run.
    pub fn each(&self, of: impl Fn(&Figures) -> f64) -> Vec<f64> {
        self.figures.iter().map(of).collect()
    }
}

/// A number of the paper beside ours.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The quantity, with its unit.
    pub quantity: String,
    /// The paper's value; in words where none is printed.
    pub paper: String,
    /// Ours, by seed.
    pub ours: Vec<f64>,
}

impl Finding {
    /// A finding with our values by seed.
    pub fn new(quantity: impl Into<String>, paper: impl Into<String>, ours: Vec<f64>) -> Finding {
        Finding { quantity: quantity.into(), paper: paper.into(), ours }
    }
}

/// The trial of a label.
pub fn labelled<'a>(measured: &'a [Measured], label: &str) -> &'a Measured {
    let found = measured.iter().find(|measured| measured.label == label);
    found.expect("the experiment's own grid has the label")
}

/// Ratios a / b of one number, by seed.
pub fn ratios(a: &Measured, b: &Measured, of: fn(&Figures) -> f64) -> Vec<f64> {
    a.each(of).iter().zip(b.each(of)).map(|(a, b)| a / b).collect()
}

/// All experiments.
const ALL: [Experiment; 37] = [
    trail::FIG5,
    trail::FIG6,
    trail::RELEASE,
    trail::FIG7,
    trail::FIG8,
    trail::FIG9,
    trail::FIG10,
    trail::FIG11,
    trail::FIG12,
    ltr::FIG1,
    ltr::FIG2A,
    ltr::FIG2B,
    ltr::FIG3,
    ltr::FIG4,
    ltr::FIG5,
    ltr::FIG6,
    ltr::FIG7,
    ltr::TABLE1,
    ltr::TABLE2,
    ltr::TABLE3,
    ltr::TABLE7,
    ltr::TABLE9,
    elis::FIG4,
    elis::FIG5,
    elis::FIG6,
    elis::FIG7,
    elis::TABLE5,
    elis::TABLE6,
    rr_sjf::FIG1,
    rr_sjf::FIG2,
    rr_sjf::FIG3,
    rr_sjf::FIG4,
    rr_sjf::FIG5,
    rr_sjf::FIG6,
    rr_sjf::FIG7,
    rr_sjf::FIG8,
    rr_sjf::FIG9,
];

/// Prints the names.
pub fn list(json: bool) -> Result<(), Error> {
    let mut table = Table::default().group("", &["name", "source", "claim"]);
    for Experiment { name, source, claim, .. } in ALL {
        table.row([name, source, claim].map(String::from));
    }
    let text = match json {
        true => serde_json::json!(ALL.each_ref().map(|e| e.name).to_vec()).to_string(),
        false => table.to_string(),
    };
    Output::stdout().line(&text)
}

/// Runs the experiment `name`, prints its results and leaves its plot.
pub fn run(name: &str, args: &SimulateArgs, json: bool) -> Result<(), Error> {
    let experiment = ALL.into_iter().find(|experiment| experiment.name == name);
    let experiment = experiment.ok_or_else(|| {
        let names = ALL.map(|experiment| experiment.name).join(", ");
        Error::usage(format!("unknown experiment '{name}': choose one of {names}"))
    })?;
    let plot = OutputFile::claim(args.out.join(format!("{name}.svg")), args.force)?;
    let (seeds, grid) = (args.seeds(&SEEDS), (experiment.grid)());
    let mut runner = Runner::new(grid.len() * seeds.len(), Interrupt::listen()?);
    let mut measured = Vec::new();
    for Trial { label, x, scenario } in grid {
        let mut of_trial = Measured { label, x, runs: Vec::new(), figures: Vec::new() };
        for &seed in &seeds {
            let run = runner.run(&scenario, seed)?;
            of_trial.figures.push(Figures::of(&scenario, seed, &run));
            of_trial.runs.push((seed, run));
            if runner.is_interrupted() {
                return interrupted(&experiment, measured, of_trial, json);
            }
        }
        measured.push(of_trial);
    }
    runner.finish();
    let findings = (experiment.read)(&measured);
    let picture = plot::draw(experiment.source, &(experiment.panels)(&measured))?;
    plot.write(&signed_svg(&picture, "simulate"))?;
    let text = match json {
        true => report::json(&experiment, &measured, &findings).to_string(),
        false => {
            let text = report::text(&experiment, &measured, &findings);
            format!("{text}\nPlot: {}", plot.path().display())
        }
    };
    Output::stdout().line(&text)
}

/// Prints the runs there are; findings need all.
fn interrupted(
    experiment: &Experiment,
    mut measured: Vec<Measured>,
    last: Measured,
    json: bool,
) -> Result<(), Error> {
    measured.push(last);
    let text = match json {
        true => report::json(experiment, &measured, &[]).to_string(),
        false => report::text(experiment, &measured, &[]),
    };
    Output::stdout().line(&text)?;
    Err(Error::interrupted("interrupted: the experiment is not complete"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_grid_builds_valid_runs() {
        let names: BTreeSet<&str> = ALL.iter().map(|experiment| experiment.name).collect();
        assert_eq!(names.len(), ALL.len());
        for experiment in ALL {
            for Trial { label, x, scenario } in (experiment.grid)() {
                let at = format!("{}: {label} at {x}", experiment.name);
                let scheduler = &scenario.simulation.scheduler;
                assert_eq!(scheduler.validate(), Ok(()), "{at}");
                assert_eq!(scenario.simulation.model.check(), Ok(()), "{at}");
                assert!(scenario.source.longest() <= scheduler.max_context, "{at}");
                assert!(x.is_finite() && scenario.policy.build().name() != "", "{at}");
            }
        }
    }

    #[test]
    fn no_two_trials_of_a_grid_are_the_same_point() {
        for experiment in ALL {
            let grid = (experiment.grid)();
            let points: BTreeSet<(&str, u64)> =
                grid.iter().map(|trial| (&*trial.label, trial.x.to_bits())).collect();
            assert_eq!(points.len(), grid.len(), "{}", experiment.name);
        }
    }
}

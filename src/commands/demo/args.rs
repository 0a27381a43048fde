//! Options of `trail-rt demo`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::Serialize;
use trail_cli::{Error, OutputFile};
use trail_runtime::engine::PolicyKind;

use crate::commands::load::Load;

/// Source of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ClockKind {
    /// Simulated: each step takes its calibrated cost, so that runs are comparable on a busy
    /// machine.
    Steps,
    /// Real time.
    Wall,
}

/// Arrival process of the option `--arrivals`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ArrivalKind {
    /// Exponential gaps, at each `--load`.
    Poisson,
    /// All at once.
    Burst,
}

/// Options of `trail-rt demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Number of prompts to answer, from the front of the set; 0 for all
    #[arg(long, default_value_t = 300)]
    pub(super) prompts: usize,
    /// File of prompts, one JSON object a line [default: prompts.jsonl beside the model]
    #[arg(long, value_name = "FILE")]
    pub(super) prompt_file: Option<PathBuf>,
    /// Policies to compare, in order
    #[arg(long, value_delimiter = ',', default_value = "fcfs,trail")]
    pub(super) policies: Vec<PolicyKind>,
    /// Arrival rates as multiples of the capacity measured first, or burst; a list shares one
    /// recording
    #[arg(long, value_delimiter = ',', default_value = "2.0")]
    load: Vec<Load>,
    /// Arrival process; burst is the same as --load burst
    #[arg(long, value_enum, default_value_t = ArrivalKind::Poisson)]
    arrivals: ArrivalKind,
    /// Most output tokens of a request
    #[arg(long, default_value_t = 512)]
    pub(super) max_tokens: u32,
    /// Seeds of the arrival times; a list shares one recording
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(super) seed: Vec<i64>,
    /// Source of time
    #[arg(long, value_enum, default_value_t = ClockKind::Steps)]
    pub(super) clock: ClockKind,
    /// Step costs of the simulated clock [default: step_cost.json beside the model]
    #[arg(long, value_name = "FILE")]
    pub(super) step_cost: Option<PathBuf>,
    /// Rounds of all policies in turn under --clock wall; ratios are medians over rounds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Folder for the plot (demo.svg) and the figures (demo.json)
    #[arg(long, value_name = "DIR", default_value = "out")]
    pub(super) out: PathBuf,
    /// File for the requests of the first load and their recorded predictions, one JSON object a
    /// line, for simulate --trace
    #[arg(long, value_name = "FILE")]
    traces: Option<PathBuf>,
    /// Record the first run of each policy: its decision log goes to FILE with the policy's name
    /// before the extension (log.jsonl: log.trail.jsonl); trail-rt replay reads it
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Replace a demo.svg, demo.json, trace file or decision log that no earlier run wrote
    #[arg(long)]
    force: bool,
}

/// The result files of a run.
#[derive(Debug)]
pub struct Files {
    /// The figures, demo.json.
    pub(super) figures: OutputFile,
    /// The plot, demo.svg.
    pub(super) plot: OutputFile,
    /// The traces, if they are asked for.
    pub(super) traces: Option<OutputFile>,
    /// The decision logs, if they are asked for: one for each policy.
    pub(super) logs: Vec<OutputFile>,
}

impl DemoArgs {
    /// Refuses values that no run can have.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.max_tokens {
            0 => Err(Error::usage("--max-tokens is 0: ask for at least one token")),
            _ => Ok(()),
        }
    }

    /// The result files: the figures and the plot.
    pub(super) fn files(&self) -> Result<Files, Error> {
        let claim = |name: &str| OutputFile::claim(self.out.join(name), self.force);
        // A trace file does not name the program: --force alone replaces one.
        let traces = self.traces.clone().map(|path| OutputFile::claim(path, self.force));
        let traces = traces.transpose()?;
        if let Some(path) = self.record.as_ref().filter(|path| path.exists() && !path.is_file()) {
            return Err(Error::usage(format!(
                "--record {}: each policy has its own log, FILE.POLICY.jsonl, and this is no \
                 file: choose another name",
                path.display()
            )));
        }
        let log_of = |path: &Path, policy: &PolicyKind| {
            OutputFile::claim(log_path(path, &policy.label()), self.force)
        };
        let logs = self
            .record
            .iter()
            .flat_map(|path| self.policies.iter().map(move |policy| log_of(path, policy)));
        let logs = logs.collect::<Result<_, _>>()?;
        Ok(Files { figures: claim("demo.json")?, plot: claim("demo.svg")?, traces, logs })
    }

    /// The loads to compare under.
    pub(super) fn loads(&self) -> Vec<Load> {
        match self.arrivals {
            ArrivalKind::Poisson => self.load.clone(),
            ArrivalKind::Burst => vec![Load::Burst],
        }
    }

    /// Rounds of each cell: a simulated run has nothing to repeat.
    pub(super) fn rounds(&self) -> usize {
        match self.clock {
            ClockKind::Steps => 1,
            ClockKind::Wall => self.rounds as usize,
        }
    }
}

/// `path` with the label of a policy before the extension. Colons are no part of a file's name
/// everywhere.
fn log_path(path: &Path, label: &str) -> PathBuf {
    let extension = path.extension().map_or("jsonl".into(), |text| text.to_string_lossy());
    path.with_extension(format!("{}.{extension}", label.replace(':', "-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_named_after_its_policy() {
        for (path, label, want) in [
            ("out/log.jsonl", "trail", "out/log.trail.jsonl"),
            ("log", "ltr:200:10", "log.ltr-200-10.jsonl"),
        ] {
            assert_eq!(log_path(Path::new(path), label), Path::new(want));
        }
    }
}

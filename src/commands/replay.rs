//! `trail-rt replay`: a decision log, replayed exactly, or simulated under another policy.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::json;
use trail_cli::{EngineArgs, Error, Output, Spread, Table, notice};
use trail_platform::read::read_text;
use trail_scheduler::log::DecisionLog;
use trail_scheduler::policies::PolicyKind;
use trail_simulator::replay::{Recording, Replay, ReplayError};
use trail_simulator::{JobOutcome, SimulationRun};

use crate::interrupt::Interrupt;

/// Largest log read, MiB.
const MAX_MIB: u64 = 2048;

/// Options of `trail-rt replay`.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// A decision log, from serve --record or demo --record. With --policy and the options of the
    /// ranking its requests are simulated under that policy, too
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Replays the log; under another policy than the recorded one it simulates as well.
pub fn run(engine: &EngineArgs, args: &ReplayArgs, json: bool) -> Result<(), Error> {
    let Repeated { replay, policy: recorded, left_out } = Repeated::read(&args.file)?;
    let other = engine.policy_or(recorded);
    let mut report = Report {
        left_out_from_line: left_out,
        policy: recorded.to_string(),
        plans: replay.plans,
        decisions: replay.decisions,
        runs: vec![Figures::of("recorded", recorded, &replay.recording.run())],
    };
    if other != recorded {
        let interrupt = Interrupt::listen()?;
        for policy in [recorded, other] {
            let run = simulate(&replay.recording, policy, &interrupt)?;
            report.runs.push(Figures::of("simulated", policy, &run));
        }
    }
    let text = if json { report.json().to_string() } else { report.text() };
    Output::stdout().line(text.trim_end())
}

/// A decision log that was repeated.
pub(super) struct Repeated {
    pub(super) replay: Replay,
    /// The recorded policy.
    pub(super) policy: PolicyKind,
    /// The first line that is left out of a log that was cut off.
    left_out: Option<usize>,
}

impl Repeated {
    /// Reads the log in `file`, and repeats its decisions; fails if one differs.
    pub(super) fn read(file: &Path) -> Result<Repeated, Error> {
        let name = file.display();
        let text = read_text(file, MAX_MIB)
            .map_err(|error| Error::usage(format!("cannot read the log {name}: {error}")))?;
        let damaged = |error: &dyn std::fmt::Display| {
            Error::usage(format!("{name}: {error}: give a decision log, which --record writes"))
        };
        let (log, left_out) = DecisionLog::parse_cut(&text).map_err(|error| damaged(&error))?;
        if let Some(line) = left_out {
            notice(format_args!("warning: {name} is cut off: read up to line {}", line - 1));
        }
        let replay = Replay::run(&log).map_err(|error| match error {
            ReplayError::Damaged(error) => damaged(&error),
            ReplayError::Differs(error) => {
                Error::failed(format!("{name}: the replay differs: {error}"))
            }
        })?;
        Ok(Repeated { replay, policy: log.header.policy, left_out })
    }
}

/// Simulates the recorded requests under `policy`; fails if it is interrupted.
pub(super) fn simulate(
    recording: &Recording,
    policy: PolicyKind,
    interrupt: &Interrupt,
) -> Result<SimulationRun, Error> {
    let run = recording.simulate(policy, &mut |_| match interrupt.is_set() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    });
    let run = run.map_err(|error| Error::failed(format!("cannot simulate {policy}: {error}")))?;
    match run.interrupted {
        true => Err(Error::interrupted(format!("interrupted in the simulation of {policy}"))),
        false => Ok(run),
    }
}

/// The replay, and the runs to compare.
struct Report {
    /// The first line that is left out of a log that was cut off.
    left_out_from_line: Option<usize>,
    policy: String,
    plans: u64,
    decisions: u64,
    /// The recorded run; then, both simulated, the recorded policy and the other one.
    runs: Vec<Figures>,
}

/// Figures of a run, in seconds.
#[derive(Serialize)]
struct Figures {
    /// True times of the engine (`recorded`), or step times fitted to them (`simulated`).
    times: &'static str,
    policy: String,
    requests: usize,
    latency_s: Spread,
    ttft_s: Spread,
    preemptions: u64,
    evictions: u64,
}

impl Figures {
    fn of(times: &'static str, policy: PolicyKind, run: &SimulationRun) -> Figures {
        let spread = |of: fn(&JobOutcome) -> f64| Spread::of(run.outcomes.iter().map(of));
        Figures {
            times,
            policy: policy.to_string(),
            requests: run.outcomes.len(),
            latency_s: spread(|outcome| outcome.latency_s),
            ttft_s: spread(|outcome| outcome.ttft_s),
            preemptions: run.preemptions,
            evictions: run.evictions,
        }
    }

    /// Mean and p99 latency, mean and p99 TTFT, seconds.
    fn times_s(&self) -> [f64; 4] {
        [self.latency_s.mean, self.latency_s.p99, self.ttft_s.mean, self.ttft_s.p99]
    }
}

impl Report {
    fn json(&self) -> serde_json::Value {
        json!({
            "policy": self.policy,
            "steps": self.plans,
            "decisions": self.decisions,
            "same": true,
            "left_out_from_line": self.left_out_from_line,
            "runs": self.runs,
        })
    }

    fn text(&self) -> String {
        let Report { policy, plans, decisions, .. } = self;
        let mut text = format!(
            "{plans} plans with {decisions} decisions: the same as recorded under {policy}\n\n"
        );
        let mut table = Table::default()
            .group("", &["times", "policy", "requests"])
            .group("latency, s", &["mean", "p99"])
            .group("TTFT, s", &["mean", "p99"])
            .group("", &["preempt", "evict"]);
        for run in &self.runs {
            let mut cells = vec![run.times.into(), run.policy.clone(), run.requests.to_string()];
            cells.extend(run.times_s().map(|seconds| format!("{seconds:.3}")));
            cells.extend([run.preemptions, run.evictions].map(|count| count.to_string()));
            table.row(cells);
        }
        if let [_, before, after] = &self.runs[..] {
            let mut cells = vec!["difference".into(), String::new(), String::new()];
            let pairs = before.times_s().into_iter().zip(after.times_s());
            cells.extend(pairs.map(|(before, after)| percent(before, after)));
            let counts =
                [(before.preemptions, after.preemptions), (before.evictions, after.evictions)];
            cells
                .extend(counts.map(|(before, after)| {
                    format!("{:+}", i128::from(after) - i128::from(before))
                }));
            table.row(cells);
        }
        text += &table.to_string();
        text
    }
}

/// The change from `before` to `after`.
fn percent(before: f64, after: f64) -> String {
    match before > 0.0 {
        true => format!("{:+.1} %", 100.0 * (after / before - 1.0)),
        false => "-".into(),
    }
}

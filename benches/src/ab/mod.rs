//! `bench ab`: this build against another, in interleaved rounds on one machine.

mod figures;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use serde_json::{Value, json};
use trail_cli::{Error, count};
use trail_platform::stats::median;

use crate::report::{BenchReport, Column, Group};
use figures::{Comparison, Figures, Filter};

/// Ticks of a second in /proc: USER_HZ, the same on every architecture that Rust's Linux runs on.
const TICKS_PER_S: f64 = 100.0;

/// Options of `bench ab`.
#[derive(Args, Clone, Debug)]
pub struct AbArgs {
    /// Another build of this program, which it is compared with
    #[arg(value_name = "OTHER_BINARY")]
    other: PathBuf,
    /// Rounds; each runs both, in alternating order
    #[arg(long, default_value_t = 9, value_parser = count::<1000>)]
    rounds: usize,
    /// Compare the figures whose path contains this, instead of all times and rates
    #[arg(long, value_name = "PART")]
    figure: Option<String>,
    /// Fail if a median is worse by more than this factor, such as 1.02
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    worse: Option<f64>,
    /// Arguments of `bench` for both: a part and its options
    #[arg(last = true, required = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

fn factor(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 1.0);
    value.ok_or_else(|| "expected a number of at least 1".into())
}

const COLUMNS: &[Group] = &[
    Group("", &[Column("figure", "/figure", 0), Column("better", "/better", 0)]),
    Group("median", &[Column("other", "/other", 3), Column("this", "/this", 3)]),
    Group(
        "this / other, by round",
        &[
            Column("median", "/ratio/median", 4),
            Column("min", "/ratio/min", 4),
            Column("max", "/ratio/max", 4),
        ],
    ),
    Group("", &[Column("noise", "/noise", 4), Column("verdict", "/verdict", 0)]),
];

/// One run of a benchmark.
struct Run {
    figures: Figures,
    /// CPU time of the process; `None` where there is no /proc.
    cpu_s: Option<f64>,
}

/// Runs both programs. Returns the report, and the failure if a figure is worse than allowed.
pub fn run(args: &AbArgs) -> Result<(BenchReport, Option<Error>), Error> {
    let this = std::env::current_exe().map_err(|e| format!("the path of this program: {e}"))?;
    let (mut others, mut these) = (Vec::new(), Vec::new());
    // The first run of a program reads its files: not counted.
    measure(&args.other, &args.args)?;
    measure(&this, &args.args)?;
    for round in 0..args.rounds {
        // A drift of the machine meets both orders.
        if round % 2 == 0 {
            others.push(measure(&args.other, &args.args)?);
            these.push(measure(&this, &args.args)?);
        } else {
            these.push(measure(&this, &args.args)?);
            others.push(measure(&args.other, &args.args)?);
        }
    }
    let filter = args.figure.as_deref().map_or(Filter::TimesAndRates, Filter::Containing);
    let of = |runs: &[Run]| runs.iter().map(|run| run.figures.clone()).collect::<Vec<_>>();
    let compared = figures::compare(&of(&others), &of(&these), filter);
    if compared.is_empty() {
        return Err(Error::usage("both programs report no such figure"));
    }
    let report = json!({
        "other": args.other,
        "rounds": args.rounds,
        "cpu_s": { "other": cpu_s(&others), "this": cpu_s(&these) },
        "figures": compared.iter().map(Comparison::report).collect::<Vec<_>>(),
    });
    let failure = args.worse.and_then(|factor| failure(&compared, factor));
    Ok((BenchReport::new(report, COLUMNS), failure))
}

/// The error that says which figures are worse by more than `factor`.
fn failure(compared: &[Comparison], factor: f64) -> Option<Error> {
    let judged: Vec<(&Comparison, f64)> =
        compared.iter().filter_map(|one| Some((one, one.worse_by()?))).collect();
    if judged.is_empty() {
        return Some(Error::usage(
            "--worse: of no compared figure is it known which way is better",
        ));
    }
    let worse = judged.iter().filter(|(_, by)| *by > factor);
    let worse: Vec<String> = worse.map(|(one, by)| format!("{} by {by:.4}", one.figure)).collect();
    let message = format!("worse than a factor of {factor}: {}", worse.join(", "));
    (!worse.is_empty()).then(|| Error::failed(message))
}

/// Median CPU time of the processes.
fn cpu_s(runs: &[Run]) -> Option<f64> {
    let seconds: Option<Vec<f64>> = runs.iter().map(|run| run.cpu_s).collect();
    seconds.map(|seconds| median(&seconds))
}

/// Runs `program bench ARGS --json`.
fn measure(program: &Path, args: &[OsString]) -> Result<Run, Error> {
    let name = program.display();
    let before = children_s();
    let output = Command::new(program).arg("bench").args(args).arg("--json").output();
    let output = output.map_err(|e| format!("{name}: {e}"))?;
    let cpu_s = children_s().zip(before).map(|(after, before)| after - before);
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        return Err(Error::failed(format!("{name}: {}: {last}", output.status)));
    }
    let report: Value = serde_json::from_slice(&output.stdout)
        .map_err(|e| format!("{name} bench does not print JSON: {e}"))?;
    Ok(Run { figures: figures::flatten(&report), cpu_s })
}

/// CPU time of all children that this process has waited for, seconds.
fn children_s() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name, in parentheses, can contain blanks; the fields after it are numbered from 3.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    Some((ticks(16)? + ticks(17)?) / TICKS_PER_S)
}

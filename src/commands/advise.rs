//! `trail-rt advise`: what scheduling can give on recorded traffic.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::json;
use trail_cli::{EngineArgs, Error, Output, Table};
use trail_platform::Rng;
use trail_platform::stats::Sorted;
use trail_runtime::engine::{Needs, PolicyKind};
use trail_scheduler::policies::{Oracle, Sjf, Trail};
use trail_simulator::{SimulationRun, lower_bound};

use super::replay::{Repeated, simulate};
use crate::interrupt::Interrupt;

/// Options of `trail-rt advise`.
#[derive(Args, Debug)]
pub struct AdviseArgs {
    /// A decision log, from serve --record or demo --record
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Draws of a bootstrap.
const DRAWS: usize = 1000;

/// Least number of requests of a log from which advice is given.
const MIN_REQUESTS: usize = 30;
/// Largest relative difference of the recorded mean latency and that of its simulation with which
/// advice is given.
const MAX_OFF: f64 = 0.25;

/// Largest p99 over FCFS's of a policy that is recommended without a remark.
const MAX_P99: f64 = 1.15;

/// Simulates the log's requests under each policy, and bounds what any could do.
pub fn run(engine: &EngineArgs, args: &AdviseArgs, json: bool) -> Result<(), Error> {
    let Repeated { replay, policy: recorded, .. } = Repeated::read(&args.file)?;
    let recording = replay.recording;
    let jobs = recording.jobs();
    if jobs.is_empty() {
        let name = args.file.display();
        return Err(Error::failed(format!("{name} has no answered request: record more")));
    }
    let interrupt = Interrupt::listen()?;
    let mut policies = vec![
        PolicyKind::Fcfs,
        engine.with_options(PolicyKind::Sjf(Sjf::default())),
        engine.with_options(PolicyKind::Trail(Trail::default())),
        PolicyKind::Oracle(Oracle::default()),
    ];
    if !policies.contains(&recorded) {
        policies.push(recorded);
    }
    let predicts = jobs.iter().any(|job| job.r.is_some());
    let ranks = |policy: &PolicyKind| matches!(policy.needs(), Needs::Predictor | Needs::Probe);
    policies.retain(|policy| predicts || !ranks(policy));
    let mut rows: Vec<Row> = Vec::new();
    let mut fcfs: Option<SimulationRun> = None;
    let mut again_s = None;
    for policy in policies {
        let run = simulate(&recording, policy, &interrupt)?;
        let mut row = Row::of(policy, &run, fcfs.as_ref().unwrap_or(&run));
        if policy == recorded {
            again_s = Some(row.latency_mean_s);
            row.has_recorded_options = rows.iter().any(|other| other.policy == row.policy);
        }
        rows.push(row);
        fcfs.get_or_insert(run);
    }
    let bound_s = lower_bound(&recording.simulation(), &jobs);
    let own = latencies(&recording.run());
    let own_s = own.iter().sum::<f64>() / own.len() as f64;
    let requests = jobs.len();
    let advice = Advice { requests, recorded, own_s, again_s, rows, bound_s, predicts };
    let text = if json { advice.json().to_string() } else { advice.text() };
    Output::stdout().line(text.trim_end())
}

/// Figures of a policy beside those of FCFS.
#[derive(Serialize)]
struct Row {
    policy: String,
    /// True of the recorded policy if it has options, which its name does not show, beside the same
    /// policy without.
    has_recorded_options: bool,
    latency_mean_s: f64,
    latency_p99_s: f64,
    ttft_mean_s: f64,
    /// FCFS's mean latency over the policy's, and its 90 % interval over requests.
    gain: f64,
    gain_90: [f64; 2],
    /// The policy's p99 over FCFS's.
    p99_over_fcfs: f64,
}

impl Row {
    fn of(policy: PolicyKind, run: &SimulationRun, fcfs: &SimulationRun) -> Row {
        let own = latencies(run);
        let first = latencies(fcfs);
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
        Row {
            policy: policy.to_string(),
            has_recorded_options: false,
            latency_mean_s: mean(&own),
            latency_p99_s: p99(&own),
            ttft_mean_s: mean(&run.outcomes.iter().map(|of| of.ttft_s).collect::<Vec<_>>()),
            gain: mean(&first) / mean(&own),
            gain_90: interval(&first, &own),
            p99_over_fcfs: p99(&own) / p99(&first),
        }
    }
}

impl Row {
    /// Words behind the name for options that it does not show.
    fn options(&self) -> &'static str {
        if self.has_recorded_options { " with the recorded options" } else { "" }
    }
}

/// Latencies in order of arrival, seconds.
fn latencies(run: &SimulationRun) -> Vec<f64> {
    run.outcomes.iter().map(|outcome| outcome.latency_s).collect()
}

/// As in the report of a simulation.
fn p99(values: &[f64]) -> f64 {
    Sorted::of(values.iter().copied()).nearest_rank(0.99)
}

/// The 90 % interval of the ratio of the means of `above` and `below`, pairs by request: requests
/// drawn with replacement (bootstrap).
fn interval(above: &[f64], below: &[f64]) -> [f64; 2] {
    let mut rng = Rng::new(1);
    let count = above.len().min(below.len());
    let mut ratios: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let (mut sums, mut left) = ([0.0; 2], count);
            while left > 0 {
                let at = rng.below(count as u64) as usize;
                sums = [sums[0] + above[at], sums[1] + below[at]];
                left -= 1;
            }
            sums[0] / sums[1]
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    [ratios[DRAWS / 20], ratios[DRAWS - 1 - DRAWS / 20]]
}

struct Advice {
    requests: usize,
    recorded: PolicyKind,
    /// Mean latency in the log, seconds.
    own_s: f64,
    /// Mean latency in its simulation under the recorded policy, if it was simulated.
    again_s: Option<f64>,
    rows: Vec<Row>,
    /// Mean latency that no policy can come below, seconds.
    bound_s: f64,
    /// True if the log has predictions.
    predicts: bool,
}

impl Advice {
    fn json(&self) -> serde_json::Value {
        json!({
            "requests": self.requests,
            "recorded_policy": self.recorded.to_string(),
            "recorded_latency_mean_s": self.own_s,
            "doubts": self.doubts(),
            "policies": self.rows,
            "latency_mean_bound_s": self.bound_s,
            "gain_bound": self.rows[0].latency_mean_s / self.bound_s,
        })
    }

    fn text(&self) -> String {
        let mut table = Table::default()
            .group("", &["policy"])
            .group("latency, s", &["mean", "p99"])
            .group("TTFT, s", &["mean"])
            .group("FCFS / policy, mean", &["", "90 % interval"])
            .group("policy / FCFS", &["p99"]);
        for row in &self.rows {
            table.row([
                format!("{}{}", row.policy, row.options()),
                format!("{:.3}", row.latency_mean_s),
                format!("{:.3}", row.latency_p99_s),
                format!("{:.3}", row.ttft_mean_s),
                format!("{:.2}x", row.gain),
                format!("{:.2}-{:.2}", row.gain_90[0], row.gain_90[1]),
                format!("{:.2}x", row.p99_over_fcfs),
            ]);
        }
        let fcfs = &self.rows[0];
        let mut text = format!(
            "{} answered requests, recorded under {}; simulated with the recorded arrivals, \
             lengths and predictions, and step costs fitted to the log\n\n{table}\n\
             No policy, whatever it knows, has a mean below {:.3} s here: scheduling can give at \
             most {:.2}x.\n",
            self.requests,
            self.recorded,
            self.bound_s,
            fcfs.latency_mean_s / self.bound_s,
        );
        if !self.predicts {
            text += "The log has no predictions: record under a policy that has a probe or a \
                     length predictor to see sjf and trail.\n";
        }
        text + &match self.doubts() {
            Some(doubts) => format!("No advice: {doubts}.\n"),
            None => self.recommendation(),
        }
    }

    /// Why no advice is given, if that is so.
    fn doubts(&self) -> Option<String> {
        if self.requests < MIN_REQUESTS {
            return Some(format!("{} requests are few, record more", self.requests));
        }
        let (own_s, recorded) = (self.own_s, self.recorded);
        let again_s = self.again_s.filter(|again_s| (again_s / own_s - 1.0).abs() > MAX_OFF)?;
        Some(format!(
            "the log's own mean latency is {own_s:.3} s, and {again_s:.3} s in its simulation \
             under {recorded}: its steps take more or less time than their work says (a machine \
             that others use, or speculation), or its policy was changed. Record again"
        ))
    }

    /// The policy of the best mean whose gain is beyond doubt and whose p99 is near FCFS's, and the
    /// one of a better mean at the cost of the tail.
    fn recommendation(&self) -> String {
        let gains = |row: &&Row| row.gain_90[0] > 1.0 && !row.policy.starts_with("oracle");
        let best = |rows: &mut dyn Iterator<Item = &Row>| -> Option<String> {
            let row = rows.filter(gains).max_by(|a, b| a.gain.total_cmp(&b.gain))?;
            let (mean, p99) = (1.0 / row.gain, row.p99_over_fcfs);
            Some(format!(
                "--policy {}{} ({mean:.2}x the mean latency of fcfs, p99 {p99:.2}x)",
                row.policy,
                row.options()
            ))
        };
        let any = best(&mut self.rows.iter());
        let near = best(&mut self.rows.iter().filter(|row| row.p99_over_fcfs <= MAX_P99));
        match (near, any) {
            (Some(near), any) if any.as_ref() == Some(&near) => format!("Serve with {near}.\n"),
            (near, Some(any)) => format!(
                "Serve with {any}, or, if p99 counts more, with {}.\n",
                near.unwrap_or_else(|| "--policy fcfs".into())
            ),
            (_, None) => {
                "Serve with --policy fcfs: no other is better beyond the interval.\n".into()
            }
        }
    }
}

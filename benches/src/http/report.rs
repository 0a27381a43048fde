//! The report of `bench http`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;
use trail_cli::{Error, Spread, Table};
use trail_platform::stats::Sorted;

use super::client::Answer;
use super::slo::{is_smooth, longest_gap_s, ttft_s};
use super::{HttpArgs, check};
use crate::report::BenchReport;

/// Conditions of all runs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Conditions {
    url: String,
    model: String,
    requests: usize,
    max_tokens: usize,
    temperature: f64,
    reading_speed: f64,
    capacity_requests_per_s: Option<f64>,
    seed: u64,
}

impl Conditions {
    pub(super) fn new(
        args: &HttpArgs,
        model: &str,
        requests: usize,
        capacity: Option<f64>,
    ) -> Conditions {
        Conditions {
            url: args.url.clone(),
            model: model.into(),
            requests,
            max_tokens: args.max_tokens,
            temperature: args.temperature,
            reading_speed: args.reading_speed,
            capacity_requests_per_s: capacity,
            seed: args.seed,
        }
    }
}

/// Figures of one run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    policy: Option<String>,
    /// Rate over the capacity.
    rate_share: Option<f64>,
    /// Arrivals per second; null for a burst.
    rate: Option<f64>,
    round: usize,
    failed: usize,
    /// The first failure.
    failure: Option<String>,
    latency_s: Spread,
    ttft_s: Spread,
    /// Of each answer the mean time between two tokens.
    inter_token_s: Spread,
    longest_gap_s: Spread,
    /// Share of the answers without a stall at the reading speed.
    smooth_share: f64,
    /// Share of the requests within the limits of --slo, and their number per second.
    good_share: Option<f64>,
    goodput_per_s: Option<f64>,
    tokens_per_s: f64,
    /// The most by which a request was sent late, seconds: load that the client did not keep.
    late_s: f64,
}

impl Run {
    pub(super) fn new(
        args: &HttpArgs,
        (policy, rate_share, rate, round): (Option<&String>, Option<f64>, Option<f64>, usize),
        answers: &[Answer],
    ) -> Result<Run, Error> {
        check(answers)?;
        let whole: Vec<&Answer> = answers.iter().filter(|of| of.error.is_none()).collect();
        let spread =
            |of: &dyn Fn(&Answer) -> f64| Spread::of(whole.iter().map(|answer| of(answer)));
        let decoded = whole.iter().filter(|of| of.tokens > 1);
        let inter_token =
            decoded.map(|of| (of.latency_s - ttft_s(of)) / (of.tokens.max(2) - 1) as f64);
        let good = answers.iter().filter(|of| args.slo.is_met(of)).count() as f64;
        let smooth = whole.iter().filter(|of| is_smooth(of, args.reading_speed)).count() as f64;
        let tokens: u64 = whole.iter().map(|of| of.tokens).sum();
        let span_s = span_s(answers);
        let has_slo = args.slo.is_any();
        Ok(Run {
            policy: policy.cloned(),
            rate_share,
            rate,
            round,
            failed: answers.len() - whole.len(),
            failure: answers.iter().find_map(|of| of.error.clone()),
            latency_s: spread(&|of| of.latency_s),
            ttft_s: spread(&ttft_s),
            inter_token_s: Spread::of(inter_token),
            longest_gap_s: spread(&longest_gap_s),
            smooth_share: smooth / whole.len() as f64,
            good_share: has_slo.then(|| good / answers.len() as f64),
            goodput_per_s: has_slo.then(|| good / span_s),
            tokens_per_s: tokens as f64 / span_s,
            late_s: answers.iter().map(|of| of.late_s).fold(0.0, f64::max),
        })
    }

    /// Rate and policy.
    fn condition(&self) -> Vec<String> {
        let rate = match (self.rate_share, self.rate) {
            (Some(share), _) => format!("{share:.2}"),
            (None, Some(rate)) => format!("{rate:.2}/s"),
            (None, None) => "burst".into(),
        };
        vec![rate, self.policy.clone().unwrap_or_else(|| "-".into())]
    }

    fn cells(&self) -> Vec<String> {
        let mut cells = self.condition();
        cells.push(self.round.to_string());
        for Spread { mean, p50, p90, p99, .. } in [self.latency_s, self.ttft_s] {
            cells.extend([mean, p50, p90, p99].map(|seconds| format!("{seconds:.2}")));
        }
        let Spread { mean, p99, .. } = self.inter_token_s;
        cells.extend([mean, p99].map(|seconds| format!("{:.1}", seconds * 1e3)));
        cells.push(format!("{:.2}", self.longest_gap_s.p99));
        cells.push(format!("{:.0}", 100.0 * self.smooth_share));
        cells.push(self.good_share.map_or("-".into(), |share| format!("{:.0}", 100.0 * share)));
        cells.push(format!("{:.0}", self.tokens_per_s));
        cells.push(self.failed.to_string());
        cells
    }
}

/// Seconds from the beginning of a run to its last end.
fn span_s(answers: &[Answer]) -> f64 {
    answers.iter().map(|of| of.due_s + of.latency_s).fold(1e-3, f64::max)
}

/// A figure over the rounds: the middle one, the least and the largest. Of an even number of rounds
/// the middle is the geometric mean of two, as for ratios.
fn over_rounds(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let sorted = Sorted::of(values);
    let values = sorted.values();
    let middle = (values[(values.len() - 1) / 2] * values[values.len() / 2]).sqrt();
    [middle, values[0], values[values.len() - 1]]
}

/// The rounds of a rate and policy: figures of latency, each over the rounds.
#[derive(Clone, Debug, Serialize)]
struct Rounds {
    policy: Option<String>,
    rate_share: Option<f64>,
    rate: Option<f64>,
    rounds: usize,
    latency_mean_s: [f64; 3],
    latency_p50_s: [f64; 3],
    latency_p90_s: [f64; 3],
    latency_p99_s: [f64; 3],
    #[serde(skip)]
    condition: Vec<String>,
}

impl Rounds {
    /// Of all rates and policies that have several rounds.
    fn all(runs: &[Run]) -> Vec<Rounds> {
        let mut groups: Vec<Vec<&Run>> = Vec::new();
        for run in runs {
            let is_like = |of: &Run| of.rate == run.rate && of.policy == run.policy;
            match groups.iter_mut().find(|group| is_like(group[0])) {
                Some(group) => group.push(run),
                None => groups.push(vec![run]),
            }
        }
        groups.iter().filter(|group| group.len() > 1).map(|group| Rounds::of(group)).collect()
    }

    fn of(group: &[&Run]) -> Rounds {
        let figure =
            |of: fn(&Spread) -> f64| over_rounds(group.iter().map(|run| of(&run.latency_s)));
        Rounds {
            policy: group[0].policy.clone(),
            rate_share: group[0].rate_share,
            rate: group[0].rate,
            rounds: group.len(),
            latency_mean_s: figure(|of| of.mean),
            latency_p50_s: figure(|of| of.p50),
            latency_p90_s: figure(|of| of.p90),
            latency_p99_s: figure(|of| of.p99),
            condition: group[0].condition(),
        }
    }

    fn cells(&self) -> Vec<String> {
        let Rounds { latency_mean_s: mean, latency_p50_s: p50, .. } = *self;
        let figures = [mean, p50, self.latency_p90_s, self.latency_p99_s];
        let show = |[middle, low, high]: [f64; 3]| format!("{middle:.2} ({low:.2}-{high:.2})");
        let mut cells = self.condition.clone();
        cells.push(self.rounds.to_string());
        cells.extend(figures.map(show));
        cells
    }
}

/// Mean latency of the first policy over that of another, at a rate.
#[derive(Clone, Debug, Serialize)]
struct Ratio {
    rate_share: Option<f64>,
    rate: Option<f64>,
    policy: String,
    over: String,
    /// Median of the rounds, and the least and the largest.
    mean_latency: [f64; 3],
    p99_latency: [f64; 3],
}

/// The ratios of all policies to the first one: above 1 where they are faster.
fn ratios(runs: &[Run]) -> Vec<Ratio> {
    let mut groups: BTreeMap<(usize, String), Vec<[f64; 2]>> = BTreeMap::new();
    let first = runs.first().and_then(|run| run.policy.clone()).unwrap_or_default();
    let mut rates: Vec<(Option<f64>, Option<f64>)> = Vec::new();
    for run in runs.iter().filter(|run| run.policy.as_ref() != Some(&first)) {
        let same = |of: &&Run| of.rate == run.rate && of.round == run.round;
        let base = runs.iter().filter(same).find(|of| of.policy.as_ref() == Some(&first));
        let (Some(base), Some(policy)) = (base, run.policy.clone()) else { continue };
        let rate = (run.rate_share, run.rate);
        let at = rates.iter().position(|of| *of == rate).unwrap_or_else(|| {
            rates.push(rate);
            rates.len() - 1
        });
        groups.entry((at, policy)).or_default().push([
            base.latency_s.mean / run.latency_s.mean,
            base.latency_s.p99 / run.latency_s.p99,
        ]);
    }
    let spread = |rounds: &[[f64; 2]], which: usize| over_rounds(rounds.iter().map(|of| of[which]));
    let ratio = |((at, policy), rounds): ((usize, String), Vec<[f64; 2]>)| Ratio {
        rate_share: rates[at].0,
        rate: rates[at].1,
        policy,
        over: first.clone(),
        mean_latency: spread(&rounds, 0),
        p99_latency: spread(&rounds, 1),
    };
    groups.into_iter().map(ratio).collect()
}

/// The report of `runs`.
pub(super) fn report(conditions: &Conditions, runs: &[Run]) -> BenchReport {
    let ratios = ratios(runs);
    let mut table = Table::default()
        .group("", &["rate", "policy", "round"])
        .group("latency, s", &["mean", "p50", "p90", "p99"])
        .group("TTFT, s", &["mean", "p50", "p90", "p99"])
        .group("inter-token, ms", &["mean", "p99"])
        .group("longest gap, s", &["p99"])
        .group("", &["smooth, %", "good, %", "tokens/s", "failed"]);
    runs.iter().for_each(|run| table.row(run.cells()));
    let mut lines = vec![format!(
        "{} requests of up to {} tokens to {} on {}",
        conditions.requests, conditions.max_tokens, conditions.model, conditions.url
    )];
    if let Some(capacity) = conditions.capacity_requests_per_s {
        lines.push(format!(
            "capacity {capacity:.2} requests/s (all at once); rates are shares of it"
        ));
    }
    lines.push(format!("\n{table}"));
    let rounds = Rounds::all(runs);
    if !rounds.is_empty() {
        let mut table = Table::default()
            .group("", &["rate", "policy", "rounds"])
            .group("latency, s: middle of the rounds (range)", &["mean", "p50", "p90", "p99"]);
        rounds.iter().for_each(|of| table.row(of.cells()));
        lines.push(format!("{table}"));
    }
    for of in &ratios {
        let rate = of.rate_share.or(of.rate).map_or("burst".into(), |rate| format!("{rate:.2}"));
        let [mean, low, high] = of.mean_latency;
        let [p99, p99_low, p99_high] = of.p99_latency;
        lines.push(format!(
            "{rate}: {} over {}: mean latency {mean:.2}x ({low:.2} to {high:.2}), p99 {p99:.2}x \
             ({p99_low:.2} to {p99_high:.2})",
            of.over, of.policy
        ));
    }
    let late_s = runs.iter().map(|run| run.late_s).fold(0.0, f64::max);
    if late_s > 0.05 {
        lines.push(format!(
            "warning: requests were sent up to {late_s:.2} s late: the load is less"
        ));
    }
    if let Some(why) = runs.iter().find_map(|run| run.failure.as_ref()) {
        lines.push(format!("the first failure: {why}"));
    }
    let mut object = json!(conditions);
    object["runs"] = json!(runs);
    object["rounds"] = json!(rounds);
    object["ratios"] = json!(ratios);
    BenchReport { json: object, text: lines.join("\n") }
}

//! The choice of the filter and of the rank's options for a probe and a length predictor together,
//! by how they schedule.

use std::fmt;

use serde::{Serialize, Serializer};
use trail_cli::{Error, Table};
use trail_probe::predictor::Predictor;
use trail_probe::{FilterKind, LengthPredictor, Probe, Prompt, RankOptions};
use trail_runtime::engine::PolicyKind;
use trail_scheduler::policies::{Ranking, Trail};
use trail_simulator::Job;
use trail_training::Shard;

use super::candidate::Candidate;
use super::replay::{Contender, LOADS, Replayed, replay};

/// Largest p99 latency over FCFS's that is preferred.
const TAIL: f64 = 1.15;

/// Rows of the table.
const SHOWN: usize = 10;

/// Values of `--min-run-tokens`, `--express` and `--initial-share`, the defaults first.
const MIN_RUN_TOKENS: [u32; 2] = [Ranking::DEFAULT.min_run_tokens, 0];
const EXPRESS: [f32; 2] = [Ranking::DEFAULT.express, 1.0];
const INITIAL_SHARES: [f32; 2] = [Ranking::DEFAULT.initial_share, 0.25];

/// A filter and options of the rank, and how they schedule.
#[derive(Clone, Debug, Serialize)]
pub struct Trial {
    /// `--filter`.
    #[serde(serialize_with = "name")]
    filter: FilterKind,
    /// `--min-run-tokens`.
    min_run_tokens: u32,
    /// `--express`.
    express: f32,
    /// `--initial-share`.
    initial_share: f32,
    /// Under the default tail bound.
    #[serde(flatten)]
    replayed: Replayed,
}

fn name<S: Serializer>(filter: &FilterKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(filter.name())
}

/// Compares filters and options of the rank, the candidate's filter with the defaults first. r is
/// `predictor`'s, or the probe's, which has no share in a rank: a server without a predictor asks
/// the probe only with `--length-predictor prompt-probe`.
pub fn compare(
    candidate: &mut Candidate,
    shards: &[Shard],
    predictor: Option<&Predictor>,
) -> Result<Vec<Trial>, Error> {
    let own = candidate.probe.filter_kind();
    let mut filters: Vec<FilterKind> = candidate.filters().collect();
    filters.sort_by_key(|&filter| filter != own);
    let of_filter = |&filter: &FilterKind| {
        candidate.probe.filter_kind = Some(filter);
        with_r(candidate, shards, predictor)
    };
    let jobs: Vec<Vec<Job>> = filters.iter().map(of_filter).collect();
    candidate.probe.filter_kind = Some(own);
    let shares = if predictor.is_some() { &INITIAL_SHARES[..] } else { &INITIAL_SHARES[..1] };
    let mut grid = Vec::new();
    for (&filter, jobs) in filters.iter().zip(&jobs) {
        for min_run_tokens in MIN_RUN_TOKENS {
            for express in EXPRESS {
                for &initial_share in shares {
                    let options =
                        Ranking { min_run_tokens, express, initial_share, ..Ranking::DEFAULT };
                    grid.push((filter, options, jobs));
                }
            }
        }
    }
    let contenders = grid.iter().map(|&(_, ranking, jobs)| Contender {
        policy: PolicyKind::Trail(Trail { ranking, ..Trail::default() }),
        jobs,
    });
    let replayed = replay(&contenders.collect::<Vec<_>>())?;
    let options = grid.iter().zip(replayed).map(|(&(filter, ranking, _), replayed)| {
        let Ranking { min_run_tokens, express, initial_share, .. } = ranking;
        Trial { filter, min_run_tokens, express, initial_share, replayed }
    });
    Ok(options.collect())
}

/// The answers with the predictions of the candidate's filter, and r of `predictor`, if any.
fn with_r(candidate: &Candidate, shards: &[Shard], predictor: Option<&Predictor>) -> Vec<Job> {
    let mut jobs = candidate.jobs();
    if let Some(predictor) = predictor {
        for (job, answer) in jobs.iter_mut().zip(&candidate.answers) {
            let (shard, request) = answer.request;
            let prompt = &shards[shard as usize].answers()[request as usize].prompt;
            job.r = predictor.predict(&Prompt::new(prompt)).map(|of| of.mean());
        }
    }
    jobs
}

/// The table of the defaults, of the chosen ones and of the best others.
pub fn table(options: &[Trial]) -> Table {
    let columns = LOADS.map(|load| format!("load {load}"));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::default()
        .group("", &["options", "--filter", "--min-run-tokens", "--express", "--initial-share"])
        .group("FCFS / trail, mean latency", &columns)
        .group("trail / FCFS, p99", &columns)
        .group("behind the best by", &["mean", "standard error"]);
    let chosen = choice(options);
    let kind = |at: usize| match (at == 0, at == chosen) {
        (true, true) => "default, chosen",
        (true, false) => "default",
        (false, true) => "chosen",
        (false, false) => "",
    };
    let order = |at: usize| (kind(at).is_empty(), at != 0);
    let shortfall = |at: usize| options[at].replayed.shortfall;
    let mut rows: Vec<usize> = (0..options.len()).collect();
    rows.sort_by(|&a, &b| order(a).cmp(&order(b)).then(shortfall(a).total_cmp(&shortfall(b))));
    for &at in rows.iter().take(SHOWN) {
        let of = &options[at];
        let names = [kind(at), of.filter.name()].map(str::to_owned);
        let numbers = [of.min_run_tokens as f32, of.express, of.initial_share];
        let numbers = numbers.map(|of| of.to_string());
        let figures = [of.replayed.gains, of.replayed.tails].concat();
        let figures: Vec<String> = figures.iter().map(|figure| format!("{figure:.3}")).collect();
        table.row([&names[..], &numbers, &figures, &of.replayed.cells()].concat());
    }
    table
}

impl Trial {
    /// Makes them what `probe` is served with.
    pub fn set(&self, probe: &mut Probe) {
        probe.filter_kind = Some(self.filter);
        probe.rank_options = self.rank_options();
    }

    /// Those that are not the defaults.
    fn rank_options(&self) -> RankOptions {
        let default = Ranking::DEFAULT;
        let other = |of: f32, default: f32| (of != default).then_some(of);
        let Trial { min_run_tokens, express, initial_share, .. } = *self;
        RankOptions {
            min_run_tokens: (min_run_tokens != default.min_run_tokens).then_some(min_run_tokens),
            express: other(express, default.express),
            initial_share: other(initial_share, default.initial_share),
        }
    }
}

/// In the words of the report.
impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "filter {}", self.filter.name())?;
        let mut named = self.rank_options().named();
        named.try_for_each(|(name, value)| write!(f, ", {} {value}", name.replace('_', "-")))
    }
}

/// The filter and options to serve with.
pub fn chosen(trials: &[Trial]) -> &Trial {
    &trials[choice(trials)]
}

/// Of the options whose p99 stays within [`TAIL`], of all if none does: those no further behind the
/// best mean than the standard error; of these the defaults, else the ones with the least p99.
fn choice(options: &[Trial]) -> usize {
    let tail = |at: usize| options[at].replayed.tails.into_iter().fold(0.0, f64::max);
    let shortfall = |at: usize| options[at].replayed.shortfall;
    let any = (0..options.len()).any(|at| tail(at) <= TAIL);
    let kept = (0..options.len()).filter(|&at| !any || tail(at) <= TAIL);
    let best = kept.clone().map(shortfall).fold(f64::INFINITY, f64::min);
    let mut equal = kept.filter(|&at| shortfall(at) - best <= options[at].replayed.standard_error);
    let first = equal.next().expect("the best is equal to itself");
    let less = |a: usize, b: usize| if tail(b) < tail(a) { b } else { a };
    if first == 0 { 0 } else { equal.fold(first, less) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(of: &[(f64, f64)]) -> Vec<Trial> {
        let replayed = |&(shortfall, tail): &(f64, f64)| {
            let (gains, tails) = ([1.2; LOADS.len()], [tail; LOADS.len()]);
            Replayed { gains, tails, shortfall, standard_error: 0.02 }
        };
        let of = of.iter().map(replayed);
        let of = of.zip(0..).map(|(replayed, min_run_tokens)| {
            let (filter, express, initial_share) = (FilterKind::Raw, 0.5, 0.0);
            Trial { filter, min_run_tokens, express, initial_share, replayed }
        });
        of.collect()
    }

    #[test]
    fn the_best_mean_within_the_tail_is_chosen_and_the_defaults_where_they_are_as_good() {
        let chosen = |of: &[(f64, f64)]| choice(&options(of));
        assert_eq!(chosen(&[(0.03, 1.1), (0.0, 1.2), (0.005, 1.15)]), 2);
        assert_eq!(chosen(&[(0.03, 1.3), (0.0, 1.2), (0.03, 1.2)]), 1, "none keeps the bound");
        assert_eq!(chosen(&[(0.015, 1.1), (0.0, 1.1)]), 0, "within the error");
        assert_eq!(chosen(&[(0.001, 1.3), (0.05, 1.1)]), 1, "a tail beyond the bound");
        assert_eq!(chosen(&[(0.05, 1.1), (0.0, 1.12), (0.01, 1.1), (0.03, 1.0)]), 2, "less p99");
    }

    #[test]
    fn a_probe_names_what_differs_from_the_defaults() {
        let mut probe = Probe::random(4, 0, 1);
        let mut of = options(&[(0.0, 1.0)]).swap_remove(0);
        of.min_run_tokens = Ranking::DEFAULT.min_run_tokens;
        of.set(&mut probe);
        assert_eq!(probe.rank_options, RankOptions::default());
        assert_eq!(of.to_string(), "filter raw");
        (of.filter, of.min_run_tokens, of.express) = (FilterKind::Bins, 0, 1.0);
        of.set(&mut probe);
        let named =
            RankOptions { min_run_tokens: Some(0), express: Some(1.0), initial_share: None };
        assert_eq!((probe.rank_options, probe.filter_kind), (named, Some(FilterKind::Bins)));
        assert_eq!(of.to_string(), "filter bins, min-run-tokens 0, express 1");
    }
}

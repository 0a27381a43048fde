//! The choice of the rank's options for a probe and a length predictor, by how they schedule.

use serde::Serialize;
use trail_cli::{Error, Table};
use trail_probe::predictor::Predictor;
use trail_probe::{LengthPredictor, Prompt};
use trail_runtime::engine::PolicyKind;
use trail_scheduler::policies::{Ranking, Trail};
use trail_simulator::Job;
use trail_training::Shard;

use super::candidate::Candidate;
use super::replay::{Contender, LOADS, Replayed, replay};

/// Largest p99 latency over FCFS's that is preferred.
const TAIL: f64 = 1.15;

/// Values of `--min-run-tokens`, the default first.
const MIN_RUN_TOKENS: [u32; 3] = [Ranking::DEFAULT.min_run_tokens, 8, 0];

/// Values of `--initial-share`, the default first.
const INITIAL_SHARES: [f32; 3] = [Ranking::DEFAULT.initial_share, 0.25, 0.5];

/// Options of the rank, and how they schedule.
#[derive(Clone, Debug, Serialize)]
pub struct RankOptions {
    /// `--min-run-tokens`.
    min_run_tokens: u32,
    /// `--initial-share`.
    initial_share: f32,
    /// Under the default tail bound.
    #[serde(flatten)]
    replayed: Replayed,
}

/// Compares options of the rank, the defaults first. r is `predictor`'s, or the probe's.
pub fn compare(
    candidate: &Candidate,
    shards: &[Shard],
    predictor: Option<&Predictor>,
) -> Result<Vec<RankOptions>, Error> {
    let jobs = with_r(candidate, shards, predictor);
    let grid = MIN_RUN_TOKENS.into_iter().flat_map(|min| INITIAL_SHARES.map(|share| (min, share)));
    let grid: Vec<(u32, f32)> = grid.collect();
    let contender = |&(min_run_tokens, initial_share): &(u32, f32)| {
        let ranking = Ranking { min_run_tokens, initial_share, ..Ranking::DEFAULT };
        Contender { policy: PolicyKind::Trail(Trail { ranking, ..Trail::default() }), jobs: &jobs }
    };
    let contenders: Vec<Contender<'_>> = grid.iter().map(contender).collect();
    let replayed = replay(&contenders)?.into_iter();
    let options = grid.iter().zip(replayed).map(|(&(min_run_tokens, initial_share), replayed)| {
        RankOptions { min_run_tokens, initial_share, replayed }
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

/// The table of `options`.
pub fn table(options: &[RankOptions]) -> Table {
    let columns = LOADS.map(|load| format!("load {load}"));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::default()
        .group("", &["--min-run-tokens", "--initial-share"])
        .group("FCFS / trail, mean latency", &columns)
        .group("trail / FCFS, p99", &columns)
        .group("behind the best by", &["mean", "standard error"]);
    for of in options {
        let name = [of.min_run_tokens.to_string(), of.initial_share.to_string()];
        let figures = [of.replayed.gains, of.replayed.tails].concat();
        let figures: Vec<String> = figures.iter().map(|figure| format!("{figure:.3}")).collect();
        table.row([&name[..], &figures, &of.replayed.cells()].concat());
    }
    table
}

/// The options to serve with.
pub fn advice(options: &[RankOptions]) -> String {
    let RankOptions { min_run_tokens, initial_share, .. } = options[chosen(options)];
    match chosen(options) {
        0 => "the rank's default options are as good as any".to_owned(),
        _ => format!(
            "serve it with --min-run-tokens {min_run_tokens} --initial-share {initial_share}"
        ),
    }
}

/// Of the options whose p99 stays within [`TAIL`], of all if none does: those no further behind the
/// best mean than the standard error; of these the defaults, else the ones with the least p99.
fn chosen(options: &[RankOptions]) -> usize {
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

    fn options(of: &[(f64, f64)]) -> Vec<RankOptions> {
        let replayed = |&(shortfall, tail): &(f64, f64)| {
            let (gains, tails) = ([1.2; LOADS.len()], [tail; LOADS.len()]);
            Replayed { gains, tails, shortfall, standard_error: 0.02 }
        };
        let of = of.iter().map(replayed);
        of.map(|replayed| RankOptions { min_run_tokens: 0, initial_share: 0.0, replayed }).collect()
    }

    #[test]
    fn the_best_mean_within_the_tail_is_chosen_and_the_defaults_where_they_are_as_good() {
        let chosen = |of: &[(f64, f64)]| super::chosen(&options(of));
        assert_eq!(chosen(&[(0.03, 1.1), (0.0, 1.2), (0.005, 1.15)]), 2);
        assert_eq!(chosen(&[(0.03, 1.3), (0.0, 1.2), (0.03, 1.2)]), 1, "none keeps the bound");
        assert_eq!(chosen(&[(0.015, 1.1), (0.0, 1.1)]), 0, "within the error");
        assert_eq!(chosen(&[(0.001, 1.3), (0.05, 1.1)]), 1, "a tail beyond the bound");
        assert_eq!(chosen(&[(0.05, 1.1), (0.0, 1.12), (0.01, 1.1), (0.03, 1.0)]), 2, "less p99");
    }
}

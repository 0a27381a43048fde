//! The learning curve: what the chosen probe would be with fewer answers.

use serde::Serialize;
use trail_cli::{Error, Table, notice};
use trail_platform::rng::mix;
use trail_training::{Dataset, Trainer};

use super::candidate::{Candidate, Judged, judge};

/// Shares of the answers, as divisors; the whole last.
const DIVISORS: [u64; 3] = [4, 2, 1];

/// A probe of a share of the answers.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Answers that it was trained on.
    pub answers: usize,
    /// How it schedules with its best filter.
    #[serde(flatten)]
    pub judged: Judged,
}

/// Trains as `whole` was trained, on shares of its answers; `candidate` makes the probe.
pub fn curve(
    whole: &Trainer<'_>,
    candidate: impl Fn(&Trainer<'_>) -> Candidate,
) -> Result<Vec<Point>, Error> {
    let mut candidates = Vec::new();
    let mut counts = Vec::new();
    for divisor in DIVISORS {
        let data = thinned(whole.data().clone(), divisor);
        counts.push(data.training_answers());
        if data.training.is_empty() {
            return Err(Error::failed(
                "--curve: a quarter of the answers is none: collect more; the probe is written",
            ));
        }
        notice(format_args!("learning curve: {} answers", counts[counts.len() - 1]));
        let mut trainer = Trainer::new(data, whole.recipe());
        while !trainer.is_done() {
            trainer.run_epoch().map_err(Error::failed)?;
        }
        candidates.push(candidate(&trainer));
    }
    let judged = judge(&mut candidates)?;
    let best_of = |candidate: usize| {
        let own = judged.iter().filter(|of| of.candidate == candidate);
        own.min_by(|a, b| a.replayed.shortfall.total_cmp(&b.replayed.shortfall))
            .expect("each has a filter")
            .clone()
    };
    let points = counts.into_iter().enumerate();
    Ok(points.map(|(at, answers)| Point { answers, judged: best_of(at) }).collect())
}

/// The examples of one of `divisor` answers.
fn thinned(mut data: Dataset<'_>, divisor: u64) -> Dataset<'_> {
    let mut training = std::mem::take(&mut data.training);
    let answer = |of: &_| u64::from(data.request(of));
    training.retain(|of| mix(answer(of) << 32 | u64::from(of.shard)).is_multiple_of(divisor));
    data.training = training;
    data
}

/// The table of `points`.
pub fn table(points: &[Point]) -> Table {
    let mut table = Table::default()
        .group("", &["answers"])
        .group("FCFS / trail, mean latency", &["load 1.1", "load 1.5"]);
    for of in points {
        let gains = of.judged.replayed.gains.map(|gain| format!("{gain:.3}"));
        table.row([&[of.answers.to_string()][..], &gains].concat());
    }
    table
}

/// The gain by the last doubling of the answers, in words.
pub fn advice(points: &[Point]) -> String {
    let [.., half, whole] = points else { return String::new() };
    let mean = |of: &Point| {
        of.judged.replayed.gains.iter().sum::<f64>() / of.judged.replayed.gains.len() as f64
    };
    let gain = mean(whole) - mean(half);
    let error = half.judged.replayed.standard_error.max(whole.judged.replayed.standard_error);
    match gain {
        gain if gain > error => format!(
            "the last doubling of the answers gained {gain:.3}: twice the prompts may gain about \
             as much"
        ),
        gain if gain < -error => format!(
            "the last doubling of the answers lost {:.3}, more than its standard error of \
             {error:.3}: look at the data",
            -gain
        ),
        _ => format!(
            "the last doubling of the answers gained {gain:.3}, within its standard error of \
             {error:.3}: nothing says that more prompts would help"
        ),
    }
}

//! SPRPT with refined predictions: TRAIL's Appendix E, evaluated for a measured probe.
//!
//! A job is a number of tokens, one unit of service each. Its rank during a token is the bin of the
//! prediction made before that token, so ranks have ten levels, and the expectations of SOAP's
//! Theorem 5.5 over all lists of predictions are sums over a Markov chain. Nothing is sampled.

use std::collections::BTreeMap;

use super::chain::{Bins, PredictionChain};
use super::queue::InvalidQueue;
use crate::confusion::{BINS, Confusion};

/// Mean response times at one load, in units of the mean service time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RefinedResponse {
    /// Refined predictions of the demo probe; equal ranks by arrival.
    pub mean_response: f64,
    /// The same with the appendix's strict comparison for old jobs: as if none had an equal rank.
    pub as_printed: f64,
    /// Predictions that are always in the true bin.
    pub exact_bins: f64,
    /// Exact remaining lengths: shortest remaining processing time.
    pub srpt: f64,
    /// First come, first served (Pollaczek and Khinchine).
    pub fcfs: f64,
    /// The unit: mean service time in tokens.
    pub mean_tokens: f64,
}

/// Evaluates Appendix E for the demo probe's confusion and the lengths of the outputs on which it
/// was measured, at a `load` in (0, 1).
pub fn refined_response(load: f64) -> Result<RefinedResponse, InvalidQueue> {
    if !(load > 0.0 && load < 1.0) {
        return Err(InvalidQueue::Lambda);
    }
    let lengths = Lengths::of(Confusion::demo().lengths());
    let mean = lengths.moment(1);
    let lambda = load / mean;
    let demo = Levels::of(&lengths, &PredictionChain::demo());
    let exact = Levels::of(&lengths, &PredictionChain::exact());
    Ok(RefinedResponse {
        mean_response: demo.response(lambda, Ties::ByArrival) / mean,
        as_printed: demo.response(lambda, Ties::Excluded) / mean,
        exact_bins: exact.response(lambda, Ties::ByArrival) / mean,
        srpt: lengths.srpt(lambda) / mean,
        fcfs: 1.0 + lambda * lengths.moment(2) / (2.0 * (1.0 - load)) / mean,
        mean_tokens: mean,
    })
}

/// Distribution of output lengths.
struct Lengths(BTreeMap<u32, f64>);

impl Lengths {
    fn of(sample: &[u32]) -> Lengths {
        let mut shares = BTreeMap::new();
        for &length in sample {
            *shares.entry(length).or_insert(0.0) += 1.0 / sample.len() as f64;
        }
        Lengths(shares)
    }

    fn moment(&self, n: i32) -> f64 {
        self.0.iter().map(|(&length, share)| share * f64::from(length).powi(n)).sum()
    }

    /// Mean response time of SRPT (Schrage and Miller 1966) for lengths with equal values.
    fn srpt(&self, lambda: f64) -> f64 {
        let max = *self.0.keys().last().expect("a length");
        let (mut load, mut squares, mut longer) = (0.0, 0.0, 1.0);
        // Sum over each token's remainder of 1 / (1 - load of the lengths below it).
        let mut residence = 0.0;
        let mut mean = 0.0;
        for length in 1..=max {
            let share = self.0.get(&length).copied().unwrap_or(0.0);
            let tokens = f64::from(length);
            let shorter = 1.0 - load;
            residence += 1.0 / shorter;
            load += lambda * share * tokens;
            squares += share * tokens * tokens;
            longer -= share;
            let old = lambda * (squares + longer * tokens * tokens);
            mean += share * (old / (2.0 * (1.0 - load) * shorter) + residence);
        }
        mean
    }
}

/// Treatment of old jobs whose rank equals the tagged job's worst one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ties {
    /// They are served first, as SOAP's tie rule has it.
    ByArrival,
    /// They are not counted.
    Excluded,
}

/// Expectations for one level, over lengths and predictions.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    /// Tokens before the rank first exceeds the level: E\[X_0\].
    first: f64,
    /// Sum over all intervals with ranks up to the level of the squared length: sum of E\[X_i^2\].
    squares: f64,
    /// Probability that the worst rank at age 0 is the level.
    worst: f64,
    /// Tokens whose worst future rank is the level.
    tokens: f64,
}

struct Levels([Level; BINS]);

impl Levels {
    fn of(lengths: &Lengths, chain: &PredictionChain) -> Levels {
        let mut sum = [Level::default(); BINS];
        for (&length, &share) in &lengths.0 {
            for (at, level) in sum.iter_mut().enumerate() {
                let job = Level::of(length, chain, at);
                level.first += share * job.first;
                level.squares += share * job.squares;
                level.worst += share * job.worst;
                level.tokens += share * job.tokens;
            }
        }
        // From "at most this level" to "this level".
        for at in (1..BINS).rev() {
            sum[at].worst -= sum[at - 1].worst;
            sum[at].tokens -= sum[at - 1].tokens;
        }
        Levels(sum)
    }

    /// Theorem 5.5, averaged over tagged jobs, in tokens.
    fn response(&self, lambda: f64, ties: Ties) -> f64 {
        let mut mean = 0.0;
        let mut below = Level::default();
        for level in &self.0 {
            let old = match ties {
                Ties::ByArrival => level,
                Ties::Excluded => &below,
            };
            // A new job stays ahead until its rank reaches the level: it exceeds the one below.
            let new = 1.0 - lambda * below.first;
            let wait = lambda * old.squares / (2.0 * (1.0 - lambda * old.first) * new);
            mean += level.worst * wait + level.tokens / new;
            below = *level;
        }
        mean
    }
}

impl Level {
    /// The expectations for jobs of `length` tokens and ranks up to `at`; the latter two are of
    /// "at most".
    fn of(length: u32, chain: &PredictionChain, at: usize) -> Level {
        let mut row = *chain.first(length);
        let mut first = capped(row, at);
        // First and second moment of the length of the current interval, with the state.
        let (mut once, mut twice) = (first, first);
        let mut level = Level { first: first.iter().sum(), ..Level::default() };
        for generated in 1..length {
            let next = chain.next(length, generated);
            row = step(&row, next);
            first = capped(step(&first, next), at);
            level.first += first.iter().sum::<f64>();
            let grown: Bins = std::array::from_fn(|bin| 2.0 * once[bin] + twice[bin]);
            let (lived, squared) = (step(&once, next), step(&grown, next));
            // Of an interval that ends only the square of its old length counts.
            level.squares += step(&twice, next)[at + 1..].iter().sum::<f64>();
            let grow = |moved: Bins| capped(std::array::from_fn(|bin| row[bin] + moved[bin]), at);
            (once, twice) = (grow(lived), grow(squared));
        }
        level.squares += twice.iter().sum::<f64>();
        (level.worst, level.tokens) = worst(length, chain, at);
        level
    }
}

/// Probability that no rank of a job of `length` exceeds `at`, and the expected number of tokens
/// after which none does, their own rank included.
fn worst(length: u32, chain: &PredictionChain, at: usize) -> (f64, f64) {
    let mut rows = vec![*chain.first(length)];
    for generated in 1..length {
        rows.push(step(&rows[rows.len() - 1], chain.next(length, generated)));
    }
    // Probability that no later rank exceeds, by the current one.
    let mut stays: Bins = capped([1.0; BINS], at);
    let (mut all, mut tokens) = (0.0, 0.0);
    for generated in (0..length).rev() {
        all = dot(&rows[generated as usize], &stays);
        tokens += all;
        if generated > 0 {
            let next = chain.next(length, generated);
            stays = capped(std::array::from_fn(|from| dot(&next[from], &stays)), at);
        }
    }
    (all, tokens)
}

/// One transition of a row vector.
fn step(row: &Bins, next: &[Bins; BINS]) -> Bins {
    std::array::from_fn(|to| (0..BINS).map(|from| row[from] * next[from][to]).sum())
}

/// `row` without the bins above `at`.
fn capped(row: Bins, at: usize) -> Bins {
    std::array::from_fn(|bin| if bin <= at { row[bin] } else { 0.0 })
}

fn dot(a: &Bins, b: &Bins) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job in one bin is a separate class: with two lengths, one in bin 0 and one in bin 9 to
    /// 0, levels are known by hand.
    #[test]
    fn levels_of_exact_predictions() {
        let lengths = Lengths::of(&[10, 60]);
        let levels = Levels::of(&lengths, &PredictionChain::exact()).0;
        // 60 tokens: 9 with 52 to 60 left in bin 1, then 51 in bin 0.
        assert_eq!((levels[0].first, levels[1].first), (5.0, 35.0));
        assert_eq!(levels[0].squares, 0.5 * (100.0 + 51.0 * 51.0));
        assert_eq!(levels[1].squares, 0.5 * (100.0 + 3600.0));
        assert_eq!((levels[0].worst, levels[1].worst, levels[2].worst), (0.5, 0.5, 0.0));
        assert_eq!((levels[0].tokens, levels[1].tokens), (0.5 * (10.0 + 51.0), 0.5 * 9.0));
    }

    /// All jobs in one bin: FCFS. Tokens as small as against the bin, SRPT is as known.
    #[test]
    fn limits() {
        let lengths = Lengths::of(&[20, 40]);
        let levels = Levels::of(&lengths, &PredictionChain::exact());
        let lambda = 0.8 / 30.0;
        let fcfs = 30.0 + lambda * 1000.0 / (2.0 * 0.2);
        assert!((levels.response(lambda, Ties::ByArrival) - fcfs).abs() < 1e-9);
        // Equal lengths: SRPT is FCFS, as no job preempts an equal one.
        let equal = Lengths::of(&[30]);
        assert!((equal.srpt(lambda) - (30.0 + lambda * 900.0 / (2.0 * 0.2))).abs() < 1e-9);
    }

    #[test]
    fn better_predictions_are_faster() {
        let at = refined_response(0.9).expect("a load");
        assert!(at.srpt < at.exact_bins && at.exact_bins < at.mean_response, "{at:?}");
        assert!(at.mean_response < at.fcfs && at.as_printed < at.mean_response, "{at:?}");
        assert_eq!(refined_response(1.0), Err(InvalidQueue::Lambda));
        assert_eq!(refined_response(f64::NAN), Err(InvalidQueue::Lambda));
    }
}

//! Refined predictions as a Markov chain: the assumption of TRAIL's Appendix E.

use crate::confusion::{BINS, Confusion, EARLY_TOKENS, Row, bin_of};

/// Probability of each bin.
pub(super) type Bins = [f64; BINS];

/// Distribution of a prediction, by the true bin of the remainder (row) and the prediction before.
type Transitions = [[Bins; BINS]; BINS];

/// Distribution of the predicted bin of remaining tokens after each token, given the true bin and
/// the prediction a token before.
#[derive(Clone, Debug)]
pub struct PredictionChain {
    /// Before the first token, by the bin of the length.
    prompt: [Bins; BINS],
    /// Within the first [`EARLY_TOKENS`].
    early: Transitions,
    late: Transitions,
}

impl PredictionChain {
    /// The demo probe's chain: the counts that [`Confusion::refined`] draws from, as frequencies.
    pub fn demo() -> PredictionChain {
        let confusion = Confusion::demo();
        let after = |generated| -> Transitions {
            std::array::from_fn(|bin| {
                std::array::from_fn(|predicted| {
                    frequencies(confusion.next_counts(bin, generated, predicted))
                })
            })
        };
        PredictionChain {
            prompt: std::array::from_fn(|bin| frequencies(confusion.first_counts(bin))),
            early: after(EARLY_TOKENS),
            late: after(EARLY_TOKENS + 1),
        }
    }

    /// The chain of a probe that always predicts the true bin.
    pub fn exact() -> PredictionChain {
        let one = |at: usize| -> Bins { std::array::from_fn(|bin| f64::from(bin == at)) };
        let all: Transitions = std::array::from_fn(|bin| [one(bin); BINS]);
        PredictionChain { prompt: std::array::from_fn(one), early: all, late: all }
    }

    /// Distribution before the first of `length` tokens.
    pub(super) fn first(&self, length: u32) -> &Bins {
        &self.prompt[bin_of(length)]
    }

    /// Distribution after `generated` of `length` tokens, for each prediction a token before.
    pub(super) fn next(&self, length: u32, generated: u32) -> &[Bins; BINS] {
        let bin = bin_of(length - generated);
        match generated <= EARLY_TOKENS {
            true => &self.early[bin],
            false => &self.late[bin],
        }
    }
}

/// Counts as frequencies.
fn frequencies(row: Row) -> Bins {
    let total: u64 = row.iter().map(|&count| u64::from(count)).sum();
    row.map(|count| f64::from(count) / total as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trail_platform::rng::Rng;

    /// The marginal of each prediction agrees with draws of the replay's own reading of the counts.
    #[test]
    fn marginals_are_those_of_the_replay() {
        let (chain, confusion) = (PredictionChain::demo(), Confusion::demo());
        let (length, draws) = (300, 4000);
        let mut rng = Rng::new(1);
        let mut counts = vec![[0.0; BINS]; length as usize];
        for _ in 0..draws {
            let predictions = confusion.refined(length, &mut rng);
            for (count, prediction) in counts.iter_mut().zip(predictions) {
                count[bin_of(prediction as u32)] += 1.0 / f64::from(draws);
            }
        }
        let mut row = *chain.first(length);
        for (generated, count) in counts.iter().enumerate() {
            if generated > 0 {
                let next = chain.next(length, generated as u32);
                row = std::array::from_fn(|to| {
                    (0..BINS).map(|from| row[from] * next[from][to]).sum()
                });
            }
            for bin in 0..BINS {
                let error = (row[bin] * (1.0 - row[bin]) / f64::from(draws)).sqrt();
                // 3,000 correlated comparisons; 1e-9 for probabilities of 0 and 1.
                let off = (count[bin] - row[bin]).abs();
                assert!(off <= 5.0 * error + 1e-9, "{generated} {bin}: {off} of {error}");
            }
        }
    }
}

//! Refined predictions as a Markov chain: the assumption of TRAIL's Appendix E.

use crate::noise::{BINS, EARLY_TOKENS, bin_of};

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
    /// The demo probe's chain: its confusion counts as frequencies, with the same choice of counts
    /// as [`Confusion::refined`](crate::noise::Confusion::refined), which draws from them.
    pub fn demo() -> PredictionChain {
        let mut prompt = [[0.0; BINS]; BINS];
        let (mut early, mut late) = ([[[0.0; BINS]; BINS]; BINS], [[[0.0; BINS]; BINS]; BINS]);
        for line in DEMO.lines() {
            let mut words = line.split_whitespace();
            let kind = words.next().unwrap_or("");
            let mut bin = || words.next().and_then(|word| word.parse::<usize>().ok()).expect(WHOLE);
            let row: &mut Bins = match kind {
                "prompt" => &mut prompt[bin()],
                "early" => &mut early[bin()][bin()],
                "late" => &mut late[bin()][bin()],
                _ => continue,
            };
            for entry in words {
                let (bin, count) = entry.split_once(':').expect(WHOLE);
                row[bin.parse::<usize>().expect(WHOLE)] = count.parse().expect(WHOLE);
            }
        }
        let early_pooled: [Bins; BINS] = std::array::from_fn(|bin| sum(&early[bin]));
        for bin in 0..BINS {
            let pooled = sum(&late[bin]);
            fill(&mut late[bin], pooled);
            let few = early_pooled[bin] == [0.0; BINS];
            fill(&mut early[bin], if few { pooled } else { early_pooled[bin] });
        }
        PredictionChain { prompt: prompt.map(normalised), early, late }
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

fn sum(rows: &[Bins; BINS]) -> Bins {
    std::array::from_fn(|bin| rows.iter().map(|row| row[bin]).sum())
}

/// Makes counts frequencies; a row without counts gets those of `pooled`.
fn fill(rows: &mut [Bins; BINS], pooled: Bins) {
    for row in rows {
        *row = normalised(if *row == [0.0; BINS] { pooled } else { *row });
    }
}

fn normalised(row: Bins) -> Bins {
    let total: f64 = row.iter().sum();
    row.map(|count| count / total)
}

/// The counts, which the tests of [`crate::noise`] read in full.
const DEMO: &str = include_str!("../noise/demo.txt");
const WHOLE: &str = "the checked-in counts are whole";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Confusion;
    use crate::rng::Rng;

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

//! Losses of heads that predict lengths, and their slopes.

use trail_platform::Rng;
use trail_probe::Bins;

/// The loss that a head is trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum Objective {
    /// Cross-entropy of the bin of the length (TRAIL, Learning to Rank's classification).
    CrossEntropy(Box<Bins>),
    /// Absolute error of the length.
    L1 {
        /// Tokens that an output of 1 means.
        unit: f64,
    },
    /// Squared error of the length (ELIS's metric; the paper names no loss).
    Mse {
        /// Tokens that an output of 1 means.
        unit: f64,
    },
    /// Likelihood of the order by length, shortest first (Learning to Rank, section 4.2; ListMLE).
    ListMle {
        /// Tokens of a label: lengths of the same label are put into a random order.
        bucket: u32,
    },
}

impl Objective {
    /// Outputs of a head.
    pub fn outputs(&self) -> usize {
        match self {
            Objective::CrossEntropy(bins) => bins.count(),
            _ => 1,
        }
    }

    /// Name in options and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Objective::CrossEntropy(_) => "cross-entropy",
            Objective::L1 { .. } => "l1",
            Objective::Mse { .. } => "mse",
            Objective::ListMle { .. } => "listmle",
        }
    }

    /// Outputs near the best for all answers of these `lengths` alike, where a training starts: of
    /// L1 the mean, not the median.
    pub fn constant(&self, lengths: &[u32]) -> Vec<f32> {
        let mean = lengths.iter().map(|&of| f64::from(of)).sum::<f64>() / lengths.len() as f64;
        match self {
            Objective::CrossEntropy(bins) => {
                let mut counts = vec![1.0_f32; bins.count()];
                lengths.iter().for_each(|&tokens| counts[bins.bin_of(tokens)] += 1.0);
                let total = (lengths.len() + bins.count()) as f32;
                counts.into_iter().map(|count| (count / total).ln()).collect()
            }
            Objective::L1 { unit } | Objective::Mse { unit } => vec![(mean / unit) as f32],
            Objective::ListMle { .. } => vec![0.0],
        }
    }

    /// Examples that one loss is of: a list is of several.
    pub fn list(&self) -> usize {
        match self {
            Objective::ListMle { .. } => LIST,
            _ => 1,
        }
    }

    /// Mean loss over the examples of one step, whose `outputs` `[examples, outputs]` are replaced
    /// by their slopes. `lengths`: output tokens of each. `rng` breaks ties.
    pub fn slopes(&self, outputs: &mut [f64], lengths: &[u32], rng: &mut Rng) -> f64 {
        let count = lengths.len().max(1) as f64;
        let loss: f64 = match self {
            Objective::CrossEntropy(bins) => {
                let rows = outputs.chunks_exact_mut(bins.count()).zip(lengths);
                rows.map(|(row, &tokens)| cross_entropy(row, bins.bin_of(tokens))).sum()
            }
            Objective::L1 { unit } => {
                let each = outputs.iter_mut().zip(lengths);
                each.map(|(output, &tokens)| {
                    let error = *output - f64::from(tokens) / unit;
                    *output = if error == 0.0 { 0.0 } else { error.signum() };
                    error.abs()
                })
                .sum()
            }
            Objective::Mse { unit } => {
                let each = outputs.iter_mut().zip(lengths);
                each.map(|(output, &tokens)| {
                    let error = *output - f64::from(tokens) / unit;
                    *output = 2.0 * error;
                    error * error
                })
                .sum()
            }
            Objective::ListMle { bucket } => {
                let lists = outputs.chunks_mut(LIST).zip(lengths.chunks(LIST));
                lists.map(|(outputs, lengths)| list_mle(outputs, lengths, *bucket, rng)).sum()
            }
        };
        outputs.iter_mut().for_each(|slope| *slope /= count);
        loss / count
    }
}

/// Examples of a list, as in the authors' training.
pub const LIST: usize = 32;

/// Cross-entropy of `logits` against `bin`; replaces them by their slopes.
fn cross_entropy(logits: &mut [f64], bin: usize) -> f64 {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    let loss = largest + sum.ln() - logits[bin];
    logits.iter_mut().for_each(|logit| *logit = (*logit - largest).exp() / sum);
    logits[bin] -= 1.0;
    loss
}

/// Negative log-likelihood of the list's order by length under the Plackett-Luce model of the
/// negated `outputs`, shortest first; replaces the outputs by their slopes.
///
/// Source: Xia et al., "Listwise approach to learning to rank", ICML 2008; labels in buckets, and
/// ties in a random order, as in the code released with Learning to Rank.
fn list_mle(outputs: &mut [f64], lengths: &[u32], bucket: u32, rng: &mut Rng) -> f64 {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    crate::train::shuffle(&mut order, rng);
    order.sort_by_key(|&at| lengths[at] / bucket.max(1));
    let scores: Vec<f64> = order.iter().map(|&at| -outputs[at]).collect();
    // rest[i]: logarithm of the sum of the exponentials from i on.
    let mut rest = scores.clone();
    for at in (1..rest.len()).rev() {
        let (low, high) = (rest[at - 1].min(rest[at]), rest[at - 1].max(rest[at]));
        rest[at - 1] = high + (low - high).exp().ln_1p();
    }
    for (at, &place) in order.iter().enumerate() {
        let shares: f64 = rest[..=at].iter().map(|rest| (scores[at] - rest).exp()).sum();
        // The slope of the score is shares - 1; the score is the negated output.
        outputs[place] = 1.0 - shares;
    }
    rest.iter().zip(&scores).map(|(rest, score)| rest - score).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: [u32; 5] = [40, 7, 300, 95, 180];

    fn objectives() -> [Objective; 4] {
        [
            Objective::CrossEntropy(Box::new(Bins::equal(4, 400))),
            Objective::L1 { unit: 50.0 },
            Objective::Mse { unit: 50.0 },
            Objective::ListMle { bucket: 1 },
        ]
    }

    #[test]
    fn slopes_are_those_of_finite_differences() {
        for objective in objectives() {
            let mut rng = Rng::new(5);
            let outputs: Vec<f64> =
                (0..LENGTHS.len() * objective.outputs()).map(|_| f64::from(rng.signed())).collect();
            let loss = |outputs: &[f64]| {
                objective.slopes(&mut outputs.to_vec(), &LENGTHS, &mut Rng::new(1))
            };
            let mut slopes = outputs.clone();
            objective.slopes(&mut slopes, &LENGTHS, &mut Rng::new(1));
            for at in 0..outputs.len() {
                let moved = [1e-4, -1e-4].map(|step| {
                    let mut moved = outputs.clone();
                    moved[at] += step;
                    loss(&moved)
                });
                let slope = (moved[0] - moved[1]) / 2e-4;
                assert!((slope - slopes[at]).abs() < 1e-6, "{}: {slope}", objective.name());
            }
        }
    }

    #[test]
    fn the_likeliest_order_is_the_true_one() {
        // By the definition, term by term.
        let outputs: [f64; 5] = [0.5, -1.0, 2.0, 0.0, 1.0];
        let by_length = [1, 0, 3, 4, 2];
        let mut want = 0.0;
        for (at, &place) in by_length.iter().enumerate() {
            let rest: f64 = by_length[at..].iter().map(|&of| (-outputs[of]).exp()).sum();
            want += rest.ln() + outputs[place];
        }
        let objective = Objective::ListMle { bucket: 1 };
        let loss =
            |mut outputs: [f64; 5]| objective.slopes(&mut outputs, &LENGTHS, &mut Rng::new(3));
        assert!((loss(outputs) - want / 5.0).abs() < 1e-12);
        let right = LENGTHS.map(|tokens| f64::from(tokens) / 20.0);
        assert!(loss(right) < 0.3 && loss(right.map(|output| -output)) > 5.0);
    }

    #[test]
    fn ties_of_a_bucket_are_broken_at_random() {
        let lengths = [12, 17, 95];
        let objective = Objective::ListMle { bucket: 10 };
        let mut rng = Rng::new(1);
        let mut first = || {
            let mut outputs = [0.0, 1.0, 2.0];
            objective.slopes(&mut outputs, &lengths, &mut rng);
            outputs[0] < outputs[1]
        };
        let firsts = (0..200).filter(|_| first()).count();
        assert!((60..140).contains(&firsts), "{firsts}");
    }

    #[test]
    fn the_best_constant_has_no_slope_in_the_mean() {
        let lengths: Vec<u32> = (0..4000).map(|at| 1 + (at * at) % 397).collect();
        for objective in objectives().into_iter().filter(|of| of.list() == 1) {
            let constant = objective.constant(&lengths);
            let mut slopes: Vec<f64> =
                lengths.iter().flat_map(|_| constant.iter().copied().map(f64::from)).collect();
            objective.slopes(&mut slopes, &lengths, &mut Rng::new(1));
            let sum: f64 = slopes.chunks_exact(constant.len()).map(|row| row[0]).sum();
            // Of L1 the median would be best, and the frequencies count one answer more a bin.
            let slack = if matches!(objective, Objective::L1 { .. }) { 0.2 } else { 2e-3 };
            assert!(sum.abs() < slack, "{}: {sum}", objective.name());
        }
    }

    #[test]
    fn large_outputs_stay_finite() {
        for objective in objectives() {
            let mut outputs = vec![1e6; LENGTHS.len() * objective.outputs()];
            outputs[0] = -1e6;
            let loss = objective.slopes(&mut outputs, &LENGTHS, &mut Rng::new(1));
            assert!(loss.is_finite() && outputs.iter().all(|slope| slope.is_finite()));
        }
    }
}

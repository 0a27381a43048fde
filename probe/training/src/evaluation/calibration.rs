//! Calibration: do predictions come true on average?

use trail_platform::Rng;
use trail_probe::Bins;

use super::error::{AGES, Age};
use super::trace::Trace;

/// Classes of confidence of the expected calibration error.
const CONFIDENCES: usize = 15;

/// Resamplings of the bootstrap.
const RESAMPLINGS: usize = 200;

/// Mean distance between confidence and accuracy of the likeliest bin, over 15 equal classes of
/// confidence (Guo et al., "On calibration of modern neural networks", ICML 2017).
pub fn expected_calibration_error(traces: &[Trace], bins: &Bins) -> f64 {
    let mut classes = [(0.0, 0.0, 0_u64); CONFIDENCES];
    for trace in traces {
        for (step, remaining) in trace.steps() {
            let p = &trace.probabilities[step];
            let likeliest = (0..p.len()).fold(0, |best, i| if p[i] > p[best] { i } else { best });
            let confidence = f64::from(p[likeliest]);
            let class = ((confidence * CONFIDENCES as f64) as usize).min(CONFIDENCES - 1);
            let (predicted, true_, count) = &mut classes[class];
            *predicted += confidence;
            *true_ += f64::from(u8::from(bins.bin_of(remaining) == likeliest));
            *count += 1;
        }
    }
    let steps: u64 = classes.iter().map(|class| class.2).sum();
    let distances = classes.iter().map(|(predicted, true_, _)| (predicted - true_).abs());
    distances.sum::<f64>() / steps.max(1) as f64
}

/// Predicted and true remaining tokens, over steps of one age where the same bin was predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reliability {
    /// Class of age.
    pub age: Age,
    /// Bin of the prediction.
    pub bin: usize,
    /// Requests with such a step.
    pub requests: usize,
    /// Mean prediction, tokens.
    pub predicted: f64,
    /// Mean of the tokens that did remain.
    pub remained: f64,
    /// Standard error of their difference, from resampling requests, tokens.
    pub standard_error: f64,
}

/// The reliability of the refined predictions, by age and by predicted bin.
pub fn reliability(traces: &[Trace], bins: &Bins) -> Vec<Reliability> {
    let mut rng = Rng::new(1);
    let mut all = Vec::new();
    for age in AGES {
        for bin in 0..bins.count() {
            // Of each request: sums of predicted and of remaining tokens, and steps.
            let mut sums = Vec::new();
            for trace in traces {
                let mut sum = (0.0, 0.0, 0.0);
                for (step, remaining) in trace.steps().filter(|(step, _)| age.has(*step)) {
                    let predicted = trace.refined[step];
                    if bins.bin_of(predicted.max(0.0) as u32) == bin {
                        sum.0 += f64::from(predicted);
                        sum.1 += f64::from(remaining);
                        sum.2 += 1.0;
                    }
                }
                if sum.2 > 0.0 {
                    sums.push(sum);
                }
            }
            if !sums.is_empty() {
                all.push(one(age, bin, &sums, &mut rng));
            }
        }
    }
    all
}

fn one(age: Age, bin: usize, sums: &[(f64, f64, f64)], rng: &mut Rng) -> Reliability {
    let total = |drawn: &mut dyn Iterator<Item = usize>| {
        drawn.fold((0.0, 0.0, 0.0), |sum, at| {
            let (predicted, remained, steps) = sums[at];
            (sum.0 + predicted, sum.1 + remained, sum.2 + steps)
        })
    };
    let (predicted, remained, steps) = total(&mut (0..sums.len()));
    let differences: Vec<f64> = (0..RESAMPLINGS)
        .map(|_| {
            let mut drawn = (0..sums.len()).map(|_| rng.below(sums.len() as u64) as usize);
            let (predicted, remained, steps) = total(&mut drawn);
            (predicted - remained) / steps
        })
        .collect();
    let mean = differences.iter().sum::<f64>() / RESAMPLINGS as f64;
    let squares = differences.iter().map(|difference| (difference - mean).powi(2));
    let variance = squares.sum::<f64>() / (RESAMPLINGS - 1) as f64;
    Reliability {
        age,
        bin,
        requests: sums.len(),
        predicted: predicted / steps,
        remained: remained / steps,
        standard_error: variance.sqrt(),
    }
}

//! Fits what the token filter knows beforehand, to answers that the probe was not trained on.

use std::collections::BTreeMap;

use trail_probe::token_filter::{Fit, TokenFilter};
use trail_probe::{AGES, Bins, Lengths, Probe, age_class};

use crate::dataset::{Dataset, Example, Place};
use crate::inference;

/// Exponents of evidence that are tried for each class of age.
const EXPONENTS: [f32; 12] = [0.0, 0.001, 0.003, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.5, 0.75, 1.0];

/// Passes over the classes of age.
const PASSES: usize = 2;

/// Share of the frequencies that is spread over all lengths.
const UNIFORM: f64 = 0.01;

/// Distributions that the probe gave for one answer, at some of its steps.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Its shard, and its place there.
    pub request: (u32, u32),
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Output tokens of the answer.
    pub tokens: u32,
    /// Ascending, the prompt first.
    pub steps: Vec<Step>,
}

/// A distribution that the probe gave.
#[derive(Clone, Debug)]
pub struct Step {
    /// Tokens generated.
    pub generated: u32,
    /// Over the probe's bins `[bins]`.
    pub p: Vec<f32>,
    /// Steps of the answer that it represents; 1 of the prompt.
    weight: f64,
}

/// The fit of `probe` to the answers of `data`, whose inputs are of the probe's layer: lengths of
/// those that are trained on, and what was `observed` of the others.
pub fn fit_probe(probe: &Probe, data: &Dataset<'_>, observed: &[Observed]) -> Fit {
    let lengths = data.training.iter().filter_map(|of| match of.place {
        Place::Row(_) => None,
        Place::Prompt(_) => Some(of.remaining),
    });
    fit(probe.bins, &lengths.collect::<Vec<_>>(), observed)
}

/// Distributions that `probe` gives for the validation's answers.
pub fn observed(probe: &Probe, data: &Dataset<'_>) -> Vec<Observed> {
    let mut answers: BTreeMap<(u32, u32), Vec<&Example>> = BTreeMap::new();
    for of in &data.validation {
        answers.entry((of.shard, data.request(of))).or_default().push(of);
    }
    let of_answer = |mut examples: Vec<&Example>| {
        examples.sort_by_key(|of| of.generated);
        let width = data.activation_width();
        let mut activations = vec![0.0; examples.len() * width];
        for (of, out) in examples.iter().zip(activations.chunks_exact_mut(width)) {
            data.activation(of, out);
        }
        let generated: Vec<u32> = examples.iter().map(|of| of.generated).collect();
        let prompt_tokens = data.prompt_tokens(examples[0]);
        let all = inference::of_answer(&probe.head, prompt_tokens, &generated, &activations);
        let step =
            |(of, p): (&&Example, _)| Step { generated: of.generated, p, weight: of.weight.into() };
        Observed {
            request: (examples[0].shard, data.request(examples[0])),
            prompt_tokens,
            tokens: examples[0].remaining,
            steps: examples.iter().zip(all).map(step).collect(),
        }
    };
    answers.into_values().map(of_answer).collect()
}

/// Fits to answers of these `lengths`, where answers that were cut count as the longest, and to
/// what was `observed`.
fn fit(bins: Bins, lengths: &[u32], observed: &[Observed]) -> Fit {
    let mut fit = Fit {
        lengths: frequencies(lengths, bins.max_tokens()),
        temperature: std::array::from_fn(|age| temperature(&bins, observed, age)),
        evidence: [0.01; AGES],
    };
    for _ in 0..PASSES {
        for age in 0..AGES {
            let error = |exponent: f32| {
                let mut tried = fit.clone();
                tried.evidence[age] = exponent;
                error(&TokenFilter::new(bins, tried), observed)
            };
            let errors = EXPONENTS.map(|exponent| (exponent, error(exponent)));
            let least = errors.into_iter().min_by(|a, b| a.1.total_cmp(&b.1));
            fit.evidence[age] = least.expect("exponents are tried").0;
        }
    }
    fit
}

/// Mean over the classes of age of the root of the mean squared error of the expected remaining
/// tokens: the few first tokens, at which short answers are told from long ones, count as much as
/// the many later ones. Squared, as the least squares are those of a calibrated mean.
fn error(filter: &TokenFilter, observed: &[Observed]) -> f64 {
    let (mut errors, mut weights) = ([0.0; AGES], [0.0; AGES]);
    let mut q = vec![0.0; filter.states()];
    for of in observed {
        let mut last = None;
        for Step { generated, p, weight } in &of.steps {
            let (remaining, _) = match last {
                None => filter.start(&mut q, *generated, p),
                Some(last) => filter.observe(&mut q, generated - last, *generated, p),
            };
            last = Some(*generated);
            let age = age_class(*generated);
            let true_remaining = f64::from(of.tokens - generated);
            errors[age] += weight * (f64::from(remaining.mean) - true_remaining).powi(2);
            weights[age] += weight;
        }
    }
    let means = errors.iter().zip(weights).filter(|(_, weight)| *weight > 0.0);
    means.map(|(error, weight)| (error / weight).sqrt()).sum()
}

/// The temperature at which the true bins of steps of class `age` are likeliest.
fn temperature(bins: &Bins, observed: &[Observed], age: usize) -> f32 {
    let loss = |log_temperature: f64| -> f64 {
        let sharpness = (-log_temperature).exp();
        let of_steps = observed.iter().flat_map(|of| of.steps.iter().map(move |step| (of, step)));
        let of_age = of_steps.filter(|(_, step)| age_class(step.generated) == age);
        let losses = of_age.map(|(of, Step { generated, p, weight })| {
            let logs = p.iter().map(|&p| f64::from(p.max(f32::MIN_POSITIVE)).ln() * sharpness);
            let sum: f64 = logs.map(f64::exp).sum();
            let true_p = p[bins.bin_of(of.tokens - generated)].max(f32::MIN_POSITIVE);
            weight * (sum.ln() - f64::from(true_p).ln() * sharpness)
        });
        losses.sum()
    };
    // The loss is convex in the sharpness: golden section over temperatures of 1/4 to 8.
    let (mut low, mut high) = (-4.0_f64.ln(), 8.0_f64.ln());
    let golden = 0.5 * (5.0_f64.sqrt() - 1.0);
    for _ in 0..30 {
        let (a, b) = (high - golden * (high - low), low + golden * (high - low));
        match loss(a) < loss(b) {
            true => high = b,
            false => low = a,
        }
    }
    (0.5 * (low + high)).exp() as f32
}

/// Frequencies of lengths over the states up to `longest`, smoothed: each answer is spread over
/// lengths that differ by about a twentieth. Those that were cut are not.
fn frequencies(lengths: &[u32], longest: u32) -> Vec<f32> {
    let grid = Lengths::new(longest);
    let last = grid.len() - 1;
    let mut masses = vec![0.0; grid.len()];
    for &length in lengths {
        let at = grid.at_least(length).min(last);
        if length >= longest {
            masses[last] += 1.0;
            continue;
        }
        let deviation = 2.0 + 0.05 * f64::from(length);
        let reach = (3.0 * deviation) as u32;
        let first = grid.at_least(length.saturating_sub(reach).max(1));
        // The cut ones keep the last state for themselves.
        let end = grid.at_least(length + reach).min(last).max(at + 1).min(last);
        let weight = |state: usize| {
            let distance = f64::from(grid.values()[state]) - f64::from(length);
            (-0.5 * (distance / deviation).powi(2)).exp()
        };
        let sum: f64 = (first..end).map(weight).sum();
        (first..end).for_each(|state| masses[state] += weight(state) / sum.max(1e-9));
    }
    distribution(&masses, UNIFORM)
}

/// `masses` brought to the sum 1, a share of `uniform` spread evenly.
fn distribution(masses: &[f64], uniform: f64) -> Vec<f32> {
    let (sum, count) = (masses.iter().sum::<f64>(), masses.len() as f64);
    let share = |mass: &f64| (1.0 - uniform) * mass / sum.max(1e-9) + uniform / count;
    masses.iter().map(|mass| share(mass) as f32).collect()
}

#[cfg(test)]
mod tests {
    use trail_platform::Rng;

    use super::*;

    #[test]
    fn frequencies_keep_the_cut_answers_apart() {
        let lengths: Vec<u32> = (0..100).map(|i| if i < 40 { 512 } else { 100 + i }).collect();
        let h = frequencies(&lengths, 512);
        assert_eq!(h.len(), 512);
        assert!((h.iter().sum::<f32>() - 1.0).abs() < 1e-4);
        assert!((h[511] - 0.4 * 0.99).abs() < 1e-3, "{}", h[511]);
        assert!(h[510] < 1e-4 && h[170] > 0.004, "{} {}", h[510], h[170]);
        assert_eq!(frequencies(&[1, 2, 3], 3).len(), 3);
    }

    /// A probe that is too sure of itself: it says the right bin in half of all steps, with 0.9.
    fn observed() -> Vec<Observed> {
        let (bins, mut rng) = (Bins::default(), Rng::new(1));
        let one = |_| {
            let tokens = 1 + rng.below(512) as u32;
            let mut step = |generated: u32| {
                let right = bins.bin_of(tokens - generated);
                let predicted = if rng.below(2) == 0 { right } else { rng.below(10) as usize };
                let p = |bin| if bin == predicted { 0.9 } else { 0.1 / 9.0 };
                Step { generated, p: (0..10).map(p).collect(), weight: 7.0 }
            };
            let steps = (0..tokens).step_by(7).map(&mut step).collect();
            Observed { request: (0, 0), prompt_tokens: 5, tokens, steps }
        };
        (0..300).map(one).collect()
    }

    #[test]
    fn an_overconfident_probe_gets_a_high_temperature_and_is_still_used() {
        let observed = observed();
        let lengths: Vec<u32> = observed.iter().map(|of| of.tokens).collect();
        let fit = fit(Bins::default(), &lengths, &observed);
        assert_eq!(fit.check(&Bins::default()), Ok(()));
        assert!(fit.temperature.iter().all(|&t| t > 1.2), "{:?}", fit.temperature);
        assert!(fit.evidence[4] > 0.0, "{:?}", fit.evidence);
        let without = Fit { evidence: [0.0; AGES], ..fit.clone() };
        let error = |fit: Fit| error(&TokenFilter::new(Bins::default(), fit), &observed);
        let (with, without) = (error(fit), error(without));
        assert!(with < 0.7 * without, "{with} {without}");
    }
}

//! The sampler against its reference, and its guaranteed properties.

use super::{History, Sampler, philox, reference};
use crate::backend::{Allowed, NonFiniteLogits, SamplingParams, TokenMask};

const NO_HISTORY: History<'static> = History { prompt: &[], generated: &[] };

/// Reproducible numbers for test cases.
struct Random {
    seed: u64,
    drawn: u32,
}

impl Random {
    fn unit(&mut self) -> f32 {
        self.drawn += 1;
        philox::uniform(self.seed, self.drawn) as f32
    }

    fn below(&mut self, end: usize) -> usize {
        (f64::from(self.unit()) * end as f64) as usize % end
    }

    /// Logits spread over +-`spread`; a quarter repeat earlier values.
    fn logits(&mut self, len: usize, spread: f32) -> Vec<f32> {
        let mut logits: Vec<f32> = (0..len).map(|_| (self.unit() * 2.0 - 1.0) * spread).collect();
        for id in (3..len).step_by(4) {
            logits[id] = logits[self.below(id)];
        }
        logits
    }

    /// Half of the time all tokens, else some at random; the logits with those of the others at
    /// minus infinity.
    fn mask(&mut self, logits: &[f32]) -> (Allowed, Vec<f32>) {
        if self.unit() < 0.5 {
            return (Allowed::Any, logits.to_vec());
        }
        let mut mask = TokenMask::none(logits.len());
        let drawn = self.tokens(1 + logits.len() / 2, logits.len());
        drawn.into_iter().for_each(|id| mask.allow(id));
        let masked = (0..).zip(logits).map(|(id, &logit)| match mask.allows(id) {
            true => logit,
            false => f32::NEG_INFINITY,
        });
        let masked = masked.collect();
        (Allowed::Mask(mask.into()), masked)
    }

    fn tokens(&mut self, len: usize, vocab_size: usize) -> Vec<u32> {
        (0..len).map(|_| self.below(vocab_size) as u32).collect()
    }

    /// Parameters with each feature on in half of the cases.
    fn params(&mut self, vocab_size: usize) -> SamplingParams {
        let mut half = |on: f32, off: f32| if self.unit() < 0.5 { on } else { off };
        let switches =
            [half(1.0, 0.0), half(1.0, 0.0), half(1.0, 0.0), half(1.0, 0.0)].map(|on| on == 1.0);
        let logit_bias = match switches[1] {
            true => vec![(0, self.unit()), (vocab_size as u32 - 1, -self.unit())],
            false => Vec::new(),
        };
        SamplingParams {
            logit_bias,
            temperature: 0.3 + self.unit() * 2.0,
            top_k: if switches[0] { 1 + self.below(vocab_size) as u32 } else { 0 },
            top_p: if switches[1] { 0.02 + 0.97 * self.unit() } else { 1.0 },
            min_p: if switches[2] { 0.3 * self.unit() } else { 0.0 },
            repetition_penalty: if switches[3] { 0.6 + self.unit() } else { 1.0 },
            presence_penalty: if switches[3] { self.unit() - 0.5 } else { 0.0 },
            frequency_penalty: if switches[3] { self.unit() - 0.5 } else { 0.0 },
            seed: u64::from(self.drawn),
            top_logprobs: self.below(21) as u8,
            prompt_logprobs: None,
        }
    }
}

#[test]
fn frequencies_match_the_naive_distribution() {
    let mut random = Random { seed: 1, drawn: 0 };
    let draws = 20_000u32;
    for case in 0..12 {
        let mut logits = random.logits(12, 2.0);
        let params = random.params(12);
        let (prompt, generated) = (random.tokens(4, 12), random.tokens(6, 12));
        let history = History { prompt: &prompt, generated: &generated };
        let expected = reference::distribution(&logits, &params, history);
        let mut sampler = Sampler::new(12);
        let mut counts = [0.0f64; 12];
        for position in 0..draws {
            let token = sampler.sample(&mut logits, &params, history, position).unwrap();
            counts[token.id as usize] += 1.0;
        }
        let kept = expected.iter().filter(|p| **p > 0.0).count() as f64;
        let mut chi_square = 0.0;
        for (count, probability) in counts.iter().zip(&expected) {
            let mean = probability * f64::from(draws);
            chi_square += if mean > 0.0 { (count - mean).powi(2) / mean } else { count * f64::MAX };
        }
        // Mean and variance of chi-square are d and 2d; five standard deviations and the skew of
        // small d.
        let limit = (kept - 1.0) + 5.0 * (2.0 * (kept - 1.0)).sqrt() + 5.0;
        assert!(
            chi_square < limit,
            "case {case}: chi-square {chi_square} over {kept} tokens, {params:?}"
        );
    }
}

#[test]
fn kept_sets_and_weights_match_the_naive_ones() {
    let mut random = Random { seed: 2, drawn: 0 };
    let (mut cases, mut compared) = (0, 0);
    for vocab_size in [2, 17, 256, 700, 3000] {
        let mut sampler = Sampler::new(vocab_size);
        for position in 0..60 {
            let mut logits = random.logits(vocab_size, 6.0);
            let params = random.params(vocab_size);
            let (prompt, generated) = (random.tokens(9, vocab_size), random.tokens(9, vocab_size));
            let history = History { prompt: &prompt, generated: &generated };
            let (allowed, masked) = random.mask(&logits);
            // The reference's cut must not depend on the last digits of f32: skips cases where a
            // slight change of the bounds changes the result.
            let [low, expected, high] = [1.0 - 1e-5, 1.0, 1.0 + 1e-5].map(|nudge| {
                let nudged = SamplingParams {
                    top_p: params.top_p * nudge,
                    min_p: params.min_p * nudge,
                    ..params.clone()
                };
                reference::distribution(&masked, &nudged, history)
            });
            let count = |probabilities: &[f64]| probabilities.iter().filter(|p| **p > 0.0).count();
            cases += 1;
            if count(&low) != count(&expected) || count(&expected) != count(&high) {
                continue;
            }
            compared += 1;
            let raw = logits.clone();
            sampler.sample_allowed(&mut logits, &params, history, position, &allowed).unwrap();
            assert_eq!(logits, raw);
            let total: f64 = sampler.weights.iter().map(|&w| f64::from(w)).sum();
            for (id, (&weight, probability)) in sampler.weights.iter().zip(&expected).enumerate() {
                assert_eq!(
                    weight > 0.0,
                    *probability > 0.0,
                    "token {id} of {vocab_size}, {params:?}"
                );
                let error = f64::from(weight) / total - probability;
                assert!(
                    error.abs() <= 2e-5 * probability,
                    "token {id}: off by {error:e} from {probability:e}"
                );
            }
        }
    }
    assert!(compared * 5 > cases * 4, "only {compared} of {cases} cases were compared");
}

#[test]
fn logprobs_are_the_raw_models() {
    let mut random = Random { seed: 3, drawn: 0 };
    let mut sampler = Sampler::new(500);
    for position in 0..50 {
        let mut logits = random.logits(500, 8.0);
        let params = random.params(500);
        let generated = random.tokens(20, 500);
        let expected = reference::logprobs(&logits);
        let mut ranked: Vec<usize> = (0..500).collect();
        ranked.sort_by(|&a, &b| expected[b].total_cmp(&expected[a]).then(a.cmp(&b)));
        let history = History { prompt: &[], generated: &generated };
        let event = sampler.sample(&mut logits, &params, history, position).unwrap();
        assert!((f64::from(event.logprob) - expected[event.id as usize]).abs() < 1e-5);
        assert_eq!(event.num_top, params.top_logprobs);
        for (&(id, logprob), &rank) in event.top[..usize::from(event.num_top)].iter().zip(&ranked) {
            assert_eq!(id as usize, rank);
            assert!((f64::from(logprob) - expected[rank]).abs() < 1e-5);
        }
    }
}

#[test]
fn logprobs_ignore_penalties_at_temperature_one() {
    let mut logits = [1.0, 2.0, 3.0];
    let expected = reference::logprobs(&logits);
    let params = SamplingParams { repetition_penalty: 3.0, ..Default::default() };
    let history = History { prompt: &[2], generated: &[] };
    let event = Sampler::new(3).sample(&mut logits, &params, history, 0).unwrap();
    assert!((f64::from(event.logprob) - expected[event.id as usize]).abs() < 1e-6);
}

#[test]
fn a_choice_depends_on_nothing_but_its_inputs() {
    let mut random = Random { seed: 4, drawn: 0 };
    let mut used = Sampler::new(300);
    for position in 0..100 {
        let mut logits = random.logits(300, 4.0);
        let before = logits.clone();
        let params = random.params(300);
        let (prompt, generated) = (random.tokens(30, 300), random.tokens(30, 300));
        let history = History { prompt: &prompt, generated: &generated };
        let event = used.sample(&mut logits, &params, history, position);
        assert_eq!(logits, before, "logits come back as they were");
        assert_eq!(Sampler::new(300).sample(&mut logits, &params, history, position), event);
    }
}

#[test]
fn positions_and_seeds_draw_differently() {
    let mut sampler = Sampler::new(64);
    let mut draw = |seed: u64, position: u32| {
        let params = SamplingParams { seed, ..Default::default() };
        sampler.sample(&mut [0.0; 64], &params, NO_HISTORY, position).unwrap().id
    };
    let first: Vec<u32> = (0..20).map(|position| draw(1, position)).collect();
    let shifted: Vec<u32> = (1..21).map(|position| draw(1, position)).collect();
    let reseeded: Vec<u32> = (0..20).map(|position| draw(2, position)).collect();
    assert_eq!(first[1..], shifted[..19]);
    assert_ne!(first, reseeded);
}

#[test]
fn the_greedy_limits_agree() {
    let mut random = Random { seed: 5, drawn: 0 };
    let mut sampler = Sampler::new(400);
    let greedy = SamplingParams { temperature: 0.0, ..Default::default() };
    let limits = [
        SamplingParams { temperature: 1e-6, ..Default::default() },
        SamplingParams { top_k: 1, temperature: 100.0, ..Default::default() },
        SamplingParams { top_p: 1e-9, ..Default::default() },
        SamplingParams { min_p: 1.0, ..Default::default() },
    ];
    for position in 0..50 {
        let mut logits = random.logits(400, 5.0);
        logits[random.below(400)] = 5.5;
        let best = sampler.sample(&mut logits, &greedy, NO_HISTORY, position).unwrap();
        assert_eq!(logits[best.id as usize], 5.5);
        for params in &limits {
            let token = sampler.sample(&mut logits, params, NO_HISTORY, position);
            assert_eq!(token.unwrap(), best, "{params:?}");
        }
    }
}

#[test]
fn ties_go_to_the_lowest_id() {
    let mut sampler = Sampler::new(5);
    for params in [
        SamplingParams { temperature: 0.0, ..Default::default() },
        SamplingParams { top_k: 1, ..Default::default() },
        SamplingParams { top_p: 0.01, ..Default::default() },
    ] {
        let token = sampler.sample(&mut [1.0, 7.0, 7.0, -2.0, 7.0], &params, NO_HISTORY, 0);
        assert_eq!(token.unwrap().id, 1);
    }
}

#[test]
fn greedy_heeds_penalties() {
    let params = SamplingParams { temperature: 0.0, presence_penalty: 1.0, ..Default::default() };
    let history = History { prompt: &[], generated: &[2] };
    let event = Sampler::new(3).sample(&mut [1.0, 1.5, 2.0], &params, history, 9).unwrap();
    assert_eq!(event.id, 1);
}

#[test]
fn logits_that_are_not_finite_are_an_error() {
    let inf = f32::INFINITY;
    let history = History { prompt: &[0], generated: &[1] };
    for temperature in [0.0, 1.0, 50.0] {
        let params = SamplingParams {
            temperature,
            presence_penalty: 0.5,
            top_logprobs: 3,
            ..Default::default()
        };
        let mut sampler = Sampler::new(40);
        let mut sample = |logits: &mut [f32; 40]| sampler.sample(logits, &params, history, 1);
        for bad in [f32::NAN, -f32::NAN, inf] {
            for at in 0..40 {
                let mut logits = [1.0; 40];
                logits[at] = bad;
                assert_eq!(sample(&mut logits), Err(NonFiniteLogits), "{bad} at {at}");
            }
        }
        for nothing in [f32::NAN, inf, -inf] {
            assert_eq!(sample(&mut [nothing; 40]), Err(NonFiniteLogits), "{nothing}");
        }
        // A refused row leaves nothing behind for the next one. A mask is no fault.
        let mut masked = [-inf; 40];
        masked[39] = 0.25;
        let token = sample(&mut masked).expect("one finite logit");
        assert_eq!((token.id, token.logprob, token.num_top), (39, 0.0, 1));
    }
}

/// With top-p this close to 1 the target is within the rounding of the sums, with and without ties.
#[test]
fn top_p_next_to_one_keeps_nearly_all() {
    let mut random = Random { seed: 6, drawn: 0 };
    for spread in [0.0, 1e-6, 0.5, 4.0, 20.0] {
        for vocab_size in [3000, 20_011] {
            let mut logits = random.logits(vocab_size, spread);
            let params = SamplingParams { top_p: 1.0 - f32::EPSILON / 2.0, ..Default::default() };
            let mut sampler = Sampler::new(vocab_size);
            sampler.sample(&mut logits, &params, NO_HISTORY, 0).unwrap();
            let sum =
                |weights: &[f32]| weights.iter().map(|&weight| f64::from(weight)).sum::<f64>();
            let kept = sum(&sampler.weights);
            sampler.sample(&mut logits, &SamplingParams::default(), NO_HISTORY, 0).unwrap();
            assert!(kept > (1.0 - 1e-6) * sum(&sampler.weights), "spread {spread}");
        }
    }
}

#[test]
fn extreme_logits_do_not_panic() {
    let mut sampler = Sampler::new(3);
    for temperature in [1e-5, 1.0, 100.0] {
        let params = SamplingParams {
            temperature,
            top_p: 0.9,
            min_p: 0.1,
            repetition_penalty: 100.0,
            ..Default::default()
        };
        let history = History { prompt: &[0, 1, 2], generated: &[0, 9] };
        for logits in [[f32::MAX, f32::MIN, 0.0], [f32::MIN; 3], [f32::MAX; 3]] {
            let event = sampler.sample(&mut logits.clone(), &params, history, 0).unwrap();
            assert!(event.id < 3 && event.logprob.is_finite(), "{logits:?} at {temperature}");
        }
    }
}

/// The log-probabilities of a masked choice are the model's own; a token that is the only one needs
/// no draw, and no token at all is an error.
#[test]
fn masks_leave_the_log_probabilities_alone() {
    let mut logits = [1.0, 3.0, 2.0, f32::NEG_INFINITY];
    let params = SamplingParams { temperature: 0.0, top_logprobs: 2, ..Default::default() };
    let mut sampler = Sampler::new(4);
    let plain = sampler.sample(&mut logits, &params, NO_HISTORY, 5).unwrap();
    assert_eq!(plain.id, 1);
    let mut mask = TokenMask::none(4);
    [0, 2].into_iter().for_each(|id| mask.allow(id));
    let expected = reference::logprobs(&logits);
    for allowed in [Allowed::Mask(mask.into()), Allowed::Only(2)] {
        let token = sampler.sample_allowed(&mut logits, &params, NO_HISTORY, 5, &allowed).unwrap();
        assert_eq!((token.id, token.top), (2, plain.top));
        assert!((f64::from(token.logprob) - expected[2]).abs() < 1e-6);
    }
    let mut impossible = TokenMask::none(4);
    impossible.allow(3);
    let refused = Allowed::Mask(impossible.into());
    let result = sampler.sample_allowed(&mut logits, &params, NO_HISTORY, 5, &refused);
    assert_eq!(result, Err(NonFiniteLogits));
    assert_eq!(sampler.sample(&mut logits, &params, NO_HISTORY, 5), Ok(plain));
}

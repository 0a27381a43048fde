//! Predictions as wrong as those of TRAIL's released predictors, synthesised.
//!
//! The release names three figures: its probe has a mean absolute error of 33.9 tokens and the
//! right one of ten bins in 62.4 % of the tokens, its prompt-only predictor a mean absolute error
//! of 46.1 tokens of total length. Errors are heavy-tailed: with the same mean, normal ones would
//! have the right bin in fewer tokens. And they last: the filter is wrong for a while. So an error
//! is scale x |z|^power, with the sign of z, where z is an autoregressive walk over tokens with
//! standard normal margins. The test below states the figures achieved.

use trail_platform::rng::Rng;

/// Tokens after which the correlation of two errors is 1/e: a filter over bins of 51 tokens needs
/// some tens of tokens to change its mind.
const MEMORY_TOKENS: f32 = 25.0;

/// Errors of the probe: tokens at z = 1, and the power.
const PROBE_TOKENS: f32 = 35.5;
const PROBE_POWER: f32 = 2.3;

/// Errors of the prompt-only predictor.
const PROMPT_TOKENS: f64 = 73.3;
const PROMPT_POWER: f64 = 1.25;

/// The cap under which the release's predictors were trained.
const CAP_TOKENS: f32 = 512.0;

/// A walk of the probe's error over the tokens of one answer.
pub(crate) struct ReleaseWalk {
    rng: Rng,
    z: f32,
}

impl ReleaseWalk {
    pub(crate) fn new(seed: u64) -> ReleaseWalk {
        let mut rng = Rng::new(seed);
        let z = rng.fast_normal();
        ReleaseWalk { rng, z }
    }

    /// Appends the predictions of an answer of `length` tokens to `to`.
    pub(crate) fn fill(&mut self, length: u32, to: &mut Vec<f32>) {
        let keep = (-1.0 / MEMORY_TOKENS).exp();
        let fresh = (1.0 - keep * keep).sqrt();
        let cap = CAP_TOKENS.max(length as f32);
        to.extend((0..length).map(|generated| {
            let error = PROBE_TOKENS * self.z * self.z.abs().powf(PROBE_POWER - 1.0);
            self.z = keep * self.z + fresh * self.rng.fast_normal();
            ((length - generated) as f32 + error).clamp(1.0, cap)
        }));
    }
}

/// The prompt-only prediction for an answer of `length` tokens, of at most `cap`.
pub(crate) fn prompt_prediction(length: u32, cap: u32, rng: &mut Rng) -> f32 {
    let z = rng.normal();
    let error = PROMPT_TOKENS * z * z.abs().powf(PROMPT_POWER - 1.0);
    (f64::from(length) + error).clamp(1.0, f64::from(cap)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Lengths;
    use crate::confusion::bin_of;

    #[test]
    #[cfg_attr(miri, ignore = "means of many draws")]
    fn errors_are_those_of_the_release() {
        let mut rng = Rng::new(1);
        let (mut error, mut right, mut tokens, mut prompt) = (0.0, 0, 0, 0.0);
        let answers = 4000;
        for seed in 0..answers {
            let length = Lengths::AlpacaLike { cap: 512 }.tokens(&mut rng);
            prompt += f64::from(prompt_prediction(length, 512, &mut rng) - length as f32).abs();
            let mut predicted = Vec::new();
            ReleaseWalk::new(seed).fill(length, &mut predicted);
            for (generated, predicted) in (0..length).zip(predicted) {
                let truth = length - generated;
                error += f64::from(predicted - truth as f32).abs();
                right += u32::from(bin_of(predicted as u32) == bin_of(truth));
                tokens += 1;
            }
        }
        let mae = error / f64::from(tokens);
        let accuracy = f64::from(right) / f64::from(tokens);
        let prompt = prompt / answers as f64;
        assert!((mae - 33.9).abs() < 1.0, "probe: MAE {mae}, {accuracy} right, prompt {prompt}");
        assert!((accuracy - 0.624).abs() < 0.01, "{accuracy} of the bins are right, MAE {mae}");
        assert!((prompt - 46.1).abs() < 1.5, "prompt: {prompt}");
    }
}

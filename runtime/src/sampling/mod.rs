//! Sampling of the next token from logits.
//!
//! The order is vLLM's: mask, bias, penalties, temperature, min-p, top-k, top-p (over the remaining
//! tokens, renormalised), draw. The draw is a function of (seed, position), and inverts the
//! cumulative distribution in order of token id.

mod exp2;
mod penalty;
mod philox;
#[cfg(test)]
mod reference;
mod softmax;
#[cfg(test)]
mod tests;
mod truncate;
mod validate;
mod widest;

pub use penalty::History;
pub use validate::validate;

use crate::backend::{
    Allowed, MAX_TOP_LOGPROBS, NonFiniteLogits, Sampled, SampledToken, SamplingParams, Scored,
    ScoredToken,
};
use penalty::Penalties;
use softmax::{BLOCK, Scan, Tempering};
use truncate::Key;

/// Temperatures below this are greedy (vLLM's bound): dividing by them would overflow.
pub(crate) const MIN_TEMPERATURE: f32 = 1e-5;

/// Samples tokens. Holds the scratch for one vocabulary, so that sampling does not allocate.
pub struct Sampler {
    /// Unnormalised probability of each token.
    weights: Vec<f32>,
    /// Sum of each block of `weights`.
    block_sums: Vec<f64>,
    /// Candidates of top-k or top-p.
    candidates: Vec<Key>,
    penalties: Penalties,
    /// Logits of the tokens that a mask allows, minus infinity for the others.
    masked: Vec<f32>,
}

impl Sampler {
    /// Creates a sampler for `vocab_size` tokens; takes 28 bytes per token.
    pub fn new(vocab_size: usize) -> Self {
        Sampler {
            weights: vec![0.0; vocab_size],
            block_sums: vec![0.0; vocab_size.div_ceil(BLOCK)],
            candidates: Vec::with_capacity(vocab_size),
            penalties: Penalties::new(vocab_size),
            masked: vec![0.0; vocab_size],
        }
    }

    /// Samples the token at absolute `position` from its `logits`.
    ///
    /// `params` must have passed [`validate()`]. The reported log-probabilities are the model's
    /// own: before mask, penalties, temperature and truncation. Tokens at minus infinity, or less
    /// likely than the best by a factor of 2^126 after temperature, are never drawn.
    ///
    /// Logits are unchanged on return. NaN or plus infinity among them, or nothing but minus
    /// infinity (single tokens at minus infinity are masked, which is valid), is an error: any
    /// token would be an invention.
    ///
    /// # Panics
    ///
    /// If there are not `vocab_size` logits.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        params: &SamplingParams,
        history: History<'_>,
        position: u32,
    ) -> Sampled {
        self.sample_allowed(logits, params, history, position, &Allowed::Any)
    }

    /// As [`Sampler::sample`], a token that is `allowed`. None at all is an error, too.
    pub fn sample_allowed(
        &mut self,
        logits: &mut [f32],
        params: &SamplingParams,
        history: History<'_>,
        position: u32,
        allowed: &Allowed,
    ) -> Sampled {
        assert_eq!(logits.len(), self.weights.len(), "logits of a different vocabulary");
        let Scan { max, broken } = softmax::scan(logits);
        if broken || max == f32::NEG_INFINITY {
            return Err(NonFiniteLogits);
        }
        let (id, weights_sum) = match allowed {
            Allowed::Any => self.choose(logits, max, params, history, position),
            Allowed::Only(id) => (*id, None),
            Allowed::Mask(mask) => {
                let mut masked = std::mem::take(&mut self.masked);
                mask.apply(logits, &mut masked);
                let max = softmax::scan(&masked).max;
                let id = (max > f32::NEG_INFINITY)
                    .then(|| self.choose(&mut masked, max, params, history, position).0);
                self.masked = masked;
                (id.ok_or(NonFiniteLogits)?, None)
            }
        };
        let sum = weights_sum.unwrap_or_else(|| softmax::sum_exp(logits, max));
        Ok(self.report(id, logits, f64::from(max) + sum.ln(), params.top_logprobs))
    }

    /// Chooses a token by `logits`, whose largest is `max`. Returns it, and the sum of
    /// exp(logit - max) where that was needed.
    fn choose(
        &mut self,
        logits: &mut [f32],
        max: f32,
        params: &SamplingParams,
        history: History<'_>,
        position: u32,
    ) -> (u32, Option<f64>) {
        let penalised = self.penalties.apply(logits, params, history);
        let penalised_max = if penalised { softmax::scan(logits).max } else { max };
        let chosen = if params.temperature < MIN_TEMPERATURE {
            (softmax::first_at(penalised_max, logits), None)
        } else {
            let tempering = Tempering {
                max: penalised_max,
                temperature: params.temperature,
                floor: params.min_p,
            };
            let total = softmax::weigh(logits, tempering, &mut self.weights, &mut self.block_sums);
            let raw = !penalised && params.temperature == 1.0 && params.min_p == 0.0;
            (self.draw(logits, params, total, position), raw.then_some(total))
        };
        self.penalties.undo(logits);
        chosen
    }

    /// Scores token `id` by the `logits` of the row before it, beside the `num_top` most likely
    /// tokens. The error is that of [`Sampler::sample`].
    ///
    /// # Panics
    ///
    /// If there are not `vocab_size` logits, or `id` is none of theirs.
    pub fn score(&mut self, logits: &[f32], id: u32, num_top: u8) -> Scored {
        assert_eq!(logits.len(), self.weights.len(), "logits of a different vocabulary");
        let Scan { max, broken } = softmax::scan(logits);
        if broken || max == f32::NEG_INFINITY {
            return Err(NonFiniteLogits);
        }
        let log_sum = f64::from(max) + softmax::sum_exp(logits, max).ln();
        let rank = 1 + softmax::count_better(id, logits);
        Ok(ScoredToken { token: self.report(id, logits, log_sum, num_top), rank })
    }

    /// Truncates the weights, which sum to `total`, and draws.
    fn draw(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        mut total: f64,
        position: u32,
    ) -> u32 {
        let Sampler { weights, block_sums, candidates, .. } = self;
        let k = params.top_k as usize;
        if k > 0 && k < logits.len() {
            truncate::select_best(logits, k, candidates);
            if let Some(&last) = candidates.iter().max() {
                total = softmax::keep_through(truncate::unpack(last), logits, weights, block_sums);
            }
        }
        if params.top_p < 1.0 {
            let target = f64::from(params.top_p) * total;
            // All weights up to this sum to at most half of the mass outside the nucleus.
            let negligible = (total - target) / (2.0 * logits.len() as f64);
            let negligible = negligible as f32;
            if let Some(last) =
                truncate::nucleus_end(logits, weights, target, negligible, candidates)
            {
                total = softmax::keep_through(truncate::unpack(last), logits, weights, block_sums);
            }
        }
        softmax::draw(philox::uniform(params.seed, position) * total, weights, block_sums)
    }

    /// Log-probabilities for token `id`, from raw logits and the natural log of the sum of their
    /// exponentials.
    fn report(&mut self, id: u32, logits: &[f32], log_sum: f64, num_top: u8) -> SampledToken {
        let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
        let mut top = [(0, 0.0); MAX_TOP_LOGPROBS];
        truncate::select_best(
            logits,
            usize::from(num_top).min(MAX_TOP_LOGPROBS),
            &mut self.candidates,
        );
        self.candidates.sort_unstable();
        for (entry, &key) in top.iter_mut().zip(&self.candidates) {
            let (id, logit) = truncate::unpack(key);
            *entry = (id, logprob(logit));
        }
        SampledToken {
            id,
            logprob: logprob(logits[id as usize]),
            top,
            num_top: self.candidates.len() as u8,
        }
    }
}

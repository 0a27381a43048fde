//! The posteriors of all unfinished requests, by request index.
//!
//! The probe owns them and is their only writer. Other parts receive an [`Estimate`], by value.
//! Capacity is fixed at construction; nothing allocates after it.

use crate::smoothing::{Belief, Outcome, Smoother};

/// The fractions of [`Estimate::quantiles`].
pub const QUANTILES: [f32; 3] = [0.1, 0.5, 0.9];

/// Estimate of one request's remaining output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Generation of the request's index: which of its successive requests the estimate is for.
    pub generation: u32,
    /// Tokens the request had generated when its activation was taken.
    pub generated: u32,
    /// Expected remaining tokens.
    pub remaining: f32,
    /// Remaining tokens at the [`QUANTILES`] 0.1, 0.5 and 0.9.
    pub quantiles: [f32; 3],
}

/// Number of occurrences of each [`Outcome`] since construction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutcomeCounts {
    /// Observations that were multiplied into the posterior, without the surprises.
    pub smoothed: u64,
    /// Observations that were multiplied into the posterior, and share less than
    /// [`MIN_SHARED`](crate::smoothing::MIN_SHARED) of their mass with the prior.
    pub surprise: u64,
    /// Observations that were not a distribution and were ignored.
    pub kept_prior: u64,
}

/// One request's filter.
#[derive(Clone, Copy)]
struct Filter {
    generation: u32,
    /// None until the first observation.
    last: Option<(Belief, Estimate)>,
}

/// The filters of all request indices.
pub struct Tracker {
    smoother: Smoother,
    filters: Box<[Filter]>,
    counts: OutcomeCounts,
}

impl Tracker {
    /// A tracker of `max_requests` indices, all of generation 0 and without observations.
    pub fn new(smoother: Smoother, max_requests: usize) -> Tracker {
        let empty = Filter { generation: 0, last: None };
        Tracker {
            smoother,
            filters: vec![empty; max_requests].into(),
            counts: OutcomeCounts::default(),
        }
    }

    /// Updates the posterior with `p` (`[bins]`), the head's output after `generated` tokens;
    /// `generated` = 0 is the prompt's mean.
    ///
    /// The first observation, and any with `generated` = 0, starts the chain with q = p. A later
    /// one advances the posterior by the tokens generated since the last. One without new tokens
    /// (the prompt recomputed after a preemption) changes nothing and returns the current estimate.
    /// A newer generation is a new request at the index; its chain starts. `None` for an older one:
    /// the result is stale.
    pub fn observe(
        &mut self,
        idx: usize,
        generation: u32,
        generated: u32,
        p: &[f32],
    ) -> Option<Estimate> {
        let state = &mut self.filters[idx];
        // The difference is signed: generations wrap.
        match generation.wrapping_sub(state.generation) as i32 {
            0 => {}
            1.. => *state = Filter { generation, last: None },
            _ => return None,
        }
        let (belief, outcome) = match state.last {
            Some((_, estimate)) if generated > 0 && generated <= estimate.generated => {
                return Some(estimate);
            }
            Some((mut belief, estimate)) if generated > 0 => {
                let tokens = generated - estimate.generated;
                let outcome = self.smoother.observe(&mut belief, tokens, p);
                (belief, outcome)
            }
            // Decoding has begun: the prompt's mean is out of date.
            Some((_, estimate)) if estimate.generated > 0 => return Some(estimate),
            _ => self.smoother.start(p),
        };
        self.counts.count(outcome);
        let estimate = self.smoother.estimate(&belief, generation, generated);
        state.last = Some((belief, estimate));
        Some(estimate)
    }

    /// The current estimate at `idx`, if it belongs to `generation` and there was an observation.
    pub fn estimate(&self, idx: usize, generation: u32) -> Option<Estimate> {
        let state = &self.filters[idx];
        (state.generation == generation).then_some(state.last?.1)
    }

    /// Number of occurrences of each outcome.
    pub fn counts(&self) -> OutcomeCounts {
        self.counts
    }
}

impl OutcomeCounts {
    fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Smoothed => self.smoothed += 1,
            Outcome::Surprise => self.surprise += 1,
            Outcome::KeptPrior => self.kept_prior += 1,
        }
    }
}

impl Smoother {
    /// The estimate in tokens under `belief`.
    fn estimate(&self, belief: &Belief, generation: u32, generated: u32) -> Estimate {
        let bins = self.bins();
        let q = belief.posterior.map(|q| q as f32);
        let q = &q[..bins.count()];
        Estimate {
            generation,
            generated,
            remaining: bins.expected(q),
            quantiles: QUANTILES.map(|p| bins.quantile(q, p)),
        }
    }
}

#[cfg(test)]
mod tests;

//! The posteriors of all requests under way, one per slot of the engine.
//!
//! The probe owns them and is their only writer. What others see is an [`Estimate`], by value.
//! Capacity is fixed at construction; nothing allocates after it.

use crate::smoothing::{Belief, Outcome, Smoother};

/// The fractions of [`Estimate::quantiles`].
pub const QUANTILES: [f32; 3] = [0.1, 0.5, 0.9];

/// What is believed of one request's remaining output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Which tenant of the slot this is about.
    pub generation: u32,
    /// Tokens the request had generated when its activation was taken.
    pub generated: u32,
    /// Expected tokens still to come.
    pub remaining: f32,
    /// Tokens still to come at the [`QUANTILES`] 0.1, 0.5 and 0.9.
    pub quantiles: [f32; 3],
}

/// How often each [`Outcome`] occurred since construction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutcomeCounts {
    /// Observations weighed in as they should be.
    pub smoothed: u64,
    /// Observations that contradicted the prior and replaced it.
    pub reset: u64,
    /// Observations that were no distribution and were left out.
    pub kept_prior: u64,
}

/// One request's filter.
#[derive(Clone, Copy)]
struct Slot {
    generation: u32,
    /// None until the first observation.
    last: Option<(Belief, Estimate)>,
}

/// The filters of all slots.
pub struct Tracker {
    smoother: Smoother,
    slots: Box<[Slot]>,
    counts: OutcomeCounts,
}

impl Tracker {
    /// A tracker of `slots` slots, all of generation 0 and without observations.
    pub fn new(smoother: Smoother, slots: usize) -> Tracker {
        let empty = Slot { generation: 0, last: None };
        Tracker { smoother, slots: vec![empty; slots].into(), counts: OutcomeCounts::default() }
    }

    /// Gives `slot` to a new request. Not called after a preemption: the belief outlives the KV
    /// cache.
    pub fn begin(&mut self, slot: usize, generation: u32) {
        self.slots[slot] = Slot { generation, last: None };
    }

    /// Weighs in `p` (`[bins]`), the head's output after `generated` tokens; `generated` = 0 is the
    /// prompt's mean.
    ///
    /// The first observation, and any with `generated` = 0, starts the chain with q = p. A later
    /// one moves the belief on by the tokens generated since the last. One that brings no new token
    /// (the prompt computed again after a preemption) changes nothing and returns the estimate that
    /// stands. None if the slot has been given to another generation: the result came too late.
    pub fn observe(
        &mut self,
        slot: usize,
        generation: u32,
        generated: u32,
        p: &[f32],
    ) -> Option<Estimate> {
        let state = &mut self.slots[slot];
        if state.generation != generation {
            return None;
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
            // Decoding has begun: the prompt's mean is old news.
            Some((_, estimate)) if estimate.generated > 0 => return Some(estimate),
            _ => self.smoother.start(p),
        };
        self.counts.count(outcome);
        let estimate = self.smoother.estimate(&belief, generation, generated);
        state.last = Some((belief, estimate));
        Some(estimate)
    }

    /// The estimate that stands for `slot`, if it is still `generation`'s and was ever observed.
    pub fn estimate(&self, slot: usize, generation: u32) -> Option<Estimate> {
        let state = &self.slots[slot];
        (state.generation == generation).then_some(state.last?.1)
    }

    /// How often each outcome occurred.
    pub fn counts(&self) -> OutcomeCounts {
        self.counts
    }
}

impl OutcomeCounts {
    fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Smoothed => self.smoothed += 1,
            Outcome::Reset => self.reset += 1,
            Outcome::KeptPrior => self.kept_prior += 1,
        }
    }
}

impl Smoother {
    /// What `belief` says in tokens.
    fn estimate(&self, belief: &Belief, generation: u32, generated: u32) -> Estimate {
        let bins = self.bins();
        let q = belief.posterior.map(|q| q as f32);
        let q = &q[..bins.count];
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

//! The posteriors of all unfinished requests, by request index.
//!
//! The probe owns them and is their only writer. Other parts receive an [`Estimate`], by value.
//! Capacity is fixed at construction; nothing allocates after it.

use crate::bins::{Bins, QUANTILES};
use crate::smoothing::{Distribution, FilterOutcome, Smoother};
use crate::token_filter::{Remaining, TokenFilter};

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

/// Kind of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterKind {
    /// None: the head's output as it is.
    Raw,
    /// Over bins of remaining tokens: TRAIL's.
    Bins,
    /// Over total lengths.
    Tokens,
}

impl FilterKind {
    /// All kinds.
    pub const ALL: [FilterKind; 3] = [FilterKind::Raw, FilterKind::Bins, FilterKind::Tokens];

    /// Its name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            FilterKind::Raw => "raw",
            FilterKind::Bins => "bins",
            FilterKind::Tokens => "tokens",
        }
    }
}

/// The filter of all requests.
// One for each tracker: its size does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum Filter {
    /// None: each output of the head counts alone.
    Raw(Smoother),
    /// None: the output of a survival head, of an answer that is cut at the end of the bins.
    Survival(Smoother),
    /// Over bins of remaining tokens: TRAIL's.
    Bins(Smoother),
    /// Over total lengths.
    Tokens(TokenFilter),
}

impl Filter {
    /// The bins of the probabilities that it takes.
    pub fn bins(&self) -> Bins {
        match self {
            Filter::Raw(smoother) | Filter::Survival(smoother) | Filter::Bins(smoother) => {
                smoother.bins()
            }
            Filter::Tokens(filter) => *filter.bins(),
        }
    }

    /// Masses of one request's state, beside a [`Distribution`].
    fn masses(&self) -> usize {
        match self {
            Filter::Raw(_) | Filter::Survival(_) | Filter::Bins(_) => 0,
            Filter::Tokens(filter) => filter.states(),
        }
    }
}

/// One request's state.
#[derive(Clone, Copy)]
struct State {
    generation: u32,
    /// None until the first observation, and but for [`Filter::Bins`].
    belief: Option<Distribution>,
    /// None until the first observation.
    last: Option<Estimate>,
}

/// The filter, and the states of all request indices.
pub struct Tracker {
    filter: Filter,
    states: Box<[State]>,
    /// Masses of every state under [`Filter::Tokens`]: `[requests, states]`. Memory that is never
    /// written takes no page.
    masses: Vec<f32>,
    /// Observations that share little of their mass with the prior ([`FilterOutcome::Surprise`]).
    surprises: u64,
}

impl Tracker {
    /// A tracker of `max_requests` indices, all of generation 0 and without observations.
    pub fn new(filter: Filter, max_requests: usize) -> Tracker {
        let empty = State { generation: 0, belief: None, last: None };
        Tracker {
            states: vec![empty; max_requests].into(),
            masses: vec![0.0; max_requests * filter.masses()],
            filter,
            surprises: 0,
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
        let state = &mut self.states[idx];
        // The difference is signed: generations wrap.
        match generation.wrapping_sub(state.generation) as i32 {
            0 => {}
            1.. => *state = State { generation, belief: None, last: None },
            _ => return None,
        }
        // Tokens since the last observation; `None` if this one starts the chain.
        let tokens = match state.last {
            Some(last) if generated > 0 && generated <= last.generated => return Some(last),
            Some(last) if generated > 0 => Some(generated - last.generated),
            // Decoding has begun: the prompt's mean is out of date.
            Some(last) if last.generated > 0 => return Some(last),
            _ => None,
        };
        let (remaining, outcome) = match &self.filter {
            Filter::Raw(smoother) => bins_step(smoother, &mut None, None, p),
            Filter::Survival(smoother) => {
                let (q, outcome) = smoother.start(p);
                let bins = smoother.bins();
                (remaining(&bins, &q, bins.left(generated)), outcome)
            }
            Filter::Bins(smoother) => bins_step(smoother, &mut state.belief, tokens, p),
            Filter::Tokens(filter) => {
                let masses = &mut self.masses[idx * filter.states()..][..filter.states()];
                match tokens {
                    None => filter.start(masses, generated, p),
                    Some(tokens) => filter.observe(masses, tokens, generated, p),
                }
            }
        };
        self.surprises += u64::from(outcome == FilterOutcome::Surprise);
        let Remaining { mean, quantiles } = remaining;
        let estimate = Estimate { generation, generated, remaining: mean, quantiles };
        state.last = Some(estimate);
        Some(estimate)
    }

    /// The current estimate at `idx`, if it belongs to `generation` and there was an observation.
    pub fn estimate(&self, idx: usize, generation: u32) -> Option<Estimate> {
        let state = &self.states[idx];
        state.last.filter(|_| state.generation == generation)
    }

    /// Number of surprises ([`FilterOutcome::Surprise`]) since construction.
    pub fn surprises(&self) -> u64 {
        self.surprises
    }
}

/// A step of the filter over bins.
fn bins_step(
    smoother: &Smoother,
    belief: &mut Option<Distribution>,
    tokens: Option<u32>,
    p: &[f32],
) -> (Remaining, FilterOutcome) {
    let (next, outcome) = match (*belief, tokens) {
        (Some(mut belief), Some(tokens)) => {
            let outcome = smoother.observe(&mut belief, tokens, p);
            (belief, outcome)
        }
        _ => smoother.start(p),
    };
    *belief = Some(next);
    (remaining(&smoother.bins(), &next, f32::INFINITY), outcome)
}

/// The remaining tokens under `q`, of an answer that is cut after `left` tokens.
fn remaining(bins: &Bins, q: &Distribution, left: f32) -> Remaining {
    let q = q.map(|q| q as f32);
    let q = &q[..bins.count()];
    let quantiles = QUANTILES.map(|fraction| bins.quantile(q, fraction).min(left));
    Remaining { mean: bins.expected_until(q, left), quantiles }
}

#[cfg(test)]
mod tests;

//! The token filter: a posterior over the total length of an answer, at the resolution of tokens.
//!
//! ```text
//! q(0) proportional to h .* (p(0) / pi(0))^b         h: frequencies of total lengths
//! q(t) proportional to q(t-1) .* (p(t) / pi(t))^b    over the lengths above t
//! ```
//!
//! Every generated token takes exactly one from the rest, which the bins of [`crate::smoothing`]
//! cannot express: they let 1/b of a bin's mass move down. Over *total* lengths the same transition
//! is the identity: a length stays, and lengths that are exceeded lose their mass.
//!
//! p is a posterior, so its evidence is p / pi (TRAIL multiplies p itself, and so counts pi once
//! more at every step). pi(t) are the frequencies of the bins at t under h: a probe sees at which
//! position it is. Evidence of neighbouring tokens says nearly the same: it is tempered by b, which
//! is fitted for each class of age.

use std::ops::Range;

use crate::age::{AGES, age_class};
use crate::bins::{Bins, MAX_BINS};
use crate::lengths::Lengths;
use crate::smoothing::Outcome;
use crate::tracker::QUANTILES;

/// Mass of every length that is not exceeded, as a share of its mass in h: evidence that was wrong
/// can be outweighed later.
const FLOOR: f32 = 1e-6;

/// Mass that prior and evidence share, below which the evidence is a surprise.
const SURPRISE: f32 = 0.05;

/// Largest factor of the evidence of one observation, and its inverse.
const MOST_EVIDENCE: f32 = 1e4;

/// Least frequency of a bin that evidence is divided by.
const LEAST_PRIOR: f32 = 0.01;

/// Tokens since the last observation beyond which evidence does not grow.
const MOST_TOKENS: u32 = 16;

/// Lanes of the sums over states.
const LANES: usize = 16;

/// Parameters of the filter: fitted to answers of the model, kept in the probe's file.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Frequencies of total lengths, over [`Lengths::new`] of the bins' `max_tokens`. The last
    /// state has the longer ones too.
    pub lengths: Vec<f32>,
    /// Temperature of p, by class of age.
    pub temperature: [f32; AGES],
    /// Exponent of the evidence of one token, by class of age.
    pub evidence: [f32; AGES],
}

impl Fit {
    /// Says what is wrong with the fit for `bins`, if anything is.
    pub fn check(&self, bins: &Bins) -> Result<(), String> {
        let states = Lengths::new(bins.max_tokens()).len();
        let is_distribution = |values: &[f32]| {
            let sum: f32 = values.iter().sum();
            values.iter().all(|&value| value >= 0.0) && sum > 0.5 && sum < 2.0
        };
        if self.lengths.len() != states || !is_distribution(&self.lengths) {
            return Err(format!("lengths are no distribution over {states} states"));
        }
        let all = |values: &[f32], range: std::ops::RangeInclusive<f32>| {
            values.iter().all(|value| range.contains(value))
        };
        if !all(&self.temperature, 0.01..=100.0) || !all(&self.evidence, 0.0..=10.0) {
            return Err("temperatures are not within 0.01..=100, or exponents not in 0..=10".into());
        }
        Ok(())
    }
}

/// Tokens that remain, under a posterior.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remaining {
    /// Expectation.
    pub mean: f32,
    /// At the [`QUANTILES`].
    pub quantiles: [f32; 3],
}

/// The filter. Its state for one request is a slice of [`TokenFilter::states`] masses.
#[derive(Clone, Debug)]
pub struct TokenFilter {
    bins: Bins,
    grid: Lengths,
    fit: Fit,
    /// Mass of h before each state `[states + 1]`.
    before: Vec<f32>,
    /// First whole number of tokens in each bin, and beyond the last one `[bins + 1]`.
    first: Vec<u32>,
}

impl TokenFilter {
    /// A filter over `bins`. Panics if [`Fit::check`] fails.
    pub fn new(bins: Bins, fit: Fit) -> TokenFilter {
        if let Err(why) = fit.check(&bins) {
            panic!("{why}");
        }
        let grid = Lengths::new(bins.max_tokens());
        let mut first: Vec<u32> =
            (0..bins.count()).map(|bin| bins.lower(bin).ceil() as u32).collect();
        first.push(u32::MAX);
        let sums = fit.lengths.iter().scan(0.0, |sum, &mass| {
            *sum += f64::from(mass);
            Some(*sum as f32)
        });
        let before = std::iter::once(0.0).chain(sums).collect();
        TokenFilter { bins, grid, fit, before, first }
    }

    /// The bins.
    pub fn bins(&self) -> &Bins {
        &self.bins
    }

    /// Masses of a request's state.
    pub fn states(&self) -> usize {
        self.grid.len()
    }

    /// Begins a request's state `q` `[states]` with the evidence `p` `[bins]` of `generated`
    /// tokens; 0 is the mean over the prompt.
    pub fn start(&self, q: &mut [f32], generated: u32, p: &[f32]) -> (Remaining, Outcome) {
        q.copy_from_slice(&self.fit.lengths);
        self.observe(q, 1, generated, p)
    }

    /// Multiplies the state `q` `[states]` by the evidence `p` `[bins]` after `generated` tokens,
    /// of which `tokens` are new.
    pub fn observe(
        &self,
        q: &mut [f32],
        tokens: u32,
        generated: u32,
        p: &[f32],
    ) -> (Remaining, Outcome) {
        let alive = self.grid.at_least(generated.saturating_add(1));
        let Some(evidence) = self.evidence(p, tokens, generated) else {
            // Not a distribution: the prior stays.
            return (self.weigh(q, generated, &[1.0; MAX_BINS]).0, Outcome::KeptPrior);
        };
        if alive == self.grid.len() {
            // Longer than any answer that the filter knows: p alone is left.
            let mean = self.bins.expected(p);
            let quantiles = QUANTILES.map(|fraction| self.bins.quantile(p, fraction));
            return (Remaining { mean, quantiles }, Outcome::Surprise);
        }
        let (remaining, masses) = self.weigh(q, generated, &evidence);
        // The masses of the prior: those of the posterior without the evidence.
        let prior = || masses.iter().zip(&evidence).map(|(mass, factor)| mass / factor);
        let (total, sum) = (prior().take(p.len()).sum::<f32>(), p.iter().sum::<f32>());
        let shared: f32 = prior().zip(p).map(|(prior, p)| (prior / total).min(p / sum)).sum();
        match shared < SURPRISE {
            true => (remaining, Outcome::Surprise),
            false => (remaining, Outcome::Smoothed),
        }
    }

    /// Factor of each bin, or `None` if `p` is not a distribution up to its scale.
    fn evidence(&self, p: &[f32], tokens: u32, generated: u32) -> Option<[f32; MAX_BINS]> {
        assert_eq!(p.len(), self.bins.count(), "a distribution over the bins");
        let sum: f32 = p.iter().sum();
        if !(sum.is_finite() && sum > 0.0 && p.iter().all(|&p| p >= 0.0)) {
            return None;
        }
        let age = age_class(generated);
        let exponent = self.fit.evidence[age] * tokens.clamp(1, MOST_TOKENS) as f32;
        let sharpness = 1.0 / self.fit.temperature[age];
        let alive = 1.0 - self.before[self.grid.at_least(generated.saturating_add(1))];
        let mut factors = [1.0; MAX_BINS];
        for (bin, (factor, &p)) in factors.iter_mut().zip(p).enumerate() {
            let states = self.states_of(bin, generated);
            let mass = self.before[states.end] - self.before[states.start];
            let prior = (mass / alive.max(FLOOR)).max(LEAST_PRIOR);
            let log = (p / sum).max(f32::MIN_POSITIVE).ln() * sharpness - prior.ln();
            *factor = (log * exponent).exp().clamp(1.0 / MOST_EVIDENCE, MOST_EVIDENCE);
        }
        Some(factors)
    }

    /// The states whose remaining tokens are in `bin` after `generated` tokens.
    fn states_of(&self, bin: usize, generated: u32) -> Range<usize> {
        let at = |bin: usize| {
            let tokens = generated.saturating_add(self.first[bin].max(1));
            self.grid.at_least(tokens)
        };
        at(bin)..at(bin + 1)
    }

    /// Multiplies every state by the factor of its bin, above the floor, and brings the sum to 1.
    /// Returns the remaining tokens, and the mass of each bin before that.
    fn weigh(
        &self,
        q: &mut [f32],
        generated: u32,
        factors: &[f32; MAX_BINS],
    ) -> (Remaining, [f32; MAX_BINS]) {
        let mut masses = [0.0; MAX_BINS];
        let (mut mass, mut moment) = (0.0, 0.0);
        let bins = self.bins.count();
        for (bin, (sum, &factor)) in masses[..bins].iter_mut().zip(factors).enumerate() {
            let states = self.states_of(bin, generated);
            let (lengths, values) = (&self.fit.lengths, self.grid.values());
            let weighted;
            (*sum, weighted) =
                scale(&mut q[states.clone()], &lengths[states.clone()], &values[states], factor);
            mass += *sum;
            moment += weighted;
        }
        let age = generated as f32;
        // A state of several lengths may have been entered.
        let at_least_one = |tokens: f32| (tokens - age).max(1.0);
        if mass <= 0.0 || !mass.is_finite() {
            // No length above `generated` was seen in training.
            let last = self.grid.values().last().copied().unwrap_or(1.0);
            let remaining = at_least_one(last);
            return (Remaining { mean: remaining, quantiles: [remaining; 3] }, masses);
        }
        let inverse = 1.0 / mass;
        q[self.grid.at_least(generated.saturating_add(1))..].iter_mut().for_each(|q| *q *= inverse);
        let quantiles = QUANTILES.map(|fraction| {
            let state = self.reached(q, generated, &masses, fraction * mass, inverse);
            at_least_one(self.grid.values()[state])
        });
        (Remaining { mean: at_least_one(moment * inverse), quantiles }, masses)
    }

    /// The state at which the states' masses `q` reach `wanted`, which like the bins' `masses` is
    /// not yet multiplied by `inverse`.
    fn reached(
        &self,
        q: &[f32],
        generated: u32,
        masses: &[f32; MAX_BINS],
        mut wanted: f32,
        inverse: f32,
    ) -> usize {
        for (bin, &mass) in masses[..self.bins.count()].iter().enumerate() {
            if wanted <= mass && mass > 0.0 {
                let states = self.states_of(bin, generated);
                wanted *= inverse;
                let reached = q[states.clone()].iter().position(|q| {
                    wanted -= q;
                    wanted <= 0.0
                });
                return reached.map_or(states.end - 1, |at| states.start + at);
            }
            wanted -= mass;
        }
        self.grid.len() - 1
    }
}

/// Multiplies `q` by `factor`, above the floor, and returns its sum, and its sum weighted by
/// `values`. In fixed lanes, so that the compiler keeps them in registers.
fn scale(q: &mut [f32], lengths: &[f32], values: &[f32], factor: f32) -> (f32, f32) {
    let (mut sums, mut moments) = ([0.0; LANES], [0.0; LANES]);
    let mut one = |lane: usize, q: &mut f32, length: f32, value: f32| {
        *q = (*q * factor).max(FLOOR * length);
        sums[lane] += *q;
        moments[lane] += *q * value;
    };
    let (blocks, rest) = q.as_chunks_mut::<LANES>();
    let (length_blocks, length_rest) = lengths.as_chunks::<LANES>();
    let (value_blocks, value_rest) = values.as_chunks::<LANES>();
    for ((q, lengths), values) in blocks.iter_mut().zip(length_blocks).zip(value_blocks) {
        for lane in 0..LANES {
            one(lane, &mut q[lane], lengths[lane], values[lane]);
        }
    }
    for (lane, q) in rest.iter_mut().enumerate() {
        one(lane, q, length_rest[lane], value_rest[lane]);
    }
    (sums.iter().sum(), moments.iter().sum())
}

#[cfg(test)]
mod tests;

//! The Bayesian filter over a request's predictions (TRAIL section 3.1 and appendix A).
//!
//! ```text
//! prior(t) = T q(t-1)             one generated token moves 1/w of a bin's mass one bin down
//! q(t) proportional to prior(t) .* p(t)
//! ```
//!
//! Distributions are column vectors and T is upper bidiagonal: `T[i][i]` = 1 - 1/w(i),
//! `T[i-1][i]` = 1/w(i) with the real-valued width w(i) >= 1 of bin i, and `T[0][0]` = 1, since a
//! request in bin 0 stays there until it ends. The paper's bins have one width, and its three
//! statements of T disagree; this is the one whose mass moves down. The posterior is fed back, as
//! in the paper's prose and its released code; its formula feeds the prior back.
//!
//! Two guards that the paper lacks. T never moves mass up, so a bin whose mass underflows would be
//! lost permanently: every prior contains a uniform floor of [`FLOOR`]. And where the product has
//! no mass to normalise, the filter restarts from p. Evidence that contradicts the prior is counted
//! ([`FilterOutcome::Surprise`]) and weighed as any other.

use crate::bins::{Bins, MAX_BINS};

/// Share of the uniform distribution in every prior.
pub const FLOOR: f64 = 1e-6;

/// Mass of prior .* p below which the posterior is p alone. The floor leaves a p that sums to 1 a
/// product of at least FLOOR / count, so only a p far below that sum has less.
pub const MIN_MASS: f64 = 1e-12;

/// Mass common to prior and p, sum of min(prior, p), below which p is a surprise. It is 1 for equal
/// distributions: 1 minus the total variation distance.
pub const MIN_SHARED: f64 = 0.05;

/// A distribution over the bins; entries past the count are zero.
pub type Distribution = [f64; MAX_BINS];

/// Effect of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterOutcome {
    /// q(t) is the normalised product.
    Smoothed,
    /// The same, of a prior and a p that share less than [`MIN_SHARED`] of their mass.
    Surprise,
    /// p(t) was not a distribution (not finite, negative, or without mass): q(t) = prior(t).
    KeptPrior,
}

/// The filter itself.
#[derive(Clone, Copy, Debug)]
pub struct Smoother {
    bins: Bins,
    /// 1/w, the share of each bin's mass that one token moves down.
    down: Distribution,
}

impl Smoother {
    /// A filter over `bins`.
    pub fn new(bins: Bins) -> Smoother {
        let down = |i| if i < bins.count() { 1.0 / bins.width(i) } else { 0.0 };
        Smoother { bins, down: std::array::from_fn(down) }
    }

    /// The bins.
    pub fn bins(&self) -> Bins {
        self.bins
    }

    /// The first posterior: q(0) = p(0), or uniform where p(0) is not a distribution. `p` is
    /// `[bins]`.
    pub fn start(&self, p: &[f32]) -> (Distribution, FilterOutcome) {
        match self.evidence(p) {
            Some(p) => (self.normalised(&p), FilterOutcome::Smoothed),
            None => (self.uniform(1.0), FilterOutcome::KeptPrior),
        }
    }

    /// Advances the posterior `q` by `tokens` generated tokens (more than one when steps were late
    /// or missed), then multiplies by the evidence `p`, `[bins]`.
    pub fn observe(&self, q: &mut Distribution, tokens: u32, p: &[f32]) -> FilterOutcome {
        let moved = self.advance(q, tokens);
        let floor = self.uniform(FLOOR);
        let prior: Distribution = std::array::from_fn(|i| (1.0 - FLOOR) * moved[i] + floor[i]);
        let (posterior, outcome) = self.weigh(&prior, p);
        *q = posterior;
        outcome
    }

    /// T^tokens q.
    pub fn advance(&self, q: &Distribution, tokens: u32) -> Distribution {
        let mut q = *q;
        // After 16 times the whole range, all but a few FLOOR of the mass is in the first bin.
        for _ in 0..tokens.min(self.bins.max_tokens().saturating_mul(16)) {
            // Ascending: a bin gets what the one above had before this token.
            for i in 1..self.bins.count() {
                q[i - 1] += self.down[i] * q[i];
                q[i] *= 1.0 - self.down[i];
            }
        }
        q
    }

    fn weigh(&self, prior: &Distribution, p: &[f32]) -> (Distribution, FilterOutcome) {
        let Some(p) = self.evidence(p) else {
            return (self.normalised(prior), FilterOutcome::KeptPrior);
        };
        let normal = self.normalised(&p);
        let shared = self.sum(&std::array::from_fn(|i| prior[i].min(normal[i])));
        let outcome =
            if shared < MIN_SHARED { FilterOutcome::Surprise } else { FilterOutcome::Smoothed };
        let product = std::array::from_fn(|i| prior[i] * p[i]);
        let mass = self.sum(&product);
        let has_mass = mass.is_finite() && mass >= MIN_MASS;
        (if has_mass { self.normalised(&product) } else { normal }, outcome)
    }

    /// `p` in `f64`, if it is a distribution up to its scale.
    fn evidence(&self, p: &[f32]) -> Option<Distribution> {
        assert_eq!(p.len(), self.bins.count(), "a distribution over {} bins", self.bins.count());
        let sum: f64 = p.iter().copied().map(f64::from).sum();
        let valid = sum.is_finite() && sum > 0.0 && p.iter().all(|&p| p >= 0.0);
        let mut wide = [0.0; MAX_BINS];
        wide.iter_mut().zip(p).for_each(|(wide, &p)| *wide = p.into());
        valid.then_some(wide)
    }

    /// `mass` spread evenly over the bins.
    fn uniform(&self, mass: f64) -> Distribution {
        let mut q = [0.0; MAX_BINS];
        q[..self.bins.count()].fill(mass / self.bins.count() as f64);
        q
    }

    /// `q` divided by its sum.
    fn normalised(&self, q: &Distribution) -> Distribution {
        let (mass, mut q) = (self.sum(q), *q);
        q[..self.bins.count()].iter_mut().for_each(|q| *q /= mass);
        q
    }

    /// Sum over the bins.
    fn sum(&self, q: &Distribution) -> f64 {
        q[..self.bins.count()].iter().sum()
    }
}

#[cfg(test)]
mod tests;

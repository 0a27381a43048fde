//! The Bayesian filter over a request's predictions (TRAIL section 3.1 and appendix A).
//!
//! ```text
//! prior(t) = T q(t-1)             one generated token moves 1/b of every bin's mass one bin down
//! q(t) proportional to prior(t) .* p(t)
//! ```
//!
//! Distributions are column vectors and T is upper bidiagonal: `T[i][i]` = 1 - 1/b, `T[i][i+1]` =
//! 1/b with the real-valued bin width b, and `T[0][0]` = 1, since a request in bin 0 stays there
//! until it ends. The paper's three statements of T disagree; this is the one whose mass moves
//! down. The formula in the paper feeds the prior back, its prose and its released code the
//! posterior: [`Chain`].
//!
//! Two guards that the paper lacks. T never moves mass up, so a bin whose mass underflows would be
//! lost permanently: every prior contains a uniform floor of [`FLOOR`]. And where the product has
//! no mass to normalise, the filter restarts from p: [`Outcome::Reset`].

use crate::bins::{Bins, MAX_BINS};

/// Share of the uniform distribution in every prior.
pub const FLOOR: f64 = 1e-6;

/// Mass of prior .* p below which the two contradict each other and the posterior is p alone.
pub const MIN_MASS: f64 = 1e-12;

/// A distribution over the bins; entries past the count are zero.
pub type Distribution = [f64; MAX_BINS];

/// The distribution that the next step starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Chain {
    /// q(t): evidence accumulates (the paper's prose and its released code).
    #[default]
    Posterior,
    /// The prior: evidence of one step only (the paper's formula). Not used by the engine; kept for
    /// comparisons.
    Prior,
}

/// Effect of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// q(t) is the normalised product.
    Smoothed,
    /// The product had no mass: q(t) = p(t). The floor leaves a p that sums to 1 a mass of at least
    /// FLOOR / count, so this happens only to a p far below that sum.
    Reset,
    /// p(t) was not a distribution (not finite, negative, or without mass): q(t) = prior(t).
    KeptPrior,
}

/// The filter's state for one request.
#[derive(Clone, Copy, Debug)]
pub struct Belief {
    /// q(t), sums to 1.
    pub posterior: Distribution,
    /// The distribution that T is applied to next: q(t), or the prior where priors are chained.
    chained: Distribution,
}

/// The filter itself: the bins and what is chained.
#[derive(Clone, Copy, Debug)]
pub struct Smoother {
    bins: Bins,
    chain: Chain,
}

impl Smoother {
    /// A filter over `bins`.
    pub fn new(bins: Bins, chain: Chain) -> Smoother {
        assert!((1..=MAX_BINS).contains(&bins.count) && bins.max_tokens as usize >= bins.count);
        Smoother { bins, chain }
    }

    /// The bins.
    pub fn bins(&self) -> Bins {
        self.bins
    }

    /// The first belief: q(0) = p(0), or uniform where p(0) is not a distribution. `p` is `[bins]`.
    pub fn start(&self, p: &[f32]) -> (Belief, Outcome) {
        let (first, outcome) = match self.evidence(p) {
            Some(p) => (normalised(&p), Outcome::Smoothed),
            None => (self.uniform(1.0), Outcome::KeptPrior),
        };
        (Belief { posterior: first, chained: first }, outcome)
    }

    /// Advances `belief` by `tokens` generated tokens (more than one when steps were late or
    /// missed), then multiplies by the evidence `p`, `[bins]`.
    pub fn observe(&self, belief: &mut Belief, tokens: u32, p: &[f32]) -> Outcome {
        let moved = self.advance(&belief.chained, tokens);
        let floor = self.uniform(FLOOR);
        let prior: Distribution = std::array::from_fn(|i| (1.0 - FLOOR) * moved[i] + floor[i]);
        let (posterior, outcome) = self.weigh(&prior, p);
        belief.posterior = posterior;
        belief.chained = match (self.chain, outcome) {
            // A contradicted prior would mislead the next step too.
            (Chain::Posterior, _) | (Chain::Prior, Outcome::Reset) => posterior,
            (Chain::Prior, _) => moved,
        };
        outcome
    }

    /// T^tokens q.
    pub fn advance(&self, q: &Distribution, tokens: u32) -> Distribution {
        let down = 1.0 / self.bins.width();
        let mut q = *q;
        // After 16 times the whole range, only the first bin has mass above a double's least.
        for _ in 0..tokens.min(self.bins.max_tokens.saturating_mul(16)) {
            let first = q[0] + down * q[1];
            for i in 1..self.bins.count {
                let above = if i + 1 < self.bins.count { q[i + 1] } else { 0.0 };
                q[i] = (1.0 - down) * q[i] + down * above;
            }
            q[0] = first;
        }
        q
    }

    fn weigh(&self, prior: &Distribution, p: &[f32]) -> (Distribution, Outcome) {
        let Some(p) = self.evidence(p) else { return (normalised(prior), Outcome::KeptPrior) };
        let product = std::array::from_fn(|i| prior[i] * p[i]);
        let mass: f64 = product.iter().sum();
        if mass.is_finite() && mass >= MIN_MASS {
            (normalised(&product), Outcome::Smoothed)
        } else {
            (normalised(&p), Outcome::Reset)
        }
    }

    /// `p` in `f64`, if it is a distribution up to its scale.
    fn evidence(&self, p: &[f32]) -> Option<Distribution> {
        assert_eq!(p.len(), self.bins.count, "a distribution over {} bins", self.bins.count);
        let sum: f64 = p.iter().copied().map(f64::from).sum();
        let valid = sum.is_finite() && sum > 0.0 && p.iter().all(|&p| p >= 0.0);
        valid.then(|| std::array::from_fn(|i| p.get(i).map_or(0.0, |&p| f64::from(p))))
    }

    /// `mass` spread evenly over the bins.
    fn uniform(&self, mass: f64) -> Distribution {
        let count = self.bins.count;
        std::array::from_fn(|i| if i < count { mass / count as f64 } else { 0.0 })
    }
}

fn normalised(q: &Distribution) -> Distribution {
    let mass: f64 = q.iter().sum();
    q.map(|q| q / mass)
}

#[cfg(test)]
mod tests;

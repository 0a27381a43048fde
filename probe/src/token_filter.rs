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

use trail_platform::Isa;

use crate::age::{AGES, age_class};
use crate::bins::{Bins, MAX_BINS, QUANTILES};
use crate::kernel::masses::{MassKernel, MassUpdate};
use crate::lengths::Lengths;
use crate::line::LANES;
use crate::logarithm::{exp2, log2};
use crate::smoothing::FilterOutcome;

/// Mass of every length that is not exceeded, as a share of its mass in h: evidence that was wrong
/// can be outweighed later.
const FLOOR: f32 = 1e-6;

/// Mass that prior and evidence share, below which the evidence is a surprise.
const SURPRISE: f32 = 0.05;

/// Largest factor of the evidence of one observation, and its inverse.
const MAX_EVIDENCE: f32 = 1e4;

/// Least frequency of a bin that evidence is divided by.
const LEAST_PRIOR: f32 = 0.01;

/// Tokens since the last observation beyond which evidence does not grow.
const MAX_TOKENS: u32 = 16;

/// States whose masses are summed at once in the search for a quantile.
const CHUNK: usize = 8;

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

/// The filter. Its state for one request is a slice of [`TokenFilter::states`] floats: the masses,
/// and last the factor that brings their sum to 1.
#[derive(Clone, Debug)]
pub struct TokenFilter {
    bins: Bins,
    grid: Lengths,
    fit: Fit,
    /// [`FLOOR`] of h for each state, `[states - 1]`.
    floors: Vec<f32>,
    /// Middle of each state, tokens `[states - 1]`.
    values: Vec<f32>,
    /// Mass of h before each state of the grid, and after the last.
    before: Vec<f32>,
    /// First whole number of tokens in each bin, and beyond the last one `[bins + 1]`.
    first: Vec<u32>,
    kernel: MassKernel,
}

/// First state of each bin at some age, and the end of the last `[bins + 1]`.
type Edges = [usize; MAX_BINS + 1];

impl TokenFilter {
    /// A filter over `bins`, by the instructions of [`Isa::detect`]. Panics if [`Fit::check`]
    /// fails.
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
        let padded = |mut floats: Vec<f32>| {
            floats.resize(grid.len().next_multiple_of(LANES), 0.0);
            floats
        };
        TokenFilter {
            floors: padded(fit.lengths.iter().map(|mass| FLOOR * mass).collect()),
            values: padded(grid.values().to_vec()),
            kernel: MassKernel::select(Isa::Auto).expect("every CPU runs what was detected"),
            bins,
            grid,
            fit,
            before,
            first,
        }
    }

    /// The same filter by the instructions of `isa`; an error if this CPU cannot run them.
    pub fn with_isa(self, isa: Isa) -> Result<TokenFilter, String> {
        Ok(TokenFilter { kernel: MassKernel::select(isa)?, ..self })
    }

    /// The bins.
    pub fn bins(&self) -> &Bins {
        &self.bins
    }

    /// Floats of a request's state.
    pub fn states(&self) -> usize {
        self.values.len() + 1
    }

    /// Begins a request's state `q` `[states]` with the evidence `p` `[bins]` of `generated`
    /// tokens; 0 is the mean over the prompt.
    pub fn start(&self, q: &mut [f32], generated: u32, p: &[f32]) -> (Remaining, FilterOutcome) {
        let (scale, masses) = q.split_last_mut().expect("a state");
        let (lengths, padding) = masses.split_at_mut(self.grid.len());
        lengths.copy_from_slice(&self.fit.lengths);
        padding.fill(0.0);
        *scale = 1.0;
        self.observe(q, 1, generated, p)
    }

    /// Multiplies the state `q` `[states]` by the evidence `p` `[bins]` after `generated` tokens;
    /// the last `tokens` are new.
    pub fn observe(
        &self,
        q: &mut [f32],
        tokens: u32,
        generated: u32,
        p: &[f32],
    ) -> (Remaining, FilterOutcome) {
        let edges = self.edges(generated);
        let Some(evidence) = self.evidence(p, tokens, generated, &edges) else {
            // Not a distribution: the prior stays.
            let (remaining, _) = self.weigh(q, generated, &edges, &[1.0; MAX_BINS]);
            return (remaining, FilterOutcome::KeptPrior);
        };
        if edges[0] == self.grid.len() {
            // Longer than any answer that the filter knows: p alone is left.
            let mean = self.bins.expected(p);
            let quantiles = QUANTILES.map(|fraction| self.bins.quantile(p, fraction));
            return (Remaining { mean, quantiles }, FilterOutcome::Surprise);
        }
        let (remaining, masses) = self.weigh(q, generated, &edges, &evidence);
        // The masses of the prior: those of the posterior without the evidence.
        let prior = || masses.iter().zip(&evidence).map(|(mass, factor)| mass / factor);
        let (total, sum) = (prior().take(p.len()).sum::<f32>(), p.iter().sum::<f32>());
        let (per_total, per_sum) = (1.0 / total, 1.0 / sum);
        let shared: f32 =
            prior().zip(p).map(|(prior, p)| (prior * per_total).min(p * per_sum)).sum();
        match shared < SURPRISE {
            true => (remaining, FilterOutcome::Surprise),
            false => (remaining, FilterOutcome::Smoothed),
        }
    }

    /// The states whose remaining tokens are in each bin after `generated` tokens.
    fn edges(&self, generated: u32) -> Edges {
        let mut edges = [self.grid.len(); MAX_BINS + 1];
        for (edge, &first) in edges.iter_mut().zip(&self.first) {
            *edge = self.grid.at_least(generated.saturating_add(first.max(1)));
        }
        edges
    }

    /// Factor of each bin, or `None` if `p` is not a distribution up to its scale.
    fn evidence(
        &self,
        p: &[f32],
        tokens: u32,
        generated: u32,
        edges: &Edges,
    ) -> Option<[f32; MAX_BINS]> {
        assert_eq!(p.len(), self.bins.count(), "a distribution over the bins");
        let sum: f32 = p.iter().sum();
        if !(sum.is_finite() && sum > 0.0 && p.iter().all(|&p| p >= 0.0)) {
            return None;
        }
        let age = age_class(generated);
        let exponent = self.fit.evidence[age] * tokens.clamp(1, MAX_TOKENS) as f32;
        let sharpness = 1.0 / self.fit.temperature[age];
        let per_alive = 1.0 / (1.0 - self.before[edges[0]]).max(FLOOR);
        // Bins beyond the last have the factor 1. In whole blocks, for the compiler.
        let (mut says, mut priors) = ([1.0_f32; MAX_BINS], [1.0_f32; MAX_BINS]);
        for (bin, &p) in p.iter().enumerate() {
            let mass = self.before[edges[bin + 1]] - self.before[edges[bin]];
            priors[bin] = (mass * per_alive).max(LEAST_PRIOR);
            says[bin] = (p / sum).max(f32::MIN_POSITIVE);
        }
        let (blocks, _) = says.as_chunks_mut::<LANES>();
        let (priors, _) = priors.as_chunks::<LANES>();
        for (block, priors) in blocks.iter_mut().zip(priors).take(p.len().div_ceil(LANES)) {
            for (factor, prior) in block.iter_mut().zip(priors) {
                let log = log2(*factor) * sharpness - log2(*prior);
                *factor = exp2(log * exponent).clamp(1.0 / MAX_EVIDENCE, MAX_EVIDENCE);
            }
        }
        Some(says)
    }

    /// Multiplies every state by the factor of its bin, above the floor. Returns the remaining
    /// tokens, and the mass of each bin; the state's factor scales the sum to 1.
    fn weigh(
        &self,
        q: &mut [f32],
        generated: u32,
        edges: &Edges,
        factors: &[f32; MAX_BINS],
    ) -> (Remaining, [f32; MAX_BINS]) {
        let bins = self.bins.count();
        let (scale, q) = q.split_last_mut().expect("a state");
        let mut masses = [0.0; MAX_BINS];
        let moment = self.kernel.update(MassUpdate {
            q,
            floors: &self.floors,
            values: &self.values,
            edges: &edges[..=bins],
            factors: &factors.map(|factor| factor * *scale)[..bins],
            masses: &mut masses[..bins],
        });
        let mass: f32 = masses.iter().sum();
        let age = generated as f32;
        // A state of several lengths may have been entered.
        let at_least_one = |tokens: f32| (tokens - age).max(1.0);
        if mass <= 0.0 || !mass.is_finite() {
            // No length above `generated` was seen in training.
            *scale = 1.0;
            let last = self.grid.values().last().copied().unwrap_or(1.0);
            let remaining = at_least_one(last);
            return (Remaining { mean: remaining, quantiles: [remaining; 3] }, masses);
        }
        *scale = 1.0 / mass;
        let quantiles = QUANTILES.map(|fraction| {
            let state = reached(q, edges, &masses[..bins], fraction * mass);
            at_least_one(self.grid.values()[state.min(self.grid.len() - 1)])
        });
        (Remaining { mean: at_least_one(moment * *scale), quantiles }, masses)
    }
}

/// The state at which the sum of the masses `q` reaches `wanted`; `masses`: sum of each bin.
fn reached(q: &[f32], edges: &Edges, masses: &[f32], mut wanted: f32) -> usize {
    for (bin, &mass) in masses.iter().enumerate() {
        if wanted <= mass && mass > 0.0 {
            return reached_in(q, edges[bin]..edges[bin + 1], wanted);
        }
        wanted -= mass;
    }
    edges[masses.len()]
}

/// The same within `states`.
fn reached_in(q: &[f32], states: Range<usize>, mut wanted: f32) -> usize {
    let mut at = states.start;
    for chunk in q[states.clone()].chunks(CHUNK) {
        let mass: f32 = chunk.iter().sum();
        if wanted <= mass {
            break;
        }
        wanted -= mass;
        at += chunk.len();
    }
    let rest = q[at..states.end].iter().position(|q| {
        wanted -= q;
        wanted <= 0.0
    });
    rest.map_or(states.end - 1, |rest| at + rest)
}

#[cfg(test)]
mod tests;

//! Seeded workloads: arrival times and output lengths.

use trail_platform::rng::Rng;

/// A process of arrivals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Independent arrivals, `rate` per second.
    Poisson {
        /// Mean arrivals per second.
        rate: f64,
    },
    /// Gamma-distributed gaps: mean `shape * scale` seconds, coefficient of variation
    /// 1 / sqrt(shape). ELIS (section 4) fits shape 0.73, scale 10.41 to a production trace.
    Gamma {
        /// Below 1: burstier than Poisson. 1: Poisson.
        shape: f64,
        /// Seconds.
        scale: f64,
    },
    /// All at time 0 (TRAIL, figure 7).
    Burst,
}

/// Shape of the Gamma distribution that ELIS (section 4) fits to the gaps of a production trace.
pub const ELIS_SHAPE: f64 = 0.73;

impl Arrivals {
    /// Gamma-distributed gaps of [`ELIS_SHAPE`], scaled to `rate` arrivals per second.
    pub fn gamma_at(rate: f64) -> Arrivals {
        Arrivals::Gamma { shape: ELIS_SHAPE, scale: 1.0 / (ELIS_SHAPE * rate) }
    }

    /// Seconds from one arrival to the next.
    pub fn gap_s(self, rng: &mut Rng) -> f64 {
        match self {
            Arrivals::Poisson { rate } => rng.exponential() / rate,
            Arrivals::Gamma { shape, scale } => rng.gamma(shape) * scale,
            Arrivals::Burst => 0.0,
        }
    }

    /// The seconds of the first `count` arrivals, ascending.
    pub fn seconds(self, count: usize, rng: &mut Rng) -> Vec<f64> {
        let mut now_s = 0.0;
        (0..count)
            .map(|_| {
                now_s += self.gap_s(rng);
                now_s
            })
            .collect()
    }
}

/// A distribution of output lengths, tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    /// As Alpaca answered greedily by Llama-3-8B under a cap of [`ALPACA_CAP_TOKENS`]: bimodal,
    /// a fifth below 51 tokens, a quarter at the cap.
    AlpacaLike {
        /// Longest output; longer ones are cut to it. The trace has no data above 512.
        cap: u32,
    },
    /// The same length for every request.
    Constant(u32),
    /// Uniform, both ends included.
    Uniform {
        /// Smallest length, tokens.
        min: u32,
        /// Largest length, tokens.
        max: u32,
    },
    /// Log-normal, rounded, and cut to its bounds.
    LogNormal {
        /// Mean before the cut, tokens.
        mean: f64,
        /// Coefficient of variation before the cut.
        variation: f64,
        /// Smallest length, tokens.
        min: u32,
        /// Largest length, tokens.
        max: u32,
    },
}

/// The cap under which the Alpaca lengths were recorded.
pub const ALPACA_CAP_TOKENS: u32 = 512;

/// The distribution function of Alpaca output lengths as (share, tokens), linear in between.
///
/// Source: the 2,000-prompt trace released with TRAIL, its first 138 rows: mean 265, median 238,
/// coefficient of variation 0.74; ten equal bins hold .21 .12 .08 .06 .06 .03 .07 .04 .02 .32, the
/// last with .26 at the cap itself; the 10 % quantile is 27.
const ALPACA_QUANTILES: [(f64, f64); 13] = [
    (0.0, 1.0),
    (0.10, 27.0),
    (0.21, 51.2),
    (0.33, 102.4),
    (0.41, 153.6),
    (0.47, 204.8),
    (0.53, 256.0),
    (0.56, 307.2),
    (0.63, 358.4),
    (0.67, 409.6),
    (0.69, 460.8),
    (0.74, ALPACA_CAP_TOKENS as f64),
    (1.0, ALPACA_CAP_TOKENS as f64),
];

impl Lengths {
    /// The largest length, tokens.
    pub fn longest(self) -> u32 {
        match self {
            Lengths::AlpacaLike { cap } => cap.clamp(1, ALPACA_CAP_TOKENS),
            Lengths::Constant(tokens) => tokens.max(1),
            Lengths::Uniform { max, .. } | Lengths::LogNormal { max, .. } => max.max(1),
        }
    }

    /// The same, with lengths above `cap` cut to it.
    pub fn capped(self, cap: u32) -> Lengths {
        match self {
            Lengths::AlpacaLike { cap: other } => Lengths::AlpacaLike { cap: cap.min(other) },
            Lengths::Constant(tokens) => Lengths::Constant(tokens.min(cap)),
            Lengths::Uniform { min, max } => {
                Lengths::Uniform { min: min.min(cap), max: max.min(cap) }
            }
            Lengths::LogNormal { mean, variation, min, max } => {
                Lengths::LogNormal { mean, variation, min: min.min(cap), max: max.min(cap) }
            }
        }
    }

    /// One output length, at least 1 token.
    pub fn tokens(self, rng: &mut Rng) -> u32 {
        match self {
            Lengths::AlpacaLike { cap } => alpaca_quantile(rng.uniform()).min(cap).max(1),
            Lengths::Constant(tokens) => tokens.max(1),
            Lengths::Uniform { min, max } => {
                (min + rng.below((max - min) as u64 + 1) as u32).max(1)
            }
            Lengths::LogNormal { mean, variation, min, max } => {
                let variance = (1.0 + variation * variation).ln();
                let log = mean.ln() - 0.5 * variance + variance.sqrt() * rng.normal();
                (log.exp().round() as u32).clamp(min, max).max(1)
            }
        }
    }
}

/// The quantile `below` of the output lengths, tokens.
fn alpaca_quantile(below: f64) -> u32 {
    let right = ALPACA_QUANTILES.iter().position(|&(share, _)| share > below);
    let right = right.unwrap_or(ALPACA_QUANTILES.len() - 1);
    let ((s0, t0), (s1, t1)) = (ALPACA_QUANTILES[right - 1], ALPACA_QUANTILES[right]);
    (t0 + (t1 - t0) * (below - s0) / (s1 - s0)).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 100_000;

    fn mean_and_cv(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, variance.sqrt() / mean)
    }

    fn gaps(arrivals: Arrivals) -> (f64, f64) {
        let seconds = arrivals.seconds(COUNT, &mut Rng::new(11));
        let gaps: Vec<f64> = seconds.windows(2).map(|pair| pair[1] - pair[0]).collect();
        mean_and_cv(&gaps)
    }

    #[test]
    fn gaps_have_their_mean_and_variation() {
        let (mean, cv) = gaps(Arrivals::Poisson { rate: 14.0 });
        assert!((mean * 14.0 - 1.0).abs() < 0.02 && (cv - 1.0).abs() < 0.02, "{mean} {cv}");
        // ELIS, figure 4: mean 7.60 s, variation 1.17.
        let (mean, cv) = gaps(Arrivals::Gamma { shape: 0.73, scale: 10.41 });
        assert!((mean / 7.60 - 1.0).abs() < 0.02 && (cv - 1.17).abs() < 0.03, "{mean} {cv}");
        assert_eq!(Arrivals::Burst.seconds(3, &mut Rng::new(1)), [0.0; 3]);
    }

    #[test]
    fn alpaca_lengths_have_the_traces_shape() {
        let mut rng = Rng::new(5);
        let mut lengths: Vec<f64> =
            (0..COUNT).map(|_| Lengths::AlpacaLike { cap: 512 }.tokens(&mut rng) as f64).collect();
        lengths.sort_by(f64::total_cmp);
        let (mean, cv) = mean_and_cv(&lengths);
        assert!((mean / 265.0 - 1.0).abs() < 0.02 && (cv - 0.74).abs() < 0.02, "{mean} {cv}");
        // Within four tokens, the median within a tenth: the trace's own bins allow no more.
        let slack = [(0.10, 27.0, 2.0), (0.25, 67.0, 4.0), (0.50, 238.0, 24.0)];
        for (share, want, slack) in slack.into_iter().chain([(0.75, 512.0, 0.0), (0.9, 512.0, 0.0)])
        {
            let got = lengths[(share * COUNT as f64) as usize];
            assert!((got - want).abs() <= slack, "quantile {share}: {got}, not {want}");
        }
    }

    #[test]
    fn other_lengths_stay_in_their_bounds() {
        let mut rng = Rng::new(6);
        let uniform = Lengths::Uniform { min: 3, max: 5 };
        let mut seen = [0; 6];
        for _ in 0..300 {
            seen[uniform.tokens(&mut rng) as usize] += 1;
            assert_eq!(Lengths::Constant(9).tokens(&mut rng), 9);
            assert!((1..=100).contains(&Lengths::AlpacaLike { cap: 100 }.tokens(&mut rng)));
        }
        assert!(seen[..3] == [0; 3] && seen[3..].iter().all(|&count| count > 60));
    }
}

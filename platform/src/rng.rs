//! Seeded pseudo-random numbers: the same seed gives the same numbers on every machine.
//!
//! [`Rng`] (splitmix64) is for models, workloads, operands of benchmarks and tests. Sampling of
//! tokens uses Philox instead, whose draws are indexed by position.

/// The increment of splitmix64's counter, 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The output function of splitmix64 at counter `value`: a bijection in which every input bit
/// affects every output bit.
///
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
pub fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(GOLDEN);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The next number of the splitmix64 sequence at `state`.
pub fn splitmix64(state: &mut u64) -> u64 {
    let bits = mix(*state);
    *state = state.wrapping_add(GOLDEN);
    bits
}

/// The upper 24 of `bits` as a number in [-1, 1), exact in f32.
pub fn signed_unit(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// splitmix64: a counter, passed through [`mix`].
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of `seed`. The counter starts at the mixed seed, so that neighbouring seeds do
    /// not give overlapping sequences.
    pub fn new(seed: u64) -> Rng {
        Rng(mix(seed))
    }

    /// The sequence whose counter starts at `state`, unmixed: splitmix64 as published.
    pub fn from_state(state: u64) -> Rng {
        Rng(state)
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        splitmix64(&mut self.0)
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in [-1, 1), 24 bits.
    pub fn signed(&mut self) -> f32 {
        signed_unit(self.next_u64())
    }

    /// Uniform in 0..`bound`, which is at least 1. The bias is below `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }

    /// The numbers `0..count` in random order (Fisher and Yates).
    pub fn permutation(&mut self, count: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last as usize, self.below(u64::from(last) + 1) as usize);
        }
        order
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.uniform()).ln()
    }

    /// Normal with mean 0 and variance 1 (Box and Muller 1958; the second value is not kept).
    pub fn normal(&mut self) -> f64 {
        let radius = (2.0 * self.exponential()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Approximately normal with mean 0 and variance 1, from one draw: the sum of four uniform
    /// 16-bit numbers, within ±3.47. For random model weights: billions of draws.
    pub fn fast_normal(&mut self) -> f32 {
        let bits = self.next_u64();
        let sum: u32 = (0..4).map(|i| (bits >> (16 * i)) as u16 as u32).sum();
        // Four uniforms of width 2^16 have a variance of 4 * 2^32 / 12.
        (sum as f32 - 131_070.0) * (1.0 / 37_837.23)
    }

    /// Gamma with `shape` and mean `shape` (Marsaglia and Tsang 2000; below 1 their boost).
    pub fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            return self.gamma(shape + 1.0) * (1.0 - self.uniform()).powf(1.0 / shape);
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && self.exponential() > d * v - d - d * v.ln() - 0.5 * x * x {
                return d * v;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and coefficient of variation of 200,000 draws.
    fn moments(mut draw: impl FnMut() -> f64) -> (f64, f64) {
        let count = 200_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for _ in 0..count {
            let x = draw();
            sum += x;
            squares += x * x;
        }
        let mean = sum / count as f64;
        (mean, (squares / count as f64 - mean * mean).sqrt() / mean)
    }

    #[test]
    fn moments_are_right() {
        let mut rng = Rng::new(1);
        let close = |(mean, cv): (f64, f64), want_mean: f64, want_cv: f64| {
            assert!((mean / want_mean - 1.0).abs() < 0.02, "mean {mean}, not {want_mean}");
            assert!((cv / want_cv - 1.0).abs() < 0.02, "cv {cv}, not {want_cv}");
        };
        close(moments(|| rng.uniform()), 0.5, 1.0 / 3f64.sqrt());
        close(moments(|| 1.0 + f64::from(rng.signed())), 1.0, 1.0 / 3f64.sqrt());
        close(moments(|| rng.exponential()), 1.0, 1.0);
        close(moments(|| 10.0 + rng.normal()), 10.0, 0.1);
        close(moments(|| 10.0 + f64::from(rng.fast_normal())), 10.0, 0.1);
        close(moments(|| rng.below(7) as f64), 3.0, 2.0 / 3.0);
        close(moments(|| rng.gamma(0.73)), 0.73, 1.0 / 0.73f64.sqrt());
        close(moments(|| rng.gamma(4.0)), 4.0, 0.5);
    }

    #[test]
    fn a_permutation_has_each_number_once_and_every_order_occurs() {
        let mut rng = Rng::new(1);
        let mut sorted = rng.permutation(1000);
        sorted.sort_unstable();
        assert!((0..1000).eq(sorted));
        assert_eq!((rng.permutation(0), rng.permutation(1)), (vec![], vec![0]));
        let orders: std::collections::BTreeSet<_> = (0..200).map(|_| rng.permutation(4)).collect();
        assert_eq!(orders.len(), 24);
    }

    #[test]
    fn sequences_are_the_published_ones() {
        // Vigna's splitmix64.c with x = 1234567.
        let mut rng = Rng::from_state(1_234_567);
        let want =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(want.map(|_| rng.next_u64()), want);
        assert_eq!(Rng::new(5).next_u64(), Rng::from_state(mix(5)).next_u64());
    }

    /// Random models, probes, workloads and recorded benchmarks follow from these bits.
    #[test]
    fn seeded_sequences_never_change() {
        let mut rng = Rng::new(3);
        let drawn = (rng.next_u64(), rng.signed(), rng.fast_normal(), rng.below(1000));
        assert_eq!(drawn, (13_604_808_898_340_030_615, 0.186_664_82, -1.203_840_7, 793));
    }

    #[test]
    fn a_seed_is_a_sequence() {
        let draw = |seed| {
            [(); 8].map({
                let mut rng = Rng::new(seed);
                move |()| rng.next_u64()
            })
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }
}

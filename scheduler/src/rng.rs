//! A small seeded generator for workloads and tests: the same seed, the same numbers, everywhere.

/// splitmix64's finaliser: a bijection that spreads every input bit over the output.
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
pub fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// splitmix64: a counter, mixed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(mix(seed))
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let bits = mix(self.0);
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        bits
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in 0..`bound`, which is at least 1. The bias is below `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
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
        close(moments(|| rng.exponential()), 1.0, 1.0);
        close(moments(|| 10.0 + rng.normal()), 10.0, 0.1);
        close(moments(|| rng.below(7) as f64), 3.0, 2.0 / 3.0);
        close(moments(|| rng.gamma(0.73)), 0.73, 1.0 / 0.73f64.sqrt());
        close(moments(|| rng.gamma(4.0)), 4.0, 0.5);
    }

    #[test]
    fn a_seed_is_a_sequence() {
        let draw = |seed| {
            std::array::from_fn::<u64, 8, _>(|_| 0).map({
                let mut rng = Rng::new(seed);
                move |_| rng.next_u64()
            })
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }
}

//! The equal bins of remaining length that the probe classifies into (TRAIL section 3.1).

/// Largest number of bins: the logits of a row are at most four 64-byte lines.
pub const MAX_BINS: usize = 64;

/// Equal bins over 0..=max_tokens: bin i is [w i, w (i + 1)), the last one closed, w = max_tokens /
/// count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bins {
    /// Number of bins, 1..=[`MAX_BINS`].
    pub count: usize,
    /// Tokens at the end of the last bin; longer remainders count as this.
    pub max_tokens: u32,
}

impl Default for Bins {
    /// The paper's: 10 bins over 512 tokens, 51.2 tokens wide.
    fn default() -> Bins {
        Bins { count: 10, max_tokens: 512 }
    }
}

impl Bins {
    /// Tokens in a bin, not rounded: 51.2 for the paper's.
    pub fn width(&self) -> f64 {
        f64::from(self.max_tokens) / self.count as f64
    }

    /// Tokens at the middle of bin `i`.
    pub fn midpoint(&self, i: usize) -> f64 {
        self.width() * (i as f64 + 0.5)
    }

    /// The bin of `remaining` tokens. In integers, so that rounding does not move a boundary.
    pub fn bin_of(&self, remaining: u32) -> usize {
        let bin = u64::from(remaining) * self.count as u64 / u64::from(self.max_tokens);
        (bin as usize).min(self.count - 1)
    }

    /// Expected remaining tokens under `q` (`[count]`, any positive sum): the mean of the
    /// midpoints.
    pub fn expected(&self, q: &[f32]) -> f32 {
        let (mut mass, mut moment) = (0.0, 0.0);
        for (i, &q) in self.checked(q).iter().enumerate() {
            mass += f64::from(q);
            moment += f64::from(q) * self.midpoint(i);
        }
        (moment / mass) as f32
    }

    /// Tokens below which the fraction `p` of `q`'s mass lies (`q` is `[count]`, any positive sum),
    /// the mass of a bin being spread evenly over it.
    pub fn quantile(&self, q: &[f32], p: f32) -> f32 {
        let q = self.checked(q);
        let mut wanted = f64::from(p) * q.iter().copied().map(f64::from).sum::<f64>();
        for (i, &q) in q.iter().enumerate() {
            let mass = f64::from(q);
            if mass > 0.0 && wanted <= mass {
                return (self.width() * (i as f64 + wanted.max(0.0) / mass)) as f32;
            }
            wanted -= mass;
        }
        // Rounding errors reach past the last bin with mass.
        let last = q.iter().rposition(|&q| q > 0.0).unwrap_or(self.count - 1);
        (self.width() * (last + 1) as f64) as f32
    }

    fn checked<'a>(&self, q: &'a [f32]) -> &'a [f32] {
        assert_eq!(q.len(), self.count, "a distribution over {} bins", self.count);
        q
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_bins() {
        let bins = Bins::default();
        assert_eq!(bins.width(), 51.2);
        assert_eq!((bins.midpoint(0), bins.midpoint(9)), (25.6, 51.2 * 9.5));
        // 51.2 i rounded up is the first integer of bin i; 512 is in the last, which is closed.
        for i in 1..10 {
            let first = (51.2 * i as f64).ceil() as u32;
            assert_eq!((bins.bin_of(first - 1), bins.bin_of(first)), (i - 1, i));
        }
        assert_eq!((bins.bin_of(0), bins.bin_of(512), bins.bin_of(u32::MAX)), (0, 9, 9));
    }

    #[test]
    fn boundaries_that_are_whole_open_the_next_bin() {
        let bins = Bins { count: 4, max_tokens: 400 };
        assert_eq!([99, 100, 399, 400].map(|n| bins.bin_of(n)), [0, 1, 3, 3]);
    }

    #[test]
    fn expectation_and_quantiles() {
        let bins = Bins { count: 4, max_tokens: 400 };
        let q = [0.5, 0.0, 0.25, 0.25];
        assert_eq!(bins.expected(&q), 175.0);
        assert_eq!(bins.quantile(&q, 0.25), 50.0);
        assert_eq!(bins.quantile(&q, 0.5), 100.0);
        assert_eq!(bins.quantile(&q, 0.75), 300.0);
        assert_eq!(bins.quantile(&q, 1.0), 400.0);
        assert_eq!(bins.quantile(&[0.0, 2.0, 0.0, 0.0], 0.0), 100.0);
        assert_eq!(bins.quantile(&[0.0, 2.0, 0.0, 0.0], 1.0), 200.0);
    }
}

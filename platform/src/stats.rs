//! Statistics of samples, with one definition of each quantile.
//!
//! Two definitions are in use, and recorded results depend on both: reports of latencies use the
//! nearest rank, which never understates a tail; measurements of steps use the lower order
//! statistic.

/// A sample in ascending order.
#[derive(Clone, Debug)]
pub struct Sorted(Vec<f64>);

impl Sorted {
    /// Sorts `values` (by `total_cmp`: NaN sorts last).
    pub fn of(values: impl IntoIterator<Item = f64>) -> Sorted {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Sorted(values)
    }

    /// The values, ascending.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// Arithmetic mean, summed in ascending order; 0 for an empty sample.
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    /// Nearest-rank percentile: the least value that a share of at least `p` of the sample does not
    /// exceed; 0 for an empty sample.
    pub fn nearest_rank(&self, p: f64) -> f64 {
        let rank = (p * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    }

    /// Lower order statistic at `p`: the value at index `floor((n - 1) p)`; NaN for an empty
    /// sample.
    pub fn quantile(&self, p: f64) -> f64 {
        let index = (self.0.len().max(1) - 1) as f64 * p;
        self.0.get(index as usize).copied().unwrap_or(f64::NAN)
    }

    /// Upper median: the value at index `n / 2`. Panics on an empty sample.
    pub fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }
}

/// [`Sorted::median`] of `values`. Panics if they are empty.
pub fn median(values: &[f64]) -> f64 {
    Sorted::of(values.iter().copied()).median()
}

/// [`Sorted::quantile`] of `values`.
pub fn quantile(values: &[f64], p: f64) -> f64 {
    Sorted::of(values.iter().copied()).quantile(p)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_even_and_odd_samples() {
        let sample = Sorted::of([4.0, 1.0, 3.0, 2.0]);
        assert_eq!(sample.values(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!((sample.mean(), sample.median()), (2.5, 3.0));
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|p| sample.quantile(p)), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!([0.0, 0.5, 0.51, 1.0].map(|p| sample.nearest_rank(p)), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!((median(&[5.0, 9.0, 7.0]), quantile(&[5.0, 9.0, 7.0], 0.5)), (7.0, 7.0));
    }

    #[test]
    fn empty_samples() {
        let sample = Sorted::of([]);
        assert_eq!((sample.mean(), sample.nearest_rank(0.5)), (0.0, 0.0));
        assert!(sample.quantile(0.5).is_nan());
    }
}

//! Mean and percentiles.

use serde::Serialize;
use trail_platform::stats::Sorted;

/// Mean and percentiles of a set of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Spread {
    /// The spread of `values`; zeros for none. Percentiles are nearest-rank.
    pub fn of(values: impl Iterator<Item = f64>) -> Spread {
        let sorted = Sorted::of(values);
        let at = |p| sorted.nearest_rank(p);
        Spread { mean: sorted.mean(), p50: at(0.5), p90: at(0.9), p95: at(0.95), p99: at(0.99) }
    }

    /// Multiplied by `factor`.
    pub fn scaled(&self, factor: f64) -> Spread {
        let Spread { mean, p50, p90, p95, p99 } = *self;
        let [mean, p50, p90, p95, p99] = [mean, p50, p90, p95, p99].map(|s| s * factor);
        Spread { mean, p50, p90, p95, p99 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let spread = Spread::of((1..=100).rev().map(f64::from));
        assert_eq!(spread, Spread { mean: 50.5, p50: 50.0, p90: 90.0, p95: 95.0, p99: 99.0 });
        assert_eq!(Spread::of([7.0].into_iter()).p99, 7.0);
        assert_eq!(Spread::of(std::iter::empty()).mean, 0.0);
    }
}

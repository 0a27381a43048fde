//! Ratios of means with a confidence interval, by the regenerative method.

/// Estimate of a mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The estimate.
    pub mean: f64,
    /// Its standard error.
    pub standard_error: f64,
}

impl Estimate {
    /// Distance of `value` from the estimate in standard errors.
    pub fn z(&self, value: f64) -> f64 {
        (value - self.mean) / self.standard_error
    }
}

/// Sums over independent, identically distributed cycles of two totals: what is measured, and what
/// it is divided by.
///
/// Cycles of an M/G/1 queue begin where an arrival finds it empty. The stationary mean per job is
/// E\[total\] / E\[jobs\]; the error of the quotient of sums over m cycles is asymptotically normal
/// with variance E\[(total - mean jobs)^2\] / (m E\[jobs\]^2) (Crane and Iglehart 1975).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ratio {
    total: f64,
    divisor: f64,
    squares: f64,
    products: f64,
    divisor_squares: f64,
}

impl Ratio {
    /// Adds one cycle.
    pub fn add(&mut self, total: f64, divisor: f64) {
        self.total += total;
        self.divisor += divisor;
        self.squares += total * total;
        self.products += total * divisor;
        self.divisor_squares += divisor * divisor;
    }

    /// The quotient of the sums.
    pub fn estimate(&self) -> Estimate {
        let mean = self.total / self.divisor;
        let residual =
            self.squares - 2.0 * mean * self.products + mean * mean * self.divisor_squares;
        Estimate { mean, standard_error: residual.max(0.0).sqrt() / self.divisor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Totals are 3 jobs with noise of standard deviation 1 a cycle; jobs are 1 or 2. The variance
    /// of the ratio over m cycles is 1 / (m 1.5^2).
    #[test]
    fn the_standard_error_is_that_of_repeated_runs() {
        let mut rng = Rng::new(1);
        let runs: Vec<Estimate> = (0..400)
            .map(|_| {
                let mut ratio = Ratio::default();
                for _ in 0..400 {
                    let jobs = 1.0 + rng.below(2) as f64;
                    ratio.add(3.0 * jobs + rng.normal(), jobs);
                }
                ratio.estimate()
            })
            .collect();
        let squares: f64 = runs.iter().map(|run| run.z(3.0).powi(2)).sum();
        // chi-square with 400 degrees of freedom: standard deviation sqrt(800) = 28.
        assert!((squares - 400.0).abs() < 4.0 * 28.3, "{squares}");
        let expected = 1.0 / (20.0 * 1.5);
        let mean = runs.iter().map(|run| run.standard_error).sum::<f64>() / 400.0;
        assert!((mean / expected - 1.0).abs() < 0.02, "{mean}, not {expected}");
    }
}

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

/// Sums over independent, identically distributed cycles of a total, its divisor, and a control: a
/// variable of known mean 0.
///
/// Cycles of an M/G/1 queue begin where an arrival finds it empty. The stationary mean per job is
/// E\[total\] / E\[jobs\]; the error of the quotient of sums over m cycles is asymptotically normal
/// with variance E\[(total - mean jobs)^2\] / (m E\[jobs\]^2) (Crane and Iglehart 1975). The part
/// that the control explains is subtracted, by linear regression (Lavenberg, Moeller and Welch
/// 1982).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ratio {
    total: f64,
    divisor: f64,
    control: f64,
    /// Sums of products of total (t), divisor (d) and control (c).
    tt: f64,
    td: f64,
    dd: f64,
    tc: f64,
    dc: f64,
    cc: f64,
}

impl Ratio {
    /// Adds one cycle.
    pub fn add(&mut self, total: f64, divisor: f64, control: f64) {
        self.total += total;
        self.divisor += divisor;
        self.control += control;
        self.tt += total * total;
        self.td += total * divisor;
        self.dd += divisor * divisor;
        self.tc += total * control;
        self.dc += divisor * control;
        self.cc += control * control;
    }

    /// The quotient of the means.
    pub fn estimate(&self) -> Estimate {
        let plain = self.total / self.divisor;
        let slope = match self.cc > 0.0 {
            true => (self.tc - plain * self.dc) / self.cc,
            false => 0.0,
        };
        let mean = (self.total - slope * self.control) / self.divisor;
        // Sum of (total - mean divisor - slope control)^2.
        let ratio = self.tt - 2.0 * mean * self.td + mean * mean * self.dd;
        let explained = slope * (2.0 * (self.tc - mean * self.dc) - slope * self.cc);
        let residual = (ratio - explained).max(0.0);
        Estimate { mean, standard_error: residual.sqrt() / self.divisor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trail_platform::rng::Rng;

    /// Totals are 3 times the jobs (1 or 2) plus two normal variables; one is the control.
    /// The variance of the ratio over m cycles is 1 / (m 1.5^2) with the control, else twice that.
    #[test]
    fn the_standard_error_is_that_of_repeated_runs() {
        for (use_control, variance) in [(1.0, 1.0f64), (0.0, 2.0)] {
            let mut rng = Rng::new(1);
            let runs: Vec<Estimate> = (0..400)
                .map(|_| {
                    let mut ratio = Ratio::default();
                    for _ in 0..400 {
                        let jobs = 1.0 + rng.below(2) as f64;
                        let control = rng.normal();
                        let total = 3.0 * jobs + control + rng.normal();
                        ratio.add(total, jobs, control * use_control);
                    }
                    ratio.estimate()
                })
                .collect();
            let squares: f64 = runs.iter().map(|run| run.z(3.0).powi(2)).sum();
            // chi-square with 400 degrees of freedom: standard deviation sqrt(800) = 28.3.
            assert!((squares - 400.0).abs() < 4.0 * 28.3, "{squares}");
            let expected = variance.sqrt() / (20.0 * 1.5);
            let mean = runs.iter().map(|run| run.standard_error).sum::<f64>() / 400.0;
            assert!((mean / expected - 1.0).abs() < 0.02, "{mean}, not {expected}");
        }
    }
}

//! The machine's speed relative to a simulated clock.

use std::time::Duration;

use trail_platform::stats::median;

/// Pairs of simulated and real durations of steps.
#[derive(Clone, Debug, Default)]
pub struct ClockFit {
    /// Real over simulated duration, by step.
    ratios: Vec<f64>,
}

impl ClockFit {
    /// Adds a step.
    pub fn add(&mut self, simulated_ns: u64, real: Duration) {
        // A step that was only launched advances no clock.
        if simulated_ns > 0 {
            self.ratios.push(real.as_nanos() as f64 / simulated_ns as f64);
        }
    }

    /// Real seconds per simulated second: the median over steps; 1 without steps.
    pub fn factor(&self) -> f64 {
        if self.ratios.is_empty() { 1.0 } else { median(&self.ratios) }
    }

    /// Median relative deviation of steps from the fit; 0 without steps.
    pub fn residual(&self) -> f64 {
        let factor = self.factor();
        let deviations: Vec<f64> =
            self.ratios.iter().map(|ratio| (ratio / factor - 1.0).abs()).collect();
        if deviations.is_empty() { 0.0 } else { median(&deviations) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fit_is_the_median_ratio_and_ignores_outliers() {
        let mut fit = ClockFit::default();
        assert_eq!((fit.factor(), fit.residual()), (1.0, 0.0));
        fit.add(0, Duration::from_secs(5));
        for real_ns in [200, 210, 190, 200, 90_000] {
            fit.add(100, Duration::from_nanos(real_ns));
        }
        assert_eq!(fit.factor(), 2.0);
        assert!((fit.residual() - 0.05).abs() < 1e-12);
    }
}

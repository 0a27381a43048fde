//! Intervals that hold as often as they say: the spread of samples, corrected by what came.

/// Share of times below an interval, and above it.
const OUTSIDE: f64 = 0.1;

/// The share at which each side is held: less, as a correction follows what has come.
const HELD: f64 = 0.09;

/// Least spread, as a logarithm: samples that agree know nothing of their common errors.
const LEAST_SPREAD: f64 = 0.1;

/// Seconds below which times do not differ.
const LEAST_S: f64 = 1e-3;

/// Least factor of a spread.
const LEAST_FACTOR: f64 = 0.5;

/// Least share by which a time that came moves a spread.
const LEAST_STEP: f64 = 0.06;

/// Time in seconds, with an interval of 80 %.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// The 10 % quantile.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// The 90 % quantile.
    pub high: f64,
}

impl Interval {
    /// The same of each end.
    pub(super) fn map(self, of: impl Fn(f64) -> f64) -> Interval {
        Interval { low: of(self.low), median: of(self.median), high: of(self.high) }
    }

    /// The same, `elapsed_s` later.
    pub fn after(self, elapsed_s: f64) -> Interval {
        self.map(|at| (at - elapsed_s).max(0.0))
    }

    /// True if `seconds` is within.
    pub fn contains(&self, seconds: f64) -> bool {
        (self.low..=self.high).contains(&seconds)
    }

    /// The quantiles of `samples`, which it sorts. At least one.
    pub(super) fn of(samples: &mut [f64]) -> Interval {
        samples.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (samples.len() - 1) as f64;
            let (below, part) = (place as usize, place.fract());
            let above = (below + 1).min(samples.len() - 1);
            samples[below] + part * (samples[above] - samples[below])
        };
        Interval { low: at(OUTSIDE), median: at(0.5), high: at(1.0 - OUTSIDE) }
    }

    fn logarithms(self) -> [f64; 3] {
        [self.low, self.median, self.high].map(|at| at.max(LEAST_S).ln())
    }

    /// The spreads below and above the median, as logarithms.
    fn spreads(self) -> [f64; 2] {
        let [low, median, high] = self.logarithms();
        [(median - low).max(LEAST_SPREAD), (high - median).max(LEAST_SPREAD)]
    }
}

/// The correction of a class of estimates: a shift of the median, and a factor of the spread to
/// each side. Each time that comes moves them by a little, up or down with unequal steps, so that
/// they rest where the share of times beyond them is the wanted one (adaptive conformal inference,
/// Gibbs and Candès, arXiv 2106.00170, on the scores of conformalized quantile regression, Romano
/// et al., arXiv 1905.03222).
#[derive(Clone, Copy, Debug)]
pub(super) struct Calibration {
    shift: f64,
    below: f64,
    above: f64,
    count: u32,
}

impl Default for Calibration {
    fn default() -> Calibration {
        Calibration { shift: 0.0, below: 1.0, above: 1.0, count: 0 }
    }
}

impl Calibration {
    /// The corrected form of an interval of samples.
    pub(super) fn correct(&self, raw: Interval) -> Interval {
        let [_, median, _] = raw.logarithms();
        let [below, above] = raw.spreads();
        let median = median + self.shift;
        Interval {
            low: (median - self.below * below).exp(),
            median: median.exp(),
            high: (median + self.above * above).exp(),
        }
    }

    /// Takes in the time that came where samples had `raw`: infinite for one that has not come, and
    /// is above the present interval of `raw`. Compared with the interval given then, times that
    /// come late would go on correcting what was corrected since.
    pub(super) fn record(&mut self, raw: Interval, seconds: f64) {
        let step = (1.0 / f64::from(self.count + 1).sqrt()).max(LEAST_STEP);
        self.count = self.count.saturating_add(1);
        let now = self.correct(raw);
        let seconds = seconds.max(LEAST_S);
        let is = [seconds > now.high, seconds < now.low, seconds > now.median];
        let [over, under, late] = is.map(|is| f64::from(u8::from(is)));
        let [below, above] = raw.spreads();
        let factor = |of: f64, is: f64| (of * (step * (is - HELD)).exp()).max(LEAST_FACTOR);
        self.above = factor(self.above, over);
        self.below = factor(self.below, under);
        let spread = 0.5 * (self.below * below + self.above * above);
        self.shift += 0.5 * step * spread * (late - 0.5);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trail_platform::rng::Rng;

    #[test]
    fn quantiles_of_samples() {
        let mut samples: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        assert_eq!(Interval::of(&mut samples), Interval { low: 1.0, median: 5.0, high: 9.0 });
        let one = Interval::of(&mut [3.0]);
        assert_eq!(one, Interval { low: 3.0, median: 3.0, high: 3.0 });
        assert_eq!(one.after(2.0).median, 1.0);
        assert_eq!(one.after(4.0).high, 0.0);
    }

    /// Estimates that are three times too long, and much too sure.
    #[test]
    fn intervals_come_to_hold_80_percent_and_medians_half() {
        let mut rng = Rng::new(3);
        let mut calibration = Calibration::default();
        let raw = Interval { low: 2.7, median: 3.0, high: 3.3 };
        let mut counts = [0; 3];
        for at in 0..6000 {
            let seconds = (0.5 * rng.normal()).exp();
            if at >= 1000 {
                let corrected = calibration.correct(raw);
                counts[0] += usize::from(corrected.contains(seconds));
                counts[1] += usize::from(seconds < corrected.median);
                counts[2] += usize::from(seconds > corrected.high);
            }
            calibration.record(raw, seconds);
        }
        let shares = counts.map(|count| count as f64 / 5000.0);
        assert!((0.77..0.85).contains(&shares[0]), "{shares:?}");
        assert!((0.47..0.53).contains(&shares[1]), "{shares:?}");
        assert!((0.06..0.12).contains(&shares[2]), "{shares:?}");
    }
}

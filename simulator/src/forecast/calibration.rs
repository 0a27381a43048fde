//! Intervals that hold as often as they say: the spread of samples, corrected by what came.

use std::collections::VecDeque;

/// Share of times below an interval, and above it.
const OUTSIDE: f64 = 0.1;

/// Times that came on which a correction stands: the last ones.
const REMEMBERED: usize = 128;

/// Times that came as estimated, added to them: few say little.
const PRIOR: usize = 8;

/// Times that came for which one of those is left out.
const PRIOR_FOR: usize = 8;

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
    pub fn map(self, of: impl Fn(f64) -> f64) -> Interval {
        Interval { low: of(self.low), median: of(self.median), high: of(self.high) }
    }

    /// The same, `elapsed_s` later.
    pub fn after(self, elapsed_s: f64) -> Interval {
        self.map(|at| (at - elapsed_s).max(0.0))
    }

    /// Of tokens left: the same when there are `since` fewer. An answer that has not ended has one
    /// left.
    pub fn left(self, since: f64) -> Interval {
        self.map(|tokens| (tokens - since).max(1.0))
    }

    /// Seconds to the last token, `elapsed_s` after their estimate: counted down, but not below
    /// what the tokens `left` take alone at `step_s` each.
    pub fn counted_down(self, elapsed_s: f64, left: Interval, step_s: f64) -> Interval {
        self.after(elapsed_s).max(left.map(|tokens| tokens * step_s))
    }

    /// The same, no lower than `other` at each end.
    fn max(self, other: Interval) -> Interval {
        Interval {
            low: self.low.max(other.low),
            median: self.median.max(other.median),
            high: self.high.max(other.high),
        }
    }

    /// The same, no later than `other` at each end.
    pub(super) fn min(self, other: Interval) -> Interval {
        Interval {
            low: self.low.min(other.low),
            median: self.median.min(other.median),
            high: self.high.min(other.high),
        }
    }

    /// True if `seconds` is within.
    pub fn contains(&self, seconds: f64) -> bool {
        (self.low..=self.high).contains(&seconds)
    }

    /// The quantiles of `samples`, which it sorts. At least one.
    pub(super) fn of(samples: &mut [f64]) -> Interval {
        let [low, median, high] =
            [OUTSIDE, 0.5, 1.0 - OUTSIDE].map(|share| quantile(samples, share));
        Interval { low, median, high }
    }
}

/// A scale on which errors of short and of long times are alike: logarithms, of times that differ
/// by no less than `least_s`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// Seconds below which times hardly differ.
    pub(super) least_s: f64,
}

impl Scale {
    fn of(self, seconds: f64) -> f64 {
        (seconds.max(0.0) + self.least_s).ln()
    }

    fn seconds(self, of: f64) -> f64 {
        (of.exp() - self.least_s).max(0.0)
    }
}

/// Shifts of the ends of an interval and of its median, on the scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Correction([f64; 3]);

impl Correction {
    /// The corrected form of an interval of samples.
    pub(super) fn correct(&self, raw: Interval, scale: Scale) -> Interval {
        let moved = |end: f64, by: f64| scale.seconds(scale.of(end) + by);
        let [low, median, high] = self.0;
        let (low, median, high) =
            (moved(raw.low, low), moved(raw.median, median), moved(raw.high, high));
        Interval { low: low.min(median), median, high: high.max(median) }
    }
}

/// A time that has not come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Known {
    /// It is above these seconds.
    Passed(f64),
    /// It is expected after these, by a later estimate.
    Expected(f64),
}

/// The correction of a class of estimates: each end is moved to where it would have held for the
/// last times that came (conformalized quantile regression, Romano et al., arXiv 1905.03222, on a
/// sliding window). Times that have not come are above the time that has passed, and count so
/// (Kaplan and Meier 1958): without them the longest would be heard of last.
#[derive(Clone, Debug, Default)]
pub(super) struct Calibration {
    /// Estimates, and the seconds after which their times came.
    came: VecDeque<(Interval, f64)>,
}

impl Calibration {
    /// Takes in the time that came where samples had `raw`.
    pub(super) fn record(&mut self, raw: Interval, seconds: f64) {
        if self.came.len() == REMEMBERED {
            self.came.pop_front();
        }
        self.came.push_back((raw, seconds));
    }

    /// The correction after which a share `outside` would have come before the interval, and as
    /// many behind it. `open`: estimates whose times have not come, with what is known of those.
    pub(super) fn correction(
        &self,
        open: &[(Interval, Known)],
        outside: f64,
        scale: Scale,
    ) -> Correction {
        let prior = PRIOR.saturating_sub(self.came.len() / PRIOR_FOR);
        let mut errors = Vec::with_capacity(prior + self.came.len() + open.len());
        let mut end = |of: fn(Interval) -> f64, share: f64| {
            let error = |raw, seconds| scale.of(seconds) - scale.of(of(raw));
            errors.clear();
            errors.resize(prior, (0.0, true));
            errors.extend(self.came.iter().map(|&(raw, seconds)| (error(raw, seconds), true)));
            errors.extend(open.iter().map(|&(raw, known)| match known {
                Known::Expected(seconds) => (error(raw, seconds), true),
                Known::Passed(seconds) => (error(raw, seconds), false),
            }));
            censored_quantile(&mut errors, share)
        };
        Correction([
            end(|raw| raw.low, outside),
            end(|raw| raw.median, 0.5),
            end(|raw| raw.high, 1.0 - outside),
        ])
    }
}

/// The quantile of values, where those with `false` are only known to be above the stated ones.
/// The largest where the quantile is beyond what is known. Sorts them; at least one.
fn censored_quantile(values: &mut [(f64, bool)], share: f64) -> f64 {
    values.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let mut above = 1.0;
    for (at, &(value, is_known)) in values.iter().enumerate() {
        if is_known {
            above *= 1.0 - 1.0 / (values.len() - at) as f64;
            if above <= 1.0 - share {
                return value;
            }
        }
    }
    values.last().map_or(0.0, |of| of.0)
}

/// The quantile of `values`, which it sorts. At least one.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let place = share * (values.len() - 1) as f64;
    let (below, part) = (place as usize, place.fract());
    let above = (below + 1).min(values.len() - 1);
    values[below] + part * (values[above] - values[below])
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

    #[test]
    fn a_time_is_counted_down_to_what_the_tokens_left_take() {
        let tokens = Interval { low: 5.0, median: 40.0, high: 100.0 };
        let left = tokens.left(20.0);
        assert_eq!(left, Interval { low: 1.0, median: 20.0, high: 80.0 });
        let last = Interval { low: 1.0, median: 2.0, high: 3.0 };
        let after = |elapsed_s| last.counted_down(elapsed_s, left, 0.125);
        assert_eq!(after(0.25), Interval { low: 0.75, median: 2.5, high: 10.0 });
        assert_eq!(after(60.0), Interval { low: 0.125, median: 2.5, high: 10.0 });
    }

    /// Estimates that are three times too long, and much too sure.
    #[test]
    fn intervals_come_to_hold_80_percent_and_medians_half() {
        let mut rng = Rng::new(3);
        let mut calibration = Calibration::default();
        let scale = Scale { least_s: 1e-3 };
        let raw = Interval { low: 2.7, median: 3.0, high: 3.3 };
        let mut counts = [0; 3];
        for at in 0..6000 {
            let seconds = (0.5 * rng.normal()).exp();
            if at >= 1000 {
                let corrected = calibration.correction(&[], 0.08, scale).correct(raw, scale);
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

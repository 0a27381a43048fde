//! How long steps take, learnt from those that were: what tells the engine how long it can wait for predictions.

use std::time::Duration;

/// Classes of steps by the power of two of their rows.
const CLASSES: usize = 24;
/// Weight of the newest step in the mean.
const NEWEST: f32 = 0.2;
/// Share of a step that is kept for planning and launching the next one before this one ends, and the least of it.
const MARGIN: f32 = 0.1;
const MARGIN_MIN_S: f32 = 100e-6;

/// Mean durations of steps by their rows, seconds.
#[derive(Default)]
pub(super) struct Pace {
    mean_s: [f32; CLASSES],
}

impl Pace {
    fn class(rows: usize) -> usize {
        (rows.max(1).ilog2() as usize).min(CLASSES - 1)
    }

    /// A step of `rows` rows took `took`.
    pub(super) fn learn(&mut self, rows: usize, took: Duration) {
        let mean = &mut self.mean_s[Self::class(rows)];
        let newest = took.as_secs_f32();
        *mean = if *mean == 0.0 { newest } else { *mean + NEWEST * (newest - *mean) };
    }

    /// How long after the start of a step of `rows` rows the next one must be planned, whatever is there by then. Zero before the
    /// first such step: nobody knows yet.
    pub(super) fn cut_off(&self, rows: usize) -> Duration {
        let mean = self.mean_s[Self::class(rows)];
        Duration::from_secs_f32((mean - (MARGIN * mean).max(MARGIN_MIN_S)).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cut_off_leaves_a_tenth_of_the_mean() {
        let mut pace = Pace::default();
        assert_eq!(pace.cut_off(8), Duration::ZERO);
        (0..50).for_each(|_| pace.learn(9, Duration::from_millis(10)));
        assert!((pace.cut_off(8).as_secs_f32() - 9e-3).abs() < 1e-5);
        assert_eq!(pace.cut_off(16), Duration::ZERO, "of other steps nothing was learnt");
        pace.learn(9, Duration::from_millis(20));
        assert!((pace.cut_off(15).as_secs_f32() - 0.9 * 12e-3).abs() < 1e-5);
        pace.learn(1, Duration::from_micros(50));
        assert_eq!(pace.cut_off(1), Duration::ZERO, "shorter than the margin");
    }
}

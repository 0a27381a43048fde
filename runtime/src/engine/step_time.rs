//! Estimates of the duration of steps, from past ones: the deadline for predictions.

/// Classes of steps by the power of two of their rows.
const CLASSES: usize = 24;
/// Weight of the newest step in the mean.
const NEWEST: f32 = 0.2;
/// Share of a step that is kept for planning and launching the next one before this one ends, and
/// the least of it.
const MARGIN: f32 = 0.1;
const MARGIN_MIN_NS: f32 = 100e3;

/// Mean durations of steps by the power of two of their rows, nanoseconds.
#[derive(Default)]
pub(super) struct StepTimeEstimator {
    mean_ns: [f32; CLASSES],
}

impl StepTimeEstimator {
    fn class(rows: usize) -> usize {
        (rows.max(1).ilog2() as usize).min(CLASSES - 1)
    }

    /// Adds a step of `rows` rows that took `ns`.
    pub(super) fn record(&mut self, rows: usize, ns: u64) {
        let mean = &mut self.mean_ns[Self::class(rows)];
        let newest = ns as f32;
        *mean = if *mean == 0.0 { newest } else { *mean + NEWEST * (newest - *mean) };
    }

    /// Nanoseconds from the start of a step of `rows` rows to the time at which the next one must
    /// be planned, whether predictions are there or not. 0 before the first such step.
    pub(super) fn deadline_ns(&self, rows: usize) -> u64 {
        let mean = self.mean_ns[Self::class(rows)];
        (mean - (MARGIN * mean).max(MARGIN_MIN_NS)).max(0.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_leaves_a_tenth_of_the_mean() {
        let mut times = StepTimeEstimator::default();
        assert_eq!(times.deadline_ns(8), 0);
        (0..50).for_each(|_| times.record(9, 10_000_000));
        assert!(times.deadline_ns(8).abs_diff(9_000_000) < 10);
        assert_eq!(times.deadline_ns(16), 0, "no step of that class was recorded");
        times.record(9, 20_000_000);
        assert!(times.deadline_ns(15).abs_diff(10_800_000) < 10);
        times.record(1, 50_000);
        assert_eq!(times.deadline_ns(1), 0, "shorter than the margin");
    }
}

//! Times of steps by their rows, and the number of draft tokens that pays.

/// Most rows of a step whose time is kept; a step of more is bound by arithmetic.
const MAX_ROWS: usize = 96;

/// Steps after which the times are measured again: contexts grow, and a time that was too long by
/// chance would keep its number of rows from being chosen.
const PERIOD: u32 = 1024;

/// Mean times of steps without prefill, by their rows, and what more rows gain by them.
pub(super) struct RowTimes {
    /// `[rows]`, nanoseconds; 0 for a number of rows that was not measured.
    mean_ns: [f32; MAX_ROWS + 1],
    /// On a device: mean time between the end of a step and the launch of the next one, where that
    /// waits for the tokens, nanoseconds; 0 if none was measured.
    gap_ns: f32,
    /// Steps since the times were last forgotten.
    steps: u32,
}

impl RowTimes {
    /// Weight of the newest step in the mean.
    const NEWEST: f32 = 0.1;
    /// Least expected gain: below, the estimates are not good enough.
    const LEAST_GAIN: f32 = 1.03;

    pub(super) fn new() -> RowTimes {
        RowTimes { mean_ns: [0.0; MAX_ROWS + 1], gap_ns: 0.0, steps: 0 }
    }

    /// Adds a step of `rows` decode and draft rows that took `ns`.
    pub(super) fn record(&mut self, rows: usize, ns: u64) {
        self.steps += 1;
        if self.steps == PERIOD {
            *self = RowTimes::new();
        }
        if let Some(mean) = self.mean_ns.get_mut(rows) {
            RowTimes::update(mean, ns);
        }
    }

    /// Adds a gap of `ns`.
    pub(super) fn record_gap(&mut self, ns: u64) {
        RowTimes::update(&mut self.gap_ns, ns);
    }

    fn update(mean: &mut f32, ns: u64) {
        let newest = ns as f32;
        *mean = if *mean == 0.0 { newest } else { *mean + RowTimes::NEWEST * (newest - *mean) };
    }

    /// Time of a step of `rows` rows: of the nearest measured ones, on the line through both;
    /// beyond the largest measured as that one, so that it is tried. `None` before any was
    /// measured.
    fn ns(&self, rows: usize) -> Option<f32> {
        let below = (1..=rows).rev().find(|&at| self.mean_ns[at] > 0.0);
        let above = (rows..=MAX_ROWS).find(|&at| self.mean_ns[at] > 0.0);
        match (below, above) {
            (Some(low), Some(high)) if low < high => {
                let share = (rows - low) as f32 / (high - low) as f32;
                Some(self.mean_ns[low] + share * (self.mean_ns[high] - self.mean_ns[low]))
            }
            (at, other) => at.or(other).map(|at| self.mean_ns[at]),
        }
    }

    /// The number of draft tokens, at most `max`, by which a step of `rows` rows that yields
    /// `tokens` yields most per time, and the tokens that they are expected to yield. `right`: the
    /// probability that a draft token is right if those before it were.
    pub(super) fn choose(
        &self,
        rows: usize,
        tokens: f32,
        right: impl Fn(usize) -> f32,
        max: usize,
    ) -> (usize, f32) {
        let Some(now) = self.ns(rows.min(MAX_ROWS)) else { return (0, 0.0) };
        let mut best_rate = RowTimes::LEAST_GAIN * tokens / now;
        let (mut best, mut expected, mut all_right) = ((0, 0.0), 0.0, 1.0);
        for count in 1..=max.min(MAX_ROWS.saturating_sub(rows)) {
            all_right *= right(count - 1);
            expected += all_right;
            let rate = self.ns(rows + count).map_or(0.0, |ns| (tokens + expected) / ns);
            if rate > best_rate {
                (best_rate, best) = (rate, (count, expected));
            }
        }
        best
    }

    /// True if steps of the second (rows, tokens) with a gap before them yield more per time than
    /// those of the first without.
    pub(super) fn pays(
        &self,
        (rows, tokens): (usize, f32),
        (more_rows, more_tokens): (usize, f32),
    ) -> bool {
        let times = self.ns(rows.min(MAX_ROWS)).zip(self.ns(more_rows.min(MAX_ROWS)));
        times.is_some_and(|(ns, with_ns)| {
            more_tokens / (with_ns + self.gap_ns) > RowTimes::LEAST_GAIN * tokens / ns
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(of: impl Fn(usize) -> f32) -> RowTimes {
        let mut times = RowTimes::new();
        for rows in 1..=MAX_ROWS {
            times.record(rows, of(rows) as u64);
        }
        times
    }

    /// Rows that cost nothing are all taken, rows that cost as much as a step none; in between the
    /// choice is the best of all.
    #[test]
    fn the_choice_yields_the_best_rate() {
        let count = |times: &RowTimes, right: f32| times.choose(1, 1.0, |_| right, 15).0;
        assert_eq!(count(&times(|_| 1e6), 0.99), 15);
        assert_eq!(count(&times(|rows| 1e6 * rows as f32), 0.99), 0);
        let costs = |rows: usize| 1e6 + 2e5 * rows as f32;
        let rate = |count: usize| {
            let expected: f32 = (0..=count as i32).map(|power| 0.7f32.powi(power)).sum();
            expected / costs(1 + count)
        };
        let best = (0..=15).max_by(|&a, &b| rate(a).total_cmp(&rate(b))).unwrap();
        assert_eq!(count(&times(costs), 0.7), best);
    }

    /// A longer step must yield more, and with a gap before it still more.
    #[test]
    fn a_gap_counts() {
        let mut times = times(|rows| 1e6 + 1e5 * rows as f32);
        // 1.1 ms for a token; 1.5 ms for those of five rows.
        assert!(times.pays((1, 1.0), (5, 1.5)) && !times.pays((1, 1.0), (5, 1.35)));
        times.record_gap(200_000);
        assert!(!times.pays((1, 1.0), (5, 1.5)) && times.pays((1, 1.0), (5, 1.9)));
        assert!(!RowTimes::new().pays((1, 1.0), (5, 5.0)), "nothing is known");
    }

    #[test]
    fn unmeasured_rows_are_tried() {
        let mut times = RowTimes::new();
        assert_eq!(times.choose(1, 1.0, |_| 0.9, 8).0, 0, "nothing is known");
        times.record(1, 1_000_000);
        assert_eq!(times.choose(1, 1.0, |_| 0.9, 8).0, 8);
        times.record(9, 9_000_000);
        assert_eq!(times.choose(1, 1.0, |_| 0.9, 8).0, 0);
    }

    #[test]
    fn times_are_measured_again_after_a_while() {
        let mut times = RowTimes::new();
        times.record(9, 90_000_000);
        let tries = (0..2 * PERIOD).filter(|_| {
            times.record(1, 1_000_000);
            let count = times.choose(1, 1.0, |_| 0.9, 8).0;
            (count > 0).then(|| times.record(1 + count, 2_000_000)).is_some()
        });
        assert!(tries.count() > 500, "the first time was a stall");
    }
}

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
    pub(super) fn record(&mut self, rows: usize, ns: f32) {
        self.steps += 1;
        if self.steps == PERIOD {
            *self = RowTimes::new();
        }
        if let Some(mean) = self.mean_ns.get_mut(rows) {
            RowTimes::update(mean, ns);
        }
    }

    /// Adds a gap of `ns`.
    pub(super) fn record_gap(&mut self, ns: f32) {
        RowTimes::update(&mut self.gap_ns, ns);
    }

    fn update(mean: &mut f32, newest: f32) {
        *mean = if *mean == 0.0 { newest } else { *mean + RowTimes::NEWEST * (newest - *mean) };
    }

    /// Time of a step of `rows` rows: of the nearest measured ones, on the line through both;
    /// beyond the largest measured as that one, so that it is tried. `None` before any was
    /// measured.
    pub(super) fn ns(&self, rows: usize) -> Option<f32> {
        let rows = rows.min(MAX_ROWS);
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

    /// The number of draft tokens, at most `max`, by which the step yields most per time. `step`:
    /// what it computes and yields without them; `outcome`: what a number of tokens adds.
    pub(super) fn choose(
        &self,
        step: Outcome,
        max: usize,
        outcome: impl Fn(usize) -> Outcome,
    ) -> Choice {
        let none = Choice::default();
        let Some(step_ns) = self.ns(step.rows) else { return none };
        let plain_ns = step_ns + step.ns;
        let (mut best, mut best_rate) = (none, RowTimes::LEAST_GAIN * step.tokens / plain_ns);
        for count in 1..=max {
            let added = outcome(count);
            let rows = step.rows + added.rows;
            let Some(step_ns) = self.ns(rows).filter(|_| rows <= MAX_ROWS) else { break };
            let (tokens, ns) = (step.tokens + added.tokens, step_ns + step.ns + added.ns);
            if tokens / ns > best_rate {
                let saved_ns = tokens / step.tokens * plain_ns - ns;
                (best_rate, best) = (tokens / ns, Choice { count, added, saved_ns });
            }
        }
        best
    }

    /// True if steps like `more`, with a gap before them, yield more per time than those like
    /// `step` without.
    pub(super) fn pays(&self, step: Outcome, more: Outcome) -> bool {
        let ns = |of: Outcome| self.ns(of.rows);
        ns(step).zip(ns(more)).is_some_and(|(ns, with_ns)| {
            more.tokens / (with_ns + self.gap_ns) > RowTimes::LEAST_GAIN * step.tokens / ns
        })
    }
}

/// Rows, tokens and time of a step, or of what draft tokens add to it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// Rows of the model.
    pub(super) rows: usize,
    /// Tokens, in the mean.
    pub(super) tokens: f32,
    /// Time that is spent before the model's step, nanoseconds.
    pub(super) ns: f32,
}

/// A number of draft tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Choice {
    pub(super) count: usize,
    pub(super) added: Outcome,
    /// Time in which steps without them would yield as many tokens, less the time of this one.
    pub(super) saved_ns: f32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(of: impl Fn(usize) -> f32) -> RowTimes {
        let mut times = RowTimes::new();
        for rows in 1..=MAX_ROWS {
            times.record(rows, of(rows));
        }
        times
    }

    /// The number of draft tokens, each right with probability `right`, after which `draft_ns` is
    /// spent for each.
    fn count(times: &RowTimes, right: f32, draft_ns: f32, max: usize) -> usize {
        let step = Outcome { rows: 1, tokens: 1.0, ns: 0.0 };
        let outcome = |count| Outcome {
            rows: count,
            tokens: (1..=count as i32).map(|power| right.powi(power)).sum(),
            ns: count as f32 * draft_ns,
        };
        times.choose(step, max, outcome).count
    }

    /// Rows that cost nothing are all taken, rows that cost as much as a step none; in between the
    /// choice is the best of all.
    #[test]
    fn the_choice_yields_the_best_rate() {
        let count = |times: &RowTimes, right: f32| count(times, right, 0.0, 15);
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
        let pays = |times: &RowTimes, tokens| {
            let of = |rows, tokens| Outcome { rows, tokens, ns: 0.0 };
            times.pays(of(1, 1.0), of(5, tokens))
        };
        // 1.1 ms for a token; 1.5 ms for those of five rows.
        assert!(pays(&times, 1.5) && !pays(&times, 1.35));
        times.record_gap(200_000.0);
        assert!(!pays(&times, 1.5) && pays(&times, 1.9));
        assert!(!pays(&RowTimes::new(), 5.0), "nothing is known");
    }

    /// The time of drafting counts: at a quarter of a step a token pays while most are right.
    #[test]
    fn the_choice_counts_the_time_of_drafting() {
        let times = times(|_| 1e6);
        assert_eq!(count(&times, 0.99, 0.0, 15), 15);
        assert!((1..15).contains(&count(&times, 0.8, 2.5e5, 15)));
        assert_eq!(count(&times, 0.2, 2.5e5, 15), 0);
        assert_eq!(count(&times, 0.99, 1e6, 15), 0, "a draft as slow as the model");
    }

    /// Two tokens in the time of one and a half save half a step.
    #[test]
    fn the_time_saved_is_that_of_plain_steps() {
        let times = times(|rows| 1e6 + 5e5 * (rows - 1) as f32);
        let outcome = |count| Outcome { rows: count, tokens: count as f32, ns: 0.0 };
        let choice = times.choose(Outcome { rows: 1, tokens: 1.0, ns: 0.0 }, 1, outcome);
        assert_eq!((choice.count, choice.saved_ns), (1, 5e5));
    }

    /// A step of hundreds of requests has more rows than times are kept for.
    #[test]
    fn a_step_beyond_the_kept_times_takes_no_draft() {
        let times = times(|_| 1e6);
        for rows in [MAX_ROWS - 1, MAX_ROWS, MAX_ROWS + 1, 500] {
            let step = Outcome { rows, tokens: rows as f32, ns: 0.0 };
            let outcome = |count| Outcome { rows: count, tokens: count as f32, ns: 0.0 };
            let count = times.choose(step, 8, outcome).count;
            assert!(rows + count <= MAX_ROWS.max(rows), "{rows}: {count}");
            assert!(!times.pays(step, Outcome { rows: rows + 1, ..step }));
        }
    }

    #[test]
    fn unmeasured_rows_are_tried() {
        let mut times = RowTimes::new();
        assert_eq!(count(&times, 0.9, 0.0, 8), 0, "nothing is known");
        times.record(1, 1e6);
        assert_eq!(count(&times, 0.9, 0.0, 8), 8);
        times.record(9, 9e6);
        assert_eq!(count(&times, 0.9, 0.0, 8), 0);
    }

    #[test]
    fn times_are_measured_again_after_a_while() {
        let mut times = RowTimes::new();
        times.record(9, 9e7);
        let tries = (0..2 * PERIOD).filter(|_| {
            times.record(1, 1e6);
            let count = count(&times, 0.9, 0.0, 8);
            (count > 0).then(|| times.record(1 + count, 2e6)).is_some()
        });
        assert!(tries.count() > 500, "the first time was a stall");
    }
}

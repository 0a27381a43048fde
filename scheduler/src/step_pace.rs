//! The time of a step without prefill by its rows, from past steps.

/// Share of the past that a step leaves in the means: steps become slower and faster with what else
/// the machine does.
const KEPT: f64 = 0.99;

/// Share that it leaves in the sums of squares: the cost of a row is seen only when their number
/// changes, and stays.
const SLOPE_KEPT: f64 = 0.9995;

/// Added to the variance of the rows: a batch that keeps its size says nothing about others.
const RIDGE: f64 = 0.25;

/// Costs of steps, for estimates of the time that requests take.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepPace {
    /// Seconds of a step, without its rows.
    pub fixed_s: f64,
    /// Seconds that a row without prefill adds.
    pub row_s: f64,
    /// Seconds that a prompt token adds.
    pub prefill_token_s: f64,
}

impl StepPace {
    /// False before the first step.
    pub fn is_known(&self) -> bool {
        self.fixed_s + self.row_s > 0.0
    }

    /// Seconds of a step of `rows` rows without prefill.
    pub fn step_s(&self, rows: usize) -> f64 {
        self.fixed_s + self.row_s * rows as f64
    }
}

/// The line through the times of past steps over their rows: its slope by least squares over the
/// last thousands of steps, about the means of the last hundred, through which it passes.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepLine {
    weight: f64,
    rows: f64,
    ns: f64,
    /// Weighted sums: of 1, of the rows' squares, and of rows by time, about the means.
    slope_weight: f64,
    rows_rows: f64,
    rows_ns: f64,
}

impl StepLine {
    /// Adds a step of `rows` rows without prefill that took `ns`.
    pub fn record(&mut self, rows: usize, ns: u64) {
        let (rows, ns) = (rows as f64, ns as f64);
        let before = KEPT * self.weight;
        self.weight = before + 1.0;
        let (to_rows, to_ns) = (rows - self.rows, ns - self.ns);
        let share = before / self.weight;
        self.slope_weight = SLOPE_KEPT * self.slope_weight + 1.0;
        self.rows_rows = SLOPE_KEPT * self.rows_rows + share * to_rows * to_rows;
        self.rows_ns = SLOPE_KEPT * self.rows_ns + share * to_rows * to_ns;
        self.rows += to_rows / self.weight;
        self.ns += to_ns / self.weight;
    }

    /// The costs, with `prefill_token_s` seconds per prompt token. All 0 before the first step.
    pub fn pace(&self, prefill_token_s: f64) -> StepPace {
        let slope = self.rows_ns / (self.rows_rows + RIDGE * self.slope_weight.min(100.0));
        // Neither rows nor steps that take no time.
        let slope = slope.max(0.0).min(self.ns / self.rows.max(1.0));
        let fixed = self.ns - slope * self.rows;
        let [fixed_s, row_s] = if slope.is_finite() { [fixed, slope] } else { [0.0; 2] };
        StepPace { fixed_s: fixed_s * 1e-9, row_s: row_s * 1e-9, prefill_token_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(steps: impl IntoIterator<Item = (usize, u64)>) -> StepPace {
        let mut line = StepLine::default();
        steps.into_iter().for_each(|(rows, ns)| line.record(rows, ns));
        line.pace(1e-3)
    }

    #[test]
    fn steps_on_a_line_give_it() {
        let of =
            pace((0..400).map(|step| (1 + step % 60, 2_000_000 + 50_000 * (1 + step as u64 % 60))));
        assert!((of.fixed_s - 2e-3).abs() < 2e-6 && (of.row_s - 50e-6).abs() < 1e-7, "{of:?}");
        assert!((of.step_s(64) - 5.2e-3).abs() < 1e-5);
    }

    #[test]
    fn a_full_batch_keeps_the_slope_and_moves_the_level() {
        let line =
            (0..400).map(|step| (1 + step % 60, 2_000_000 + 50_000 * (1 + step as u64 % 60)));
        let of = pace(line.chain([(64, 6_200_000)].repeat(1000)));
        assert!((of.step_s(64) - 6.2e-3).abs() < 1e-5, "{of:?}");
        assert!((of.row_s - 50e-6).abs() < 12e-6, "{of:?}");
    }

    #[test]
    fn steps_of_one_size_give_their_mean_and_no_slope() {
        assert_eq!(pace([]), StepPace { prefill_token_s: 1e-3, ..StepPace::default() });
        let of = pace([(8, 900_000), (8, 1_100_000)].repeat(200));
        assert!(of.row_s < 1e-9 && (of.step_s(8) - 1e-3).abs() < 2e-6, "{of:?}");
        // Noise of the clock that falls with rows is no negative cost.
        let of = pace([(8, 1_100_000), (9, 900_000)].repeat(200));
        assert!(of.row_s == 0.0 && of.fixed_s > 0.0, "{of:?}");
        // Nor are steps that grow faster than their rows free at 0 rows.
        let of = pace([(8, 1_000_000), (9, 2_000_000)].repeat(200));
        assert!(of.fixed_s >= 0.0 && of.row_s > 0.0, "{of:?}");
    }
}

//! Statistics of decode steps.

/// Measurements of a series of decode steps.
#[derive(Clone, Debug, Default)]
pub struct StepStats {
    /// From the end of one step to the end of the next, microseconds.
    pub step_us: Vec<f64>,
    /// Host time from a step's plan to its launch, microseconds.
    pub launch_us: Vec<f64>,
    /// From a step's last prediction to its end, microseconds.
    pub slack_us: Vec<f64>,
    /// Steps whose predictions were published before the next step's launch.
    pub fresh: u64,
    /// Steps whose predictions were not.
    pub late: u64,
}

impl StepStats {
    /// Appends the measurements of `more`.
    pub fn add(&mut self, more: StepStats) {
        self.step_us.extend(more.step_us);
        self.launch_us.extend(more.launch_us);
        self.slack_us.extend(more.slack_us);
        self.fresh += more.fresh;
        self.late += more.late;
    }
}

/// The largest value that at most a share `p` of `values` exceeds from below; NaN if there are none.
pub fn quantile(values: &[f64], p: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(((sorted.len().max(1) - 1) as f64 * p) as usize).copied().unwrap_or(f64::NAN)
}

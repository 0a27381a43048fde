//! The data of TRAIL's Figure 8: response time and memory against the arrival rate, and against c.

use super::predictor::Predictor;
use super::queue::Queue;
use super::simulation::simulate;

/// Panel of the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Panel {
    /// Against the arrival rate, for c = 0, 0.3 and 0.5.
    Rate,
    /// Against c, for arrival rates 0.7, 0.8 and 0.9.
    C,
}

impl Panel {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Panel::Rate => "rate",
            Panel::C => "c",
        }
    }
}

/// One point of the figure. Times are in units of the mean service time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure8Row {
    /// Panel.
    pub panel: Panel,
    /// Predictor.
    pub predictor: Predictor,
    /// Arrival rate.
    pub lambda: f64,
    /// Preemptable share of the prediction.
    pub c: f64,
    /// Mean response time, by the corrected lemma.
    pub mean_response: f64,
    /// The same by the lemma as printed.
    pub lemma1_as_printed: f64,
    /// Time average of the sum of ages.
    pub mean_memory: f64,
    /// Preemptions per job.
    pub preemptions_per_job: f64,
    /// Largest sum of ages in a simulated run: the paper's memory, for which it gives no length of
    /// the run.
    pub peak_memory: Option<f64>,
}

/// The rows of all panels, with peaks over a number of jobs each, if one is given. Runs at equal
/// rates share their arrivals and sizes.
pub fn figure8(jobs: Option<u64>, seed: u64) -> Vec<Figure8Row> {
    let mut rows = Vec::new();
    for predictor in Predictor::ALL {
        let mut add = |panel, lambda, c| rows.push(row(panel, predictor, (lambda, c), jobs, seed));
        for c in [0.0, 0.3, 0.5] {
            // 0.50, 0.55, ... 0.95.
            (10..20).for_each(|twentieths| add(Panel::Rate, f64::from(twentieths) / 20.0, c));
        }
        for lambda in [0.7, 0.8, 0.9] {
            (0..=10).for_each(|tenths| add(Panel::C, lambda, f64::from(tenths) / 10.0));
        }
    }
    rows
}

fn row(
    panel: Panel,
    predictor: Predictor,
    (lambda, c): (f64, f64),
    jobs: Option<u64>,
    seed: u64,
) -> Figure8Row {
    let queue = Queue::new(lambda, c, predictor).expect("rates and shares are in their ranges");
    let peak_memory = jobs.map(|jobs| simulate(&queue, jobs, seed).peak_memory);
    Figure8Row {
        panel,
        predictor,
        lambda,
        c,
        mean_response: queue.mean_response(),
        lemma1_as_printed: queue.mean_response_as_printed(),
        mean_memory: queue.mean_memory(),
        preemptions_per_job: queue.preemptions_per_job(),
        peak_memory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_points_are_there_and_perfect_peaks_do_not_depend_on_c() {
        let rows = figure8(Some(2000), 1);
        assert_eq!(rows.len(), 2 * (3 * 10 + 3 * 11));
        for lambda in [0.7, 0.8, 0.9] {
            let at =
                |row: &&Figure8Row| row.lambda == lambda && row.predictor == Predictor::Perfect;
            let peaks: Vec<f64> =
                rows.iter().filter(at).filter_map(|row| row.peak_memory).collect();
            assert_eq!(peaks.len(), 3 + 11);
            assert!(peaks.iter().all(|peak| (peak - peaks[0]).abs() < 1e-9), "{peaks:?}");
        }
    }
}

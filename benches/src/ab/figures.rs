//! Figures of two programs' reports, compared.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use trail_platform::stats::Sorted;

/// Numbers of a report by their path, such as `rows/0/step_us/median`.
pub type Figures = BTreeMap<String, f64>;

/// The figures to compare.
#[derive(Clone, Copy, Debug)]
pub enum Filter<'a> {
    /// Those that are known to be better when lower, or when higher.
    TimesAndRates,
    /// Those whose path contains this.
    Containing(&'a str),
}

/// Which way a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Better {
    Lower,
    Higher,
}

/// A figure of both programs.
#[derive(Debug)]
pub struct Comparison {
    /// Path of the figure.
    pub figure: String,
    better: Option<Better>,
    /// The other program's values, ascending, and this one's.
    other: Sorted,
    this: Sorted,
    /// This program's value over the other's, of each round.
    ratios: Sorted,
}

/// All numbers of `report`.
pub fn flatten(report: &Value) -> Figures {
    let mut figures = Figures::new();
    collect(report, "", &mut figures);
    figures
}

fn collect(value: &Value, path: &str, figures: &mut Figures) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}/{key}") };
    match value {
        Value::Object(object) => {
            object.iter().for_each(|(key, value)| collect(value, &below(key), figures));
        }
        Value::Array(values) => values.iter().enumerate().for_each(|(index, value)| {
            collect(value, &below(&index.to_string()), figures);
        }),
        value => figures.extend(value.as_f64().map(|number| (path.to_owned(), number))),
    }
}

/// Compares the figures that every run has and that are never zero; run by run, so that both lists
/// are of the same rounds.
pub fn compare(others: &[Figures], these: &[Figures], filter: Filter) -> Vec<Comparison> {
    let Some(first) = others.first() else { return Vec::new() };
    let is_chosen = |path: &&String| match filter {
        Filter::TimesAndRates => better(path).is_some(),
        Filter::Containing(part) => path.contains(part),
    };
    let values = |runs: &[Figures], path: &str| -> Option<Vec<f64>> {
        runs.iter().map(|run| run.get(path).copied().filter(|value| *value != 0.0)).collect()
    };
    let compared = first.keys().filter(is_chosen).filter_map(|path| {
        let (other, this) = (values(others, path)?, values(these, path)?);
        let ratios = Sorted::of(this.iter().zip(&other).map(|(this, other)| this / other));
        let (other, this) = (Sorted::of(other), Sorted::of(this));
        Some(Comparison { figure: path.clone(), better: better(path), other, this, ratios })
    });
    compared.collect()
}

/// Shares of a step that something costs.
const COSTS: [&str; 4] = ["barrier_share", "mac_share", "overhead", "share_of_step"];

/// Which way the figure at `path` is better, by the last of its keys that ends in a unit: the
/// `step_us` of `step_us/median`.
fn better(path: &str) -> Option<Better> {
    path.rsplit('/').find_map(|key| {
        let ends = |units: &[&str]| units.iter().any(|unit| key.ends_with(unit));
        if COSTS.contains(&key) {
            Some(Better::Lower)
        } else if ends(&["per_s", "share"]) || key.starts_with("share_of") {
            Some(Better::Higher)
        } else if ends(&["_ns", "_us", "_ms", "_s", "seconds"]) {
            Some(Better::Lower)
        } else {
            None
        }
    })
}

impl Comparison {
    /// The factor by which the median ratio is worse than 1, below 1 if it is better; `None` where
    /// it is not known which way is better.
    pub fn worse_by(&self) -> Option<f64> {
        let ratio = self.ratios.median();
        self.better.map(|better| if better == Better::Lower { ratio } else { 1.0 / ratio })
    }

    /// Smallest and largest ratio of a round.
    fn range(&self) -> [f64; 2] {
        [self.ratios.quantile(0.0), self.ratios.quantile(1.0)]
    }

    /// Range of the other program's own values over their median.
    fn noise(&self) -> f64 {
        let other = &self.other;
        (other.quantile(1.0) - other.quantile(0.0)) / other.median()
    }

    fn verdict(&self) -> &'static str {
        let [min, max] = self.range();
        match self.worse_by() {
            _ if min <= 1.0 && 1.0 <= max => "within noise",
            Some(factor) if factor > 1.0 => "worse",
            Some(_) => "better",
            None => "different",
        }
    }

    /// The figure's entry in the report.
    pub fn report(&self) -> Value {
        let [min, max] = self.range();
        json!({
            "figure": self.figure,
            "better": self.better.map(|better| match better {
                Better::Lower => "lower",
                Better::Higher => "higher",
            }),
            "other": self.other.median(),
            "this": self.this.median(),
            "ratio": { "median": self.ratios.median(), "min": min, "max": max },
            "noise": self.noise(),
            "verdict": self.verdict(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(values: &[f64]) -> Vec<Figures> {
        let of = |&us: &f64| json!({ "step_us": { "p50": us }, "rows": [{ "tokens_per_s": us }] });
        values.iter().map(|value| flatten(&of(value))).collect()
    }

    #[test]
    fn units_say_which_way_is_better() {
        assert_eq!(better("rows/0/step_us/median"), Some(Better::Lower));
        assert_eq!(better("ttft_s/p99"), Some(Better::Lower));
        assert_eq!(better("tokens_per_s"), Some(Better::Higher));
        assert_eq!(better("rows/1/share_of_matrix_rate"), Some(Better::Higher));
        assert_eq!(better("running"), None);
    }

    #[test]
    fn ratios_are_of_the_rounds() {
        let compared =
            compare(&runs(&[1.0, 10.0, 2.0]), &runs(&[1.1, 12.0, 2.2]), Filter::TimesAndRates);
        let paths: Vec<&str> = compared.iter().map(|one| one.figure.as_str()).collect();
        assert_eq!(paths, ["rows/0/tokens_per_s", "step_us/p50"]);
        let [rate, time] = &compared[..] else { panic!("two figures") };
        assert!((time.worse_by().unwrap() - 1.1).abs() < 1e-9);
        assert!((rate.worse_by().unwrap() - 1.0 / 1.1).abs() < 1e-9);
        assert_eq!((time.verdict(), rate.verdict()), ("worse", "better"));
        assert!((time.noise() - 4.5).abs() < 1e-9);
    }

    #[test]
    fn a_range_around_1_is_noise() {
        let compared = compare(&runs(&[1.0, 1.0]), &runs(&[0.9, 1.2]), Filter::Containing("p50"));
        assert_eq!((compared.len(), compared[0].verdict()), (1, "within noise"));
    }

    #[test]
    fn figures_that_a_run_lacks_are_left_out() {
        assert!(compare(&runs(&[1.0, 0.0]), &runs(&[1.0, 1.0]), Filter::TimesAndRates).is_empty());
        let other = [flatten(&json!({ "a_us": 1, "b_us": 1 }))];
        let this = [flatten(&json!({ "b_us": 2, "c_us": 1 }))];
        assert_eq!(compare(&other, &this, Filter::TimesAndRates).len(), 1);
    }
}

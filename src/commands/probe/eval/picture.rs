//! The plot of `trail-rt probe eval`.

use trail_cli::Error;
use trail_probe::Bins;
use trail_training::evaluation::{AGES, Trace, countdown};

use super::report::EvaluationReport;
use crate::plot::{self, Curve, Panel};

/// Steps whose error is drawn, output tokens.
const STEPS: [usize; 14] = [0, 1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 511];

/// Draws errors by age, predictions against what came, and predicted bins against true ones (TRAIL
/// figure 4).
pub fn draw(report: &EvaluationReport, bins: &Bins, traces: &[Trace]) -> Result<String, Error> {
    let curve = |name: &str, predicted: &dyn Fn(&Trace, usize) -> f32| Curve {
        name: name.into(),
        points: STEPS
            .windows(2)
            .filter_map(|ends| error(traces, ends[0], ends[1], predicted))
            .collect(),
    };
    let errors = vec![
        curve("refined", &|trace, step| trace.refined[step]),
        curve("raw", &|trace, step| trace.raw[step]),
        curve("from the prompt, counted down", &|trace, step| countdown(trace.prompt_probe, step)),
    ];
    let longest = f64::from(bins.max_tokens());
    let mut reliability = vec![Curve {
        name: "as predicted".into(),
        points: (0..=64).map(|i| longest * f64::from(i) / 64.0).map(|x| (x, x)).collect(),
    }];
    for age in AGES {
        let of_age = report.reliability.iter().filter(|of| of.age == age);
        let points = of_age.map(|of| (of.predicted, of.remained)).collect();
        reliability.push(Curve { name: format!("age {}", age.name), points });
    }
    let panels = [
        Panel::lines(["output tokens so far", "mean absolute error, tokens"], errors),
        Panel::dots(["tokens predicted to remain", "tokens that remained, mean"], reliability),
        Panel::cells(
            ["predicted bin", "true bin (darker: more steps, logarithm)"],
            report.heat_map.clone(),
        ),
    ];
    plot::draw(&report.title(), &panels)
}

/// The mean error of the steps from `first` to before `end`, at their first.
fn error(
    traces: &[Trace],
    first: usize,
    end: usize,
    predicted: &dyn Fn(&Trace, usize) -> f32,
) -> Option<(f64, f64)> {
    let (mut sum, mut steps) = (0.0, 0);
    for trace in traces {
        for (step, remaining) in trace.steps().skip(first).take(end - first) {
            sum += f64::from((predicted(trace, step) - remaining as f32).abs());
            steps += 1;
        }
    }
    (steps > 0).then(|| (first as f64, sum / f64::from(steps)))
}

//! The plot of `bench http`: latencies over the rates, a curve for each policy.

use serde_json::Value;
use trail_cli::Error;
use trail_cli::output_file::signed_svg;

use crate::plot::{self, Curve, Panel};

/// Captions of the panels, and the places of their figures in a run.
const PANELS: [(&str, &str); 4] = [
    ("mean latency, s", "/latency_s/mean"),
    ("p99 latency, s", "/latency_s/p99"),
    ("mean time to first token, s", "/ttft_s/mean"),
    ("answers without a stall, share", "/smooth_share"),
];

/// The picture of a report's JSON object.
pub fn draw(report: &Value) -> Result<String, Error> {
    let runs = report["runs"].as_array().map_or(&[][..], Vec::as_slice);
    let by_share = runs.iter().all(|run| run["rate_share"].is_number());
    let (field, x) = match by_share {
        true => ("rate_share", "arrivals over the capacity"),
        false => ("rate", "arrivals per second"),
    };
    let title = format!(
        "{} requests to {} over HTTP",
        report["requests"],
        report["model"].as_str().unwrap_or("a model")
    );
    let panels = PANELS.map(|(y, pointer)| Panel::lines([x, y], curves(runs, field, pointer)));
    Ok(signed_svg(&plot::draw(&title, &panels)?, "bench http"))
}

/// A curve for each policy: means over the rounds at each rate.
fn curves(runs: &[Value], field: &str, pointer: &str) -> Vec<Curve> {
    let name = |run: &Value| run["policy"].as_str().unwrap_or("requests").to_owned();
    let mut names: Vec<String> = Vec::new();
    for run in runs {
        if !names.contains(&name(run)) {
            names.push(name(run));
        }
    }
    let curve = |of: String| {
        let mut points: Vec<(f64, f64, f64)> = Vec::new();
        for run in runs.iter().filter(|run| name(run) == of) {
            let (Some(x), Some(y)) = (run[field].as_f64(), run.pointer(pointer)) else { continue };
            let y = y.as_f64().unwrap_or(0.0);
            match points.iter_mut().find(|point| point.0 == x) {
                Some(point) => (point.1, point.2) = (point.1 + y, point.2 + 1.0),
                None => points.push((x, y, 1.0)),
            }
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Curve { name: of, points: points.iter().map(|&(x, y, n)| (x, y / n)).collect() }
    };
    names.into_iter().map(curve).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn points_are_means_of_the_rounds_by_rate() {
        let run = |policy: &str, rate: f64, mean: f64| {
            let latency = json!({ "mean": mean });
            json!({ "policy": policy, "rate": rate, "latency_s": latency })
        };
        let runs = [
            run("fcfs", 2.0, 4.0),
            run("fcfs", 1.0, 1.0),
            run("trail", 1.0, 0.5),
            run("fcfs", 2.0, 6.0),
        ];
        let curves = curves(&runs, "rate", "/latency_s/mean");
        let shown: Vec<_> = curves.iter().map(|of| (&*of.name, of.points.clone())).collect();
        assert_eq!(shown, [("fcfs", vec![(1.0, 1.0), (2.0, 5.0)]), ("trail", vec![(1.0, 0.5)])]);
        let report = json!({ "runs": runs, "requests": 3, "model": "demo" });
        let picture = draw(&report).expect("a picture");
        assert!(
            picture.contains("3 requests to demo over HTTP") && picture.contains("mean latency")
        );
    }
}

//! Text and JSON of an experiment.

use serde_json::{Value, json};
use trail_cli::Table;

use super::super::report::table;
use super::{Experiment, Finding, Measured};
use crate::commands::simulate::figures::Figures;

/// Our value with its range over seeds.
fn ours(values: &[f64]) -> String {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match values.len() {
        0 => "-".into(),
        _ if max == min && mean.fract() == 0.0 => format!("{mean:.0}"),
        _ if max - min < 5e-4 => format!("{mean:.3}"),
        _ => format!("{mean:.3} ({min:.3}-{max:.3})"),
    }
}

/// The figures of all runs, with the curve's name in place of the policy's, and with its x where
/// the load does not tell two trials apart.
fn named(measured: &[Measured]) -> Vec<Figures> {
    let load = |m: &Measured| m.figures.first().map(|figures| figures.load.clone());
    let mut all = Vec::new();
    for m in measured {
        let same = |other: &&Measured| other.label == m.label && load(other) == load(m);
        let policy = match measured.iter().filter(same).count() {
            1 => m.label.clone(),
            _ => format!("{} at {}", m.label, m.x),
        };
        all.extend(m.figures.iter().map(|f| Figures { policy: policy.clone(), ..f.clone() }));
    }
    all
}

/// The claim, the runs, and the results beside the paper's.
pub fn text(experiment: &Experiment, measured: &[Measured], findings: &[Finding]) -> String {
    let Experiment { name, source, claim, conditions, .. } = experiment;
    let runs = match measured {
        [] => String::new(),
        measured => format!("{}\n", table(&named(measured))),
    };
    let mut results = Table::default().group("", &["quantity", "paper", "ours (over seeds)"]);
    for Finding { quantity, paper, ours: values } in findings {
        results.row([quantity.clone(), paper.clone(), ours(values)]);
    }
    format!("{name}: {source}\nClaim: {claim}\nHere: {conditions}\n\n{runs}{results}")
}

/// The same as one object.
pub fn json(experiment: &Experiment, measured: &[Measured], findings: &[Finding]) -> Value {
    let Experiment { name, source, claim, conditions, .. } = experiment;
    let runs: Vec<Value> =
        measured.iter().map(|m| json!({ "label": m.label, "x": m.x, "runs": m.figures })).collect();
    let findings: Vec<Value> = findings
        .iter()
        .map(|f| json!({ "quantity": f.quantity, "paper": f.paper, "ours": f.ours }))
        .collect();
    json!({
        "experiment": name,
        "source": source,
        "claim": claim,
        "conditions": conditions,
        "findings": findings,
        "trials": runs,
    })
}

//! `trail-rt probe inspect`: what a probe file says about itself.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use trail_cli::{Error, Output};
use trail_platform::printable_line;
use trail_probe::{FilterKind, Probe, RankOptions};

use super::layers::layer_json;

/// Options of `trail-rt probe inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// The probe's file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Prints the report.
pub fn run(args: &InspectArgs, json: bool) -> Result<(), Error> {
    let probe = Probe::open(&args.file)?;
    let text = if json { report(&probe).to_string() } else { lines(&probe) };
    Output::stdout().line(text.trim_end())
}

fn report(probe: &Probe) -> Value {
    let fit = probe.fit.as_ref().map(|fit| {
        json!({
            "states": fit.lengths.len(),
            "temperature": fit.temperature,
            "evidence": fit.evidence,
        })
    });
    let RankOptions { min_run_tokens, express, initial_share } = probe.rank_options;
    let rank_options = [
        ("min_run_tokens", min_run_tokens.map(Value::from)),
        ("express", express.map(Value::from)),
        ("initial_share", initial_share.map(Value::from)),
    ];
    let named = rank_options.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let rank_options: BTreeMap<&str, Value> = named.collect();
    json!({
        "layer": layer_json(probe.layers),
        "shape": [probe.weights.d, probe.weights.hidden, probe.weights.bins],
        "head": probe.weights.kind.name(),
        "inputs": probe.weights.inputs().to_string(),
        "edges": probe.bins.edges(),
        "model": probe.model,
        "filter": probe.filter_kind().name(),
        "fit": fit,
        "rank_options": rank_options,
        "record": probe.record,
    })
}

fn lines(probe: &Probe) -> String {
    let weights = &probe.weights;
    let edges: Vec<String> = probe.bins.edges().iter().map(|edge| format!("{edge:.1}")).collect();
    let filter = match (probe.filter_kind(), &probe.fit) {
        (FilterKind::Raw, _) => "none".into(),
        (FilterKind::Bins, _) | (FilterKind::Tokens, None) => "over bins".into(),
        (FilterKind::Tokens, Some(fit)) => format!(
            "over {} lengths; by age: temperatures {:?}, exponents of the evidence {:?}",
            fit.lengths.len(),
            fit.temperature,
            fit.evidence
        ),
    };
    let fields = [
        ("layer", probe.layers.to_string()),
        ("shape", format!("{} -> {} -> {} bins", weights.d, weights.hidden, weights.bins)),
        ("head", weights.kind.name().to_owned()),
        ("inputs", weights.inputs().to_string()),
        ("edges, tokens", edges.join(" ")),
        ("trained for", probe.model.clone().unwrap_or_else(|| "not recorded".into())),
        ("filter", filter),
    ];
    let fields = fields.into_iter().chain(probe.rank_options.named());
    let fields = fields.map(|(name, value)| (name.to_owned(), value));
    let record = probe.record.iter().map(|(key, value)| (key.clone(), value.clone()));
    let fields = fields.chain(record);
    fields
        .map(|(name, value)| format!("{:<20}{}\n", name.replace('_', " "), printable_line(&value)))
        .collect()
}

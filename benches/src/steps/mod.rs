//! `bench steps`: the cost of the engine's steps as a linear function of their work, for the
//! simulated clock of `trail-rt demo`.
//!
//! A designed sweep of rows, prompt lengths and context runs through the engine that serves; each
//! of its steps is one observation, the median over repetitions. The fit minimises relative errors.

mod fit;
mod sweep;

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use trail_cli::output_file::{GENERATOR, generator};
use trail_cli::{Error, OutputFile};

use crate::model::BenchModel;
use crate::report::{Column, Group};
use sweep::Swept;

/// Options of `bench steps`.
#[derive(Args, Clone, Debug)]
pub struct StepsArgs {
    /// File for the coefficients; default: they are only printed
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace a file of --out that no earlier run wrote
    #[arg(long)]
    force: bool,
}

/// Columns of the printed table.
pub const COLUMNS: &[Group] = &[
    Group(
        "work",
        &[
            Column("sampled rows", "/decode_rows", 0),
            Column("other rows", "/prefill_tokens", 0),
            Column("context tokens", "/context_tokens", 0),
        ],
    ),
    Group("step, us", &[Column("measured", "/us", 1), Column("fitted", "/fitted_us", 1)]),
];

/// Measures the model of `bench`.
pub fn run(args: &StepsArgs, bench: &BenchModel) -> Result<Value, Error> {
    // A file that cannot be written is refused before the measurement.
    let claim = |path: &PathBuf| OutputFile::claim(path.clone(), args.force);
    let out = args.out.as_ref().map(claim).transpose()?;
    let Swept { observations, device, repeats, longest_prompt } = sweep::run(bench)?;
    let cost = fit::fit(&observations, bench.model.config.mixture.as_ref())
        .ok_or_else(|| Error::failed("the steps' times do not grow with their work"))?;
    let residual = fit::residual(&cost, &observations);
    let points: Vec<Value> = observations
        .iter()
        .map(|(work, ns)| {
            json!({
                "decode_rows": work.decode_rows,
                "prefill_tokens": work.prefill_tokens,
                "context_tokens": work.context_tokens,
                "us": ns / 1e3,
                "fitted_us": cost.ns(work) as f64 / 1e3,
            })
        })
        .collect();
    if let Some(out) = &out {
        let file = json!({
            "unit": "ns",
            GENERATOR: generator("bench steps"),
            "model": bench.name,
            "device": device,
            "residual": residual,
            "repeats": repeats,
            "longest_prompt": longest_prompt,
        });
        let mut coefficients = json!(cost);
        if let (Some(all), Some(file)) = (coefficients.as_object_mut(), file.as_object()) {
            all.extend(file.clone());
        }
        out.write(&format!("{coefficients:#}\n"))?;
    }
    Ok(json!({
        "model": bench.name,
        "device": device,
        "step_cost_ns": cost,
        "residual": residual,
        "repeats": repeats,
        "longest_prompt": longest_prompt,
        "rows": points,
    }))
}

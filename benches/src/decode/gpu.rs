//! Decode steps on a GPU, against the time that their bytes and products take at the rates measured
//! in the same run.

use serde_json::{Value, json};
use trail_platform::stats::{median, quantile};

use super::DecodeArgs;
use crate::gpu::limits::Limits;
use crate::gpu::runner::{Runner, RunnerStats, Sizes};
use crate::model::BenchModel;

/// Steps of one measurement.
const STEPS: usize = 16;
/// Rows of a prefill step.
const PREFILL_ROWS: usize = 2048;

/// Measures each batch size of `args`, at most `largest` rows.
pub fn run(args: &DecodeArgs, bench: &BenchModel, largest: usize) -> Result<Value, String> {
    let sizes = Sizes { requests: largest, rows: PREFILL_ROWS, context: args.context + STEPS };
    let mut runner = Runner::new(bench, sizes)?;
    let limits = Limits::measure(runner.backend().device(), &args.limits)?;
    for request in 0..largest as u32 {
        runner.prefill(request, args.context, PREFILL_ROWS)?;
    }
    let mut rows = Vec::new();
    for &batch in &args.batch {
        // The first measurement warms up; its tokens are the ones that the others must choose.
        let expected = runner.decode(batch, args.context, STEPS)?;
        runner.stats = RunnerStats::default();
        for _ in 0..bench.repeats {
            if runner.decode(batch, args.context, STEPS)? != expected {
                return Err(format!("batch {batch}: repetitions chose different tokens"));
            }
        }
        let stats = std::mem::take(&mut runner.stats);
        rows.push(row(bench, &limits, batch, args.context, &stats));
    }
    Ok(json!({
        "device": runner.backend().device_name(),
        "model": bench.name,
        "context": args.context,
        "limits": limits.report(),
        "rows": rows,
    }))
}

fn row(
    bench: &BenchModel,
    limits: &Limits,
    batch: usize,
    context: usize,
    stats: &RunnerStats,
) -> Value {
    let step_us = median(&stats.step_us);
    let best = stats.step_us.iter().copied().fold(f64::INFINITY, f64::min);
    let floor_us = limits.decode_s(&bench.model, batch, context + STEPS / 2) * 1e6;
    json!({
        "batch": batch,
        "step_us": { "median": step_us, "best": best },
        "tokens_per_s": batch as f64 / step_us * 1e6,
        "floor_us": floor_us,
        "share_of_floor": floor_us / step_us,
        "launch_us": {
            "p50": quantile(&stats.launch_us, 0.5),
            "p99": quantile(&stats.launch_us, 0.99),
        },
    })
}

//! A decode step of so many requests, against the time that its bytes and products take at the rates of the same run.

use serde_json::{Value, json};
use trail_base::stats::{median, quantile};

use super::limits::Limits;
use super::runner::{Figures, Runner, Sizes};
use crate::decode::DecodeArgs;
use crate::subject::Subject;

/// Steps of one measurement.
const STEPS: usize = 16;
/// Rows of a step that takes a prompt in.
const PREFILL_ROWS: usize = 2048;

/// Measures.
pub fn run(args: &DecodeArgs, subject: &Subject) -> Result<Value, String> {
    let most = args.batch.iter().copied().max().ok_or("no batch size given")?;
    if args.context == 0 || most == 0 || args.batch.contains(&0) {
        return Err("context and batch sizes must be at least 1".into());
    }
    let sizes = Sizes { requests: most, rows: PREFILL_ROWS, context: args.context + STEPS };
    let mut runner = Runner::new(subject, sizes)?;
    let limits = Limits::measure(runner.backend().device(), &args.limits)?;
    for slot in 0..most as u32 {
        runner.prefill(slot, args.context, PREFILL_ROWS)?;
    }
    let mut rows = Vec::new();
    for &batch in &args.batch {
        // The first measurement warms up, and says what the others must choose.
        let expected = runner.decode(batch, args.context, STEPS)?;
        runner.figures = Figures::default();
        for _ in 0..subject.repeats {
            if runner.decode(batch, args.context, STEPS)? != expected {
                return Err(format!("batch {batch}: repetitions chose different tokens"));
            }
        }
        let figures = std::mem::take(&mut runner.figures);
        rows.push(row(subject, &limits, batch, args.context, &figures));
    }
    Ok(json!({
        "device": runner.backend().device_name(),
        "model": subject.name,
        "context": args.context,
        "limits": limits.report(),
        "rows": rows,
    }))
}

fn row(
    subject: &Subject,
    limits: &Limits,
    batch: usize,
    context: usize,
    figures: &Figures,
) -> Value {
    let step_us = median(&figures.step_us);
    let best = figures.step_us.iter().copied().fold(f64::INFINITY, f64::min);
    let floor_us = limits.decode_s(&subject.model, batch, context + STEPS / 2) * 1e6;
    json!({
        "batch": batch,
        "step_us": { "median": step_us, "best": best },
        "tokens_per_s": batch as f64 / step_us * 1e6,
        "floor_us": floor_us,
        "share_of_floor": floor_us / step_us,
        "launch_us": {
            "p50": quantile(&figures.launch_us, 0.5),
            "p99": quantile(&figures.launch_us, 0.99),
        },
    })
}

//! The overlap on a GPU: decode steps without the probe, with the probe on the CPU or on the GPU
//! beside the upper layers, and with a blocking copy. One backend each, measured in turn, so that the
//! machine's drift affects all modes alike.

use serde_json::{Value, json};
use trail_runtime::cuda::TapMode;

use super::OverlapArgs;
use crate::gpu::runner::{Runner, Sizes};
use crate::gpu::stats::{StepStats, quantile};
use crate::model::{BenchModel, median};

/// Steps of one measurement.
const STEPS: usize = 16;
/// Rows of a prefill step.
const PREFILL_ROWS: usize = 2048;

/// The modes with their names; the first is the baseline of the others.
const MODES: [(TapMode, &str); 4] = [
    (TapMode::Off, "off"),
    (TapMode::Cpu, "cpu"),
    (TapMode::Gpu, "gpu"),
    (TapMode::Blocking, "blocking"),
];

/// Measures each batch size of `args`, at most `largest` rows.
pub fn run(args: &OverlapArgs, bench: &BenchModel, largest: usize) -> Result<Value, String> {
    let sizes = Sizes { requests: largest, rows: PREFILL_ROWS, context: args.context + STEPS };
    let mut runners = Vec::new();
    for (mode, _) in MODES {
        let mut runner = Runner::new(bench, sizes, mode)?;
        for slot in 0..largest as u32 {
            runner.prefill(slot, args.context, PREFILL_ROWS)?;
        }
        runners.push(runner);
    }
    let mut rows = Vec::new();
    for &batch in &args.batch {
        rows.extend(measure(args, bench, &mut runners, batch)?);
    }
    Ok(json!({
        "device": runners[0].backend().device_name(),
        "model": bench.name,
        "context": args.context,
        "rows": rows,
    }))
}

fn measure(
    args: &OverlapArgs,
    bench: &BenchModel,
    runners: &mut [Runner],
    batch: usize,
) -> Result<Vec<Value>, String> {
    let mut expected = None;
    for runner in runners.iter_mut() {
        let chosen = runner.decode(batch, args.context, STEPS)?;
        runner.stats = StepStats::default();
        // The tap must not change any token.
        if *expected.get_or_insert_with(|| chosen.clone()) != chosen {
            return Err(format!("batch {batch}: the tap changed the tokens"));
        }
    }
    // The median step of each mode and repetition, microseconds.
    let mut medians = vec![Vec::new(); runners.len()];
    let mut all = vec![StepStats::default(); runners.len()];
    for repeat in 0..bench.repeats {
        for index in 0..runners.len() {
            // The order rotates.
            let index = (index + repeat) % runners.len();
            runners[index].decode(batch, args.context, STEPS)?;
            let stats = std::mem::take(&mut runners[index].stats);
            medians[index].push(median(&stats.step_us));
            all[index].add(stats);
        }
    }
    let rows = MODES.iter().zip(&all).zip(&medians).zip(runners);
    Ok(rows
        .map(|((((_, mode), stats), steps), runner)| {
            row(mode, batch, stats, steps, &medians[0], runner.backend().late_steps())
        })
        .collect())
}

fn row(
    mode: &str,
    batch: usize,
    stats: &StepStats,
    steps: &[f64],
    without: &[f64],
    overwritten: u64,
) -> Value {
    let added: Vec<f64> = steps.iter().zip(without).map(|(a, b)| a / b - 1.0).collect();
    let predicted = stats.fresh + stats.late;
    json!({
        "batch": batch,
        "probe": mode,
        "step_us": {
            "median": median(steps),
            "p10": quantile(&stats.step_us, 0.1),
            "p90": quantile(&stats.step_us, 0.9),
        },
        "added": { "median": median(&added), "p10": quantile(&added, 0.1), "p90": quantile(&added, 0.9) },
        "fresh_share": (predicted > 0).then(|| stats.fresh as f64 / predicted as f64),
        "slack_us": (!stats.slack_us.is_empty()).then(|| json!({
            "p50": quantile(&stats.slack_us, 0.5),
            "p1": quantile(&stats.slack_us, 0.01),
        })),
        "overwritten_steps": overwritten,
    })
}

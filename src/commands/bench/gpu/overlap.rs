//! What predictions cost a decode step: none, the CPU's beside the upper layers, the device's beside them, and a copy that everybody
//! waits for. One backend each, measured in turn, so that the machine's drift falls on all alike.

use serde_json::{Value, json};
use trail_base::stats::{median, quantile};
use trail_runtime::cuda::TapMode;

use super::super::overlap::OverlapArgs;
use super::super::subject::Subject;
use super::runner::{Figures, Runner, Sizes};

/// Steps of one measurement.
const STEPS: usize = 16;
/// Rows of a step that takes a prompt in.
const PREFILL_ROWS: usize = 2048;

/// The ways, the first of which is what the others are compared with.
const MODES: [(TapMode, &str); 4] = [
    (TapMode::Off, "off"),
    (TapMode::Cpu, "cpu"),
    (TapMode::Gpu, "gpu"),
    (TapMode::Blocking, "blocking"),
];

/// Measures.
pub fn run(args: &OverlapArgs, subject: &Subject) -> Result<Value, String> {
    let most = args.batch.iter().copied().max().ok_or("no batch size given")?;
    let sizes = Sizes { requests: most, rows: PREFILL_ROWS, context: args.context + STEPS };
    let mut runners = Vec::new();
    for (mode, _) in MODES {
        let mut runner = Runner::new(subject, sizes, mode)?;
        for slot in 0..most as u32 {
            runner.prefill(slot, args.context, PREFILL_ROWS)?;
        }
        runners.push(runner);
    }
    let mut rows = Vec::new();
    for &batch in &args.batch {
        rows.extend(measure(args, subject, &mut runners, batch)?);
    }
    Ok(json!({
        "device": runners[0].backend().device_name(),
        "model": subject.name,
        "context": args.context,
        "rows": rows,
    }))
}

fn measure(
    args: &OverlapArgs,
    subject: &Subject,
    runners: &mut [Runner],
    batch: usize,
) -> Result<Vec<Value>, String> {
    let mut expected = None;
    for runner in runners.iter_mut() {
        let chosen = runner.decode(batch, args.context, STEPS)?;
        runner.figures = Figures::default();
        // Whatever is tapped, the tokens are the same, to the bit.
        if *expected.get_or_insert_with(|| chosen.clone()) != chosen {
            return Err(format!("batch {batch}: the tap changed the tokens"));
        }
    }
    // Of each repetition: the median step of every mode.
    let mut medians = vec![Vec::new(); runners.len()];
    let mut all = vec![Figures::default(); runners.len()];
    for repeat in 0..subject.repeats {
        for index in 0..runners.len() {
            // Who goes first alternates.
            let index = (index + repeat) % runners.len();
            runners[index].decode(batch, args.context, STEPS)?;
            let figures = std::mem::take(&mut runners[index].figures);
            medians[index].push(median(&figures.step_us));
            all[index].add(figures);
        }
    }
    let rows = MODES.iter().zip(&all).zip(&medians).zip(runners);
    Ok(rows
        .map(|((((_, mode), figures), steps), runner)| {
            row(mode, batch, figures, steps, &medians[0], runner.backend().late_steps())
        })
        .collect())
}

fn row(
    mode: &str,
    batch: usize,
    figures: &Figures,
    steps: &[f64],
    without: &[f64],
    overwritten: u64,
) -> Value {
    let added: Vec<f64> = steps.iter().zip(without).map(|(a, b)| a / b - 1.0).collect();
    let predicted = figures.fresh + figures.late;
    json!({
        "batch": batch,
        "probe": mode,
        "step_us": {
            "median": median(steps),
            "p10": quantile(&figures.step_us, 0.1),
            "p90": quantile(&figures.step_us, 0.9),
        },
        "added": { "median": median(&added), "p10": quantile(&added, 0.1), "p90": quantile(&added, 0.9) },
        "fresh_share": (predicted > 0).then(|| figures.fresh as f64 / predicted as f64),
        "slack_us": (!figures.slack_us.is_empty()).then(|| json!({
            "p50": quantile(&figures.slack_us, 0.5),
            "p1": quantile(&figures.slack_us, 0.01),
        })),
        "overwritten_steps": overwritten,
    })
}

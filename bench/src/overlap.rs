//! `bench overlap`: the time that tap and probe add to a decode step, and the slack of predictions.
//!
//! Two engines run the same requests, one with the probe and one without, in short turns, so that the
//! machine's drift falls on both alike. Both are the engine that serves, stepped by the benchmark.

use clap::Args;
use serde_json::{Value, json};
use trail_base::stats::{median, quantile};
use trail_runtime::engine::EngineBuilder;

use crate::decoding::{Decoding, Shape};
use crate::gpu;
use crate::subject::{Subject, streamed};
use crate::timeline::{self, Files};

/// Steps in one measurement: a pair of measurements is long beside the clock and short beside the
/// drift.
const STEPS: u32 = 4;

/// Options of `bench overlap`.
#[derive(Args, Clone, Debug)]
pub struct OverlapArgs {
    /// Batch sizes
    #[arg(long, value_delimiter = ',', default_value = "1,8")]
    pub batch: Vec<usize>,
    /// Prompt tokens of each request
    #[arg(long, default_value_t = 128)]
    pub context: usize,
    /// Record steps of the largest batch as well, and draw one with its neighbours: PREFIX.svg, and
    /// PREFIX.json for chrome://tracing or Perfetto
    #[arg(long, value_name = "PREFIX")]
    timeline: Option<String>,
}

/// Measures by `figures`, and records the timeline where it was asked for.
pub fn with_timeline(
    args: &OverlapArgs,
    subject: &Subject,
    figures: impl FnOnce(&Subject) -> Result<Value, String>,
) -> Result<Value, String> {
    // Files that cannot be written are reported before anything is measured.
    let files = args.timeline.as_deref().map(Files::create).transpose()?;
    let mut figures = figures(subject)?;
    if let (Some(files), Some(&batch)) = (files, args.batch.iter().max()) {
        let shape = Shape { batch, context: args.context };
        let timeline =
            subject.on(|s| timeline::on_cpu(shape, s), |s| timeline::on_gpu(shape, s))?;
        figures["timeline"] = files.write(&timeline)?;
    }
    Ok(figures)
}

/// Measures on the device of `subject`.
pub fn run(args: &OverlapArgs, subject: &Subject) -> Result<Value, String> {
    if args.context == 0 || args.batch.is_empty() || args.batch.contains(&0) {
        return Err("context and batch sizes must be at least 1".into());
    }
    subject.on(|s| on_cpu(args, s), |s| gpu::overlap(args, s))
}

fn on_cpu(args: &OverlapArgs, subject: &Subject) -> Result<Value, String> {
    let rows: Result<Vec<Value>, String> =
        args.batch.iter().map(|&batch| row(args, subject, batch)).collect();
    Ok(json!({
        "model": subject.name,
        "threads": subject.threads(),
        "context": args.context,
        "rows": rows?,
    }))
}

fn row(args: &OverlapArgs, subject: &Subject, batch: usize) -> Result<Value, String> {
    let shape = Shape { batch, context: args.context };
    let probe = subject.probe().map_err(|error| error.to_string())?;
    let macs: usize = streamed(&subject.model).map(|tensor| tensor.rows * tensor.cols).sum();
    let mac_share = probe.head.macs() as f64 / macs as f64;
    let vocab = subject.model.config.vocab_size;
    let build = |builder: EngineBuilder| builder.build_stepped().map_err(|error| error.to_string());
    let mut without = Decoding::new(shape, shape.builder(subject), vocab, build)?;
    let mut with = Decoding::new(shape, shape.builder(subject).probe(Some(probe)), vocab, build)?;
    for decoding in [&mut without, &mut with] {
        decoding.steps(STEPS)?;
        decoding.take_stats();
    }
    let (mut off, mut on, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for repeat in 0..subject.repeats {
        // The order alternates too.
        let turns = match repeat % 2 {
            0 => [with.steps(STEPS)?, without.steps(STEPS)?],
            _ => {
                let without = without.steps(STEPS)?;
                [with.steps(STEPS)?, without]
            }
        };
        on.push(turns[0]);
        off.push(turns[1]);
        ratios.push(turns[0] / turns[1] - 1.0);
        if with.tokens() != without.tokens() {
            return Err(format!("batch {batch}: the tap changed the tokens"));
        }
    }
    let stats = with.take_stats();
    Ok(json!({
        "batch": batch,
        "step_us_off": median(&off),
        "step_us_on": median(&on),
        "overhead": median(&ratios),
        "mac_share": mac_share,
        "fresh_share": stats.fresh as f64 / (stats.fresh + stats.late) as f64,
        "slack_us": { "p50": quantile(&stats.slack_us, 0.5), "p1": quantile(&stats.slack_us, 0.01) },
    }))
}

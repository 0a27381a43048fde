//! `bench overlap`: the time that tap and probe add to a decode step, and the slack of predictions.
//! It measures the engine that serves, stepped by the benchmark.

mod counted;
mod cpu;
mod gpu;

pub use gpu::{Counting, Uploaded, engine as gpu_engine};

use clap::Args;
use serde_json::Value;
use trail_cli::{Error, OutputFile, count};
use trail_runtime::engine::ComputeDevice;

use crate::decoding::StepShape;
use crate::model::{BenchModel, MAX_BATCH, MAX_CONTEXT};
use crate::report::{Column, Group};
use crate::timeline;

/// Options of `bench overlap`.
#[derive(Args, Clone, Debug)]
pub struct OverlapArgs {
    /// Batch sizes
    #[arg(long, value_delimiter = ',', default_value = "1,8", value_parser = count::<MAX_BATCH>)]
    pub batch: Vec<usize>,
    /// Prompt tokens of each request
    #[arg(long, default_value_t = 128, value_parser = count::<MAX_CONTEXT>)]
    pub context: usize,
    /// Record steps of the largest batch as well, and write one with its neighbours as PREFIX.json,
    /// a trace for chrome://tracing or Perfetto
    #[arg(long, value_name = "PREFIX")]
    timeline: Option<String>,
    /// Replace a file of --timeline that no earlier run wrote
    #[arg(long)]
    force: bool,
}

/// Columns of the printed table.
pub const COLUMNS: &[Group] = &[
    Group("", &[Column("batch", "/batch", 0), Column("probe", "/probe", 0)]),
    Group(
        "step, us",
        &[
            Column("off", "/step_us_off", 1),
            Column("on", "/step_us_on", 1),
            Column("median", "/step_us/median", 1),
            Column("p10", "/step_us/p10", 1),
            Column("p90", "/step_us/p90", 1),
        ],
    ),
    Group(
        "added, share of neighbouring steps without the probe",
        &[
            Column("median", "/added/median", 4),
            Column("p10", "/added/p10", 4),
            Column("p90", "/added/p90", 4),
            Column("share of MACs", "/mac_share", 4),
        ],
    ),
    Group("", &[Column("fresh share", "/fresh_share", 4)]),
    Group("slack, us", &[Column("p50", "/slack_us/p50", 1), Column("p1", "/slack_us/p1", 1)]),
    Group("", &[Column("overwritten steps", "/overwritten_steps", 0)]),
];

/// Measures on the device of `bench`, then records what `--timeline` asks for.
pub fn run(args: &OverlapArgs, bench: &BenchModel) -> Result<Value, Error> {
    let largest = args.batch.iter().copied().max().unwrap_or(1);
    StepShape { batch: largest, context: args.context }.check(bench)?;
    // A file that cannot be written is refused before the measurement.
    let claim = |prefix: &str| OutputFile::claim(format!("{prefix}.json").into(), args.force);
    let trace = args.timeline.as_deref().map(claim).transpose()?;
    let mut report = match bench.device() {
        ComputeDevice::Cpu => cpu::run(args, bench)?,
        ComputeDevice::Cuda { .. } => gpu::run(args, bench)?,
    };
    if let Some(trace) = trace {
        let timeline =
            timeline::record(StepShape { batch: largest, context: args.context }, bench)?;
        report["timeline"] = timeline.write(&trace)?;
    }
    Ok(report)
}

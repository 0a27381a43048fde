//! `bench overlap --timeline`: one decode step and its neighbours as a Chrome trace. Every span in
//! it was measured.
//!
//! [`record`] steps an engine with stamped phases, tap and backend, [`recorder`] keeps the stamps,
//! [`lanes`] makes them a [`Timeline`], [`chrome`] a trace of that.

mod chrome;
mod cpu;
mod gpu;
mod lanes;
mod record;
mod recorder;
mod sizes;

use serde_json::{Value, json};
use trail_cli::output_file::{GENERATOR, generator};
use trail_cli::{Error, OutputFile};
use trail_runtime::engine::ComputeDevice;

use crate::decoding::StepShape;
use crate::model::BenchModel;

/// Records decode steps of `shape` on the device of `bench`.
pub fn record(shape: StepShape, bench: &BenchModel) -> Result<Timeline, String> {
    match bench.device() {
        ComputeDevice::Cpu => cpu::record(shape, bench),
        ComputeDevice::Cuda { .. } => gpu::record(shape, bench),
    }
}

/// The work done in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SpanKind {
    /// The layers up to the tapped one.
    Lower,
    /// The layers above it, and the logits.
    Upper,
    /// Choosing tokens.
    Sampling,
    /// The probe's kernels on the device.
    Probe,
    /// The copy of the tapped rows.
    Copy,
    /// A probe thread waits for rows.
    Wait,
    /// A probe thread takes the rows over and converts them.
    Stage,
    /// Tasks of the probe's matrix product.
    Head,
    /// Smoothing the posterior and publishing the predictions.
    Smooth,
    /// The engine's thread waits for predictions.
    Await,
    /// Ranking by the predictions, and the plan.
    Plan,
    /// Filling the batch from the plan, and the backend's launch.
    Launch,
    /// The engine's thread computes its share of the step (CPU backend).
    Share,
    /// Waiting for the step's tokens.
    Collect,
    /// Sending tokens to their requests.
    Send,
}

/// The kind of lane that shows a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneKind {
    /// The compute stream, or the forward pass.
    Compute,
    /// The side stream, or the tap.
    Side,
    /// The probe thread that did the work.
    Thread,
    /// The engine's thread.
    Engine,
}

impl SpanKind {
    /// The name shown in traces.
    fn name(self) -> &'static str {
        match self {
            SpanKind::Lower => "lower layers",
            SpanKind::Upper => "upper layers, logits",
            SpanKind::Sampling => "sampling",
            SpanKind::Probe => "probe kernels",
            SpanKind::Copy => "tap copy",
            SpanKind::Wait => "waiting for rows",
            SpanKind::Stage => "stage, convert",
            SpanKind::Head => "head tasks",
            SpanKind::Smooth => "smooth, publish",
            SpanKind::Await => "await predictions",
            SpanKind::Plan => "plan",
            SpanKind::Launch => "fill, launch",
            SpanKind::Share => "its share of the step",
            SpanKind::Collect => "collect",
            SpanKind::Send => "send tokens",
        }
    }

    /// The lane that shows spans of this kind.
    fn lane(self) -> LaneKind {
        match self {
            SpanKind::Lower | SpanKind::Upper | SpanKind::Sampling => LaneKind::Compute,
            SpanKind::Probe | SpanKind::Copy => LaneKind::Side,
            SpanKind::Wait | SpanKind::Stage | SpanKind::Head | SpanKind::Smooth => {
                LaneKind::Thread
            }
            SpanKind::Await
            | SpanKind::Plan
            | SpanKind::Launch
            | SpanKind::Share
            | SpanKind::Collect
            | SpanKind::Send => LaneKind::Engine,
        }
    }
}

/// An interval of work, in microseconds from the start of the step that is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Span {
    /// The work done.
    kind: SpanKind,
    /// Number of the step that the work belongs to.
    step: u64,
    /// Start, microseconds.
    begin: f64,
    /// End, microseconds.
    end: f64,
}

/// The spans of one thread or stream, in order of time.
#[derive(Clone, Debug, PartialEq)]
struct Lane {
    /// Name of the thread or stream.
    name: String,
    /// True for a device's stream, false for a host thread.
    on_device: bool,
    /// Spans by start.
    spans: Vec<Span>,
}

/// Model, device and load of a recording.
#[derive(Clone, Debug, PartialEq)]
struct RunInfo {
    /// Name of the model.
    model: String,
    /// Device and its number of threads.
    device: String,
    /// Requests that decode.
    batch: usize,
    /// Requests that wait.
    waiting: usize,
    /// Tokens of each prompt.
    context: usize,
    /// Notes about the measurement, one line each.
    notes: Vec<String>,
    /// Largest difference between host and device clock, microseconds; `None` with one clock.
    clock_error_us: Option<f64>,
}

/// One step and its neighbours.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Model, device and load.
    run: RunInfo,
    /// Number of the step.
    step: u64,
    /// Length of the step, microseconds.
    step_us: f64,
    /// Lanes from top to bottom.
    lanes: Vec<Lane>,
}

impl Timeline {
    /// Writes the trace to `file`; returns the entry of the report.
    pub fn write(&self, file: &OutputFile) -> Result<Value, Error> {
        let mut trace = chrome::trace(self);
        trace["otherData"][GENERATOR] = generator("bench overlap").into();
        file.write(&trace.to_string())?;
        Ok(json!({
            "trace": file.path(),
            "batch": self.run.batch,
            "step_us": self.step_us,
            "clock_error_us": self.run.clock_error_us,
        }))
    }
}

//! `bench overlap --timeline`: one decode step and its neighbours, as an SVG picture and as a
//! Chrome trace. Every span in them was measured.
//!
//! [`record`] steps an engine with stamped phases, tap and backend, [`recorder`] keeps the stamps,
//! [`arrange`] makes them a [`Timeline`], [`picture`] and [`chrome`] write that to files.

mod arrange;
mod chrome;
mod cpu;
mod gpu;
mod picture;
mod record;
mod recorder;
mod sizes;

use serde_json::{Value, json};
use trail_runtime::engine::ComputeDevice;
use trail_cli::output_file::{GENERATOR, generator, signed_svg};
use trail_cli::{Error, OutputFile};

use crate::decoding::Shape;
use crate::model::BenchModel;

/// Records decode steps of `shape` on the device of `bench`.
pub fn record(shape: Shape, bench: &BenchModel) -> Result<Timeline, String> {
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
    /// The name shown in pictures and traces.
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

/// A magnified interval.
#[derive(Clone, Debug, PartialEq)]
struct Zoom {
    /// Caption of the magnified part.
    title: &'static str,
    /// Start and end, microseconds.
    range: [f64; 2],
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
    /// Notes below the picture, one line each.
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
    /// Number of recorded steps, of which this one has the median length.
    recorded: usize,
    /// Length of the step, microseconds.
    step_us: f64,
    /// Number and start (microseconds) of each step that is shown.
    begins: Vec<(u64, f64)>,
    /// Lanes from top to bottom.
    lanes: Vec<Lane>,
    /// Interval of the picture's first part, microseconds.
    range: [f64; 2],
    /// Magnified intervals, by start.
    zooms: Vec<Zoom>,
}

/// The files of the picture and of the trace.
pub struct Files {
    picture: OutputFile,
    trace: OutputFile,
}

impl Files {
    /// Claims PREFIX.svg and PREFIX.json.
    pub fn claim(prefix: &str, force: bool) -> Result<Files, Error> {
        let claim = |end: &str| OutputFile::claim(format!("{prefix}.{end}").into(), force);
        Ok(Files { picture: claim("svg")?, trace: claim("json")? })
    }

    /// Writes both files; returns the entry of the report.
    pub fn write(&self, timeline: &Timeline) -> Result<Value, Error> {
        const COMMAND: &str = "bench overlap";
        self.picture.write(&signed_svg(&picture::draw(timeline), COMMAND))?;
        let mut trace = chrome::trace(timeline);
        trace["otherData"][GENERATOR] = generator(COMMAND).into();
        self.trace.write(&trace.to_string())?;
        Ok(json!({
            "picture": self.picture.path(),
            "trace": self.trace.path(),
            "batch": timeline.run.batch,
            "step_us": timeline.step_us,
            "clock_error_us": timeline.run.clock_error_us,
        }))
    }
}

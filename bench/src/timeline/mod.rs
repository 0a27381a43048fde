//! `bench overlap --timeline`: one decode step and its neighbours as a picture and as a Chrome trace. All that is in them was measured.
//!
//! [`record`] steps an engine whose phases, tap and backend are stamped, [`recorder`] keeps the
//! stamps, [`arrange`] makes a [`Timeline`] of it, [`picture`] and [`chrome`] write that down.

mod arrange;
mod chrome;
mod cpu;
mod gpu;
mod picture;
mod record;
mod recorder;
mod sizes;

use std::fs::File;
use std::io::Write;

use serde_json::{Value, json};

pub use cpu::run as on_cpu;
pub use gpu::run as on_gpu;

/// What is done in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The layers up to the tapped one.
    Lower,
    /// Those above, and the logits.
    Upper,
    /// Choosing tokens.
    Sampling,
    /// The probe on the device.
    Probe,
    /// The tapped rows on their way.
    Copy,
    /// A probe thread has nothing to do.
    Wait,
    /// A probe thread takes the rows over.
    Stage,
    /// Pieces of the probe's product.
    Head,
    /// The posterior, and its publication.
    Smooth,
    /// The engine's thread waits for predictions.
    Await,
    /// Predictions into ranks, and the plan.
    Plan,
    /// The plan into a batch, and the batch to the backend.
    Launch,
    /// The engine's thread computes, being one of the backend's.
    Share,
    /// Waiting for the step's tokens.
    Collect,
    /// Tokens to their requests.
    Send,
}

/// Where spans of a kind are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// What computes the model.
    Compute,
    /// What is beside it.
    Side,
    /// The thread that did it.
    Thread,
    /// The engine's thread.
    Engine,
}

impl Kind {
    /// What a reader calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Lower => "lower layers",
            Kind::Upper => "upper layers, logits",
            Kind::Sampling => "sampling",
            Kind::Probe => "probe kernels",
            Kind::Copy => "tap copy",
            Kind::Wait => "waiting for rows",
            Kind::Stage => "stage, convert",
            Kind::Head => "head tasks",
            Kind::Smooth => "smooth, publish",
            Kind::Await => "await predictions",
            Kind::Plan => "plan",
            Kind::Launch => "fill, launch",
            Kind::Share => "its share of the step",
            Kind::Collect => "collect",
            Kind::Send => "send tokens",
        }
    }

    /// Where it is shown.
    pub fn place(self) -> Place {
        match self {
            Kind::Lower | Kind::Upper | Kind::Sampling => Place::Compute,
            Kind::Probe | Kind::Copy => Place::Side,
            Kind::Wait | Kind::Stage | Kind::Head | Kind::Smooth => Place::Thread,
            Kind::Await | Kind::Plan | Kind::Launch | Kind::Share | Kind::Collect | Kind::Send => {
                Place::Engine
            }
        }
    }
}

/// A kind's time, microseconds from the begin of the step that is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// What.
    pub kind: Kind,
    /// For which step.
    pub step: u64,
    /// Since when.
    pub begin: f64,
    /// Until when.
    pub end: f64,
}

/// What one thread or stream did, in order of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    /// Who.
    pub name: String,
    /// Of the device, and not of the host.
    pub on_device: bool,
    /// What.
    pub spans: Vec<Span>,
}

/// A stretch of time that is worth a closer look.
#[derive(Clone, Debug, PartialEq)]
pub struct Zoom {
    /// What there is to see.
    pub title: &'static str,
    /// From when to when, microseconds.
    pub range: [f64; 2],
}

/// What was measured on what.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    /// The model's name.
    pub model: String,
    /// What computes, and with how many threads.
    pub device: String,
    /// Requests that decode.
    pub batch: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Tokens of each prompt.
    pub context: usize,
    /// How to read it, one line each.
    pub notes: Vec<String>,
    /// How far apart the clocks of host and device can be, microseconds; `None` where there is one.
    pub clock_error_us: Option<f64>,
}

/// One step and its neighbours.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// What was measured.
    pub scene: Scene,
    /// The step's number, and how many were recorded.
    pub step: u64,
    /// Of how many recorded steps it is the middle one by length.
    pub recorded: usize,
    /// From its begin to its end, microseconds.
    pub step_us: f64,
    /// When the steps that are shown begin: microseconds, with their numbers.
    pub begins: Vec<(u64, f64)>,
    /// The lanes, from the top.
    pub lanes: Vec<Lane>,
    /// What the picture's first part shows, microseconds.
    pub range: [f64; 2],
    /// And the others.
    pub zooms: Vec<Zoom>,
}

/// The two files, opened before anything is measured.
pub struct Files {
    prefix: String,
    picture: File,
    trace: File,
}

impl Files {
    /// PREFIX.svg and PREFIX.json.
    pub fn create(prefix: &str) -> Result<Files, String> {
        let create = |end: &str| {
            let path = format!("{prefix}.{end}");
            File::create(&path).map_err(|error| format!("cannot write {path}: {error}"))
        };
        Ok(Files { picture: create("svg")?, trace: create("json")?, prefix: prefix.to_owned() })
    }

    /// Writes both; what the report says of them.
    pub fn write(mut self, timeline: &Timeline) -> Result<Value, String> {
        let prefix = &self.prefix;
        let failed = |end: &str, error| format!("cannot write {prefix}.{end}: {error}");
        let picture = picture::draw(timeline);
        self.picture.write_all(picture.as_bytes()).map_err(|error| failed("svg", error))?;
        let trace = chrome::trace(timeline).to_string();
        self.trace.write_all(trace.as_bytes()).map_err(|error| failed("json", error))?;
        Ok(json!({
            "picture": format!("{prefix}.svg"),
            "trace": format!("{prefix}.json"),
            "batch": timeline.scene.batch,
            "step_us": timeline.step_us,
            "clock_error_us": timeline.scene.clock_error_us,
        }))
    }
}

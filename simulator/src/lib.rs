#![doc = include_str!("../README.md")]
//! ## Files
//!
//! It makes the engine's calls in the engine's order (submissions, transfers, plan, step,
//! predictions, ends), so that with an engine's predictions and step costs it makes that engine's
//! decisions. No clock, no I/O, no threads.
//!
//! The files, in the order a request meets them: [`Workload`] ([`Dataset`], [`Noise`]) makes
//! [`Job`]s, `simulation` gives each to a `worker`, whose steps take the time of a [`StepModel`];
//! [`SimulationRun`] holds the outcomes. [`replay`] repeats the decisions of a log.
//! [`forecast`] estimates the times of live requests. [`theory`] is
//! apart: TRAIL's policy in an M/G/1 queue.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod arrivals;
mod block_interner;
pub mod confusion;
mod dataset;
pub mod forecast;
mod job;
mod lower_bound;
mod noise;
mod release;
pub mod replay;
mod run;
mod simulation;
mod simulation_error;
mod step_model;
pub mod theory;
mod trace;
mod trace_format;
mod trace_set;
mod transfers;
mod worker;
mod workload;

pub use block_interner::BlockInterner;
pub use dataset::Dataset;
pub use job::{Job, Refined};
pub use lower_bound::lower_bound;
pub use noise::Noise;
pub use run::{JobOutcome, SimulationRun};
pub use simulation::{Progress, Simulation};
pub use simulation_error::SimulationError;
pub use step_model::{Roofline, StepModel, StepTime};
pub use trace::{Trace, TraceError};
pub use trace_set::TraceSet;
pub use workload::{Workload, schedule};

//! The engine, the scheduler and the probe of trail-rt for C: `include/trail_rt.h` is made of these
//! sources.
//!
//! Handles are opaque. A function that can fail returns a [`TrailStatus`], and
//! [`trail_last_error`](status::trail_last_error) its reason; a panic is a failure too, and crosses
//! no frame of C. Results are written on success alone.
//!
//! ## Files
//!
//! [`status`] (errors), `pointers` (what C gives, checked), [`engine`], [`request`] and [`event`]
//! (answers), [`scheduler`], [`probe`] and [`tracker`].

// Names of C.
#![allow(clippy::missing_safety_doc)]

pub mod engine;
pub mod event;
mod pointers;
pub mod probe;
pub mod request;
pub mod scheduler;
pub mod status;
pub mod tracker;

pub use engine::TrailEngine;
pub use event::{TrailEvent, TrailEventKind, TrailFinishReason};
pub use probe::TrailProbe;
pub use request::{TrailRequest, TrailRequestOptions};
pub use scheduler::{
    TrailNewRequest, TrailPlan, TrailPlanRow, TrailScheduler, TrailSchedulerOptions,
};
pub use status::TrailStatus;
pub use tracker::{TrailEstimate, TrailTracker};

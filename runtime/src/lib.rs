#![doc = include_str!("../README.md")]
//! ## Files
//!
//! The packet's path, one module per stage:
//! [`text`] -> [`engine`] (queue, schedule, sample) -> [`cpu`] (forward) -> [`engine`] -> [`text`].
//! [`model`] is what a model *is*; it knows nothing of how it is run.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod backend;
pub mod cpu;
pub mod cuda;
pub mod engine;
pub mod model;
// Its `pub` items are the interface of crate trail-loom, which compiles the same file.
#[allow(unreachable_pub)]
mod mpsc_ring;
pub mod reference;
pub mod sampling;
mod sync;
pub mod text;

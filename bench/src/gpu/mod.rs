//! Step benchmarks on a CUDA device: requests that decode, and the rates that limit them.

pub mod limits;
pub mod runner;
pub mod stats;

pub use limits::{LimitArgs, at_least_one};

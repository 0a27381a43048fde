//! A CUDA backend alone: prompts and decode steps, and the rates that limit them.

pub mod limits;
pub mod runner;

pub use limits::{LimitArgs, at_least_one};

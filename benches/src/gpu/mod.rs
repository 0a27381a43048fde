//! A CUDA backend alone: whether it works, prompts and decode steps, and the rates that limit them.

pub mod checks;
pub mod limits;
pub mod runner;
pub mod values;

pub use limits::LimitArgs;
pub use values::at_least_one;

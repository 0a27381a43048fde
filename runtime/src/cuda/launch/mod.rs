//! One typed function per kernel: checks extents against the plan, fills the parameter struct, launches.

mod shuffle;

pub use shuffle::{RowOrder, Sources, shuffle};

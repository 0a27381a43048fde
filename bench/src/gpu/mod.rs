//! `bench decode`, `prefill` and `overlap` on a CUDA device, through the backend that the engine drives.

mod decode;
mod late;
mod limits;
mod overlap;
mod prefill;
mod runner;

pub use decode::run as decode;
pub use limits::{LimitArgs, at_least_one};
pub use overlap::run as overlap;
pub use prefill::run as prefill;

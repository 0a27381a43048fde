//! `bench decode`, `prefill` and `overlap` on a CUDA device, through the backend that the engine drives.

mod decode;
mod limits;
mod overlap;
mod prefill;
mod runner;
mod timeline;

pub use decode::run as decode;
pub use limits::{LimitArgs, at_least_one};
pub use overlap::run as overlap;
pub use prefill::run as prefill;
pub use timeline::run as timeline;

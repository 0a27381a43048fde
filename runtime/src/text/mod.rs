//! Text on its way out: from tokens to pieces that are safe to send.

mod stop;
mod stream;

pub use stop::{MAX_STOP_BYTES, MAX_STOPS, Step, StopMatcher};
pub use stream::{Decode, TextStream};

//! Tapped rows on their way to the predictor: a ring of two slots in pinned memory, and the
//! threads that wait on it.
//!
//! The side stream copies a step's rows into the slot of the step's parity, fences them by a memory
//! write, and copies the step's number behind them, which is the flag. A consumer that is slower
//! than two steps finds its slot overwritten: those rows are dropped and counted. It holds nothing
//! up.

mod ring;
mod slots;
mod threads;

pub(super) use ring::{Ring, Row};
pub(super) use threads::{Threads, consume};

/// How the tapped rows become predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TapMode {
    /// Nothing is tapped.
    #[default]
    Off,
    /// Rows go to the host while the upper layers run; the backend's threads predict.
    Cpu,
    /// The probe runs on the device beside the upper layers; its probabilities go to the host.
    Gpu,
    /// The device waits between the lower and the upper layers until the host has predicted: for
    /// comparison alone.
    Blocking,
}

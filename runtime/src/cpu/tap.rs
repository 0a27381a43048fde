//! Where the residual stream is tapped, and how side work fills the waiting.

use crate::batch::Batch;

/// Taps the residual stream after one transformer block.
#[derive(Clone, Copy)]
pub struct Tap<'a> {
    /// The block after which the stream is published.
    pub layer: usize,
    /// Who receives it.
    pub sink: &'a dyn TapSink,
}

/// Receives the tapped residual stream and offers side tasks.
pub trait TapSink: Sync {
    /// Called once a pass, on the thread that called `forward`, with the residual stream
    /// `[rows, hidden]` f32 of the whole batch as block `layer` left it.
    fn publish(&self, batch: &Batch, hidden: &[f32]);

    /// Runs one small side task (a few microseconds); false when there is none left.
    ///
    /// After `publish`, a thread that has finished its share of a parallel region calls this while
    /// others have not; in the last region all threads call it until it says false.
    fn assist(&self) -> bool;
}

//! The tap of the residual stream, and side tasks that run in the workers' idle time.

use crate::batch::Batch;

/// A tap of the residual stream after one transformer layer.
#[derive(Clone, Copy)]
pub struct Tap<'a> {
    /// Index of the layer after which the stream is published.
    pub layer: usize,
    /// Receiver of the residual stream.
    pub sink: &'a dyn TapSink,
}

/// Receives the tapped residual stream and provides side tasks.
pub trait TapSink: Sync {
    /// Called once per pass, on the thread that called `forward`, with the residual stream
    /// `[rows, hidden]` f32 of the whole batch after layer `layer`.
    fn publish(&self, batch: &Batch, hidden: &[f32]);

    /// Runs one small side task (a few microseconds). Returns false if there is none left.
    ///
    /// After `publish`, a thread that has finished its share of a parallel region calls this while
    /// others have not; in the last region all threads call it until it returns false.
    fn assist(&self) -> bool;
}

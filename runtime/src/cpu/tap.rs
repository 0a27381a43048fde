//! The tap of one forward pass.

use crate::backend::{HiddenSink, TapPlan};

/// A tap of the residual stream after one transformer layer.
#[derive(Clone, Copy)]
pub struct Tap<'a> {
    /// Index (0-based) of the layer after which the stream is published.
    pub layer: usize,
    /// Number of this layer among those that the receiver taps.
    pub at: usize,
    /// Number of the step.
    pub step: u64,
    /// Rows to stage.
    pub plan: &'a TapPlan,
    /// Receiver of the activations, and source of side tasks.
    pub receiver: &'a dyn HiddenSink,
}

//! The phases of a step.

/// The launches of a step, or a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum StepPhase {
    /// All.
    Whole,
    /// Up to the tap, and its copy.
    Lower,
    /// Behind the tap.
    Upper,
}

//! The shape of a step.

use crate::cuda::plan::attention::split::PrefillSplit;

/// The properties of a step that its launches depend on. Sizes are indices into [`Plans`](super::plans::Plans).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StepShape {
    /// The list of differences and the half of the rings that it uses.
    pub(super) parity: usize,
    /// Of all rows.
    pub(super) rows: usize,
    /// Of the decode rows.
    pub(super) decode: Option<usize>,
    /// Of the rows of logits.
    pub(super) sampled_rows: Option<usize>,
    /// Tiles of prompt rows, their rows, and the pairs of a row and a token that they attend to.
    pub(super) tiles: usize,
    pub(super) prompt_rows: usize,
    pub(super) prompt_pairs: usize,
    /// How the tiles' contexts are cut.
    pub(super) split: PrefillSplit,
    /// Segments for the tap's sums, and their rows.
    pub(super) sums: usize,
    pub(super) sum_rows: usize,
    /// Rows of the tap's stage that go to the host.
    pub(super) staged: usize,
    /// Means over prompts are among them.
    pub(super) has_means: bool,
    /// Decode rows only, and all sample a token: the steps that graphs are captured for.
    pub(super) is_plain: bool,
}

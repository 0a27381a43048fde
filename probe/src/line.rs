//! One cache line: the unit in which the kernels' operands are laid out and aligned.

use half::bf16;

/// `f32` values in one 64-byte line, and columns (hidden units or bins) in one packed panel.
pub(crate) const LANES: usize = 16;

/// Sixteen `f32` on one 64-byte boundary. Buffers are slices of these, so the type guarantees the
/// alignment.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [f32; LANES]);

/// A line of zeros: the initial value of buffers and the padding of ragged edges.
pub(crate) const ZERO: Line = Line([0.0; LANES]);

const _: () = assert!(size_of::<Line>() == 64 && align_of::<Line>() == 64);

// SAFETY: all bits zero are sixteen zeros.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: sixteen `f32` fill the 64 bytes without padding (asserted above), every bit pattern is a
// valid `f32`, and the type is `Copy`, `'static` and without interior mutability.
unsafe impl bytemuck::Pod for Line {}

/// The weights of a panel's sixteen columns for two consecutive inputs, in bf16: each word has the
/// first input's weight in its lower half, the second's in its upper. One shift or one mask widens
/// either to `f32`, and one load reads both.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct PairLine(pub(crate) [u32; LANES]);

/// Inputs in one [`PairLine`].
pub(crate) const PAIR: usize = 2;

const _: () = assert!(size_of::<PairLine>() == 64 && align_of::<PairLine>() == 64);

impl PairLine {
    /// Packs the weights `pair(lane)`, rounded to bf16.
    pub(crate) fn new(pair: impl Fn(usize) -> [f32; PAIR]) -> PairLine {
        PairLine(std::array::from_fn(|lane| {
            let [even, odd] = pair(lane).map(|x| u32::from(bf16::from_f32(x).to_bits()));
            odd << 16 | even
        }))
    }
}

/// Views `lines` as `f32`.
pub(crate) fn floats(lines: &[Line]) -> &[f32] {
    bytemuck::cast_slice(lines)
}

/// Views `lines` as mutable `f32`.
pub(crate) fn floats_mut(lines: &mut [Line]) -> &mut [f32] {
    bytemuck::cast_slice_mut(lines)
}

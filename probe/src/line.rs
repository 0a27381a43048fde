//! One cache line: the unit in which the kernels' operands are laid out and aligned.

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

/// Views `lines` as `f32`.
pub(crate) fn floats(lines: &[Line]) -> &[f32] {
    bytemuck::cast_slice(lines)
}

/// Views `lines` as mutable `f32`.
pub(crate) fn floats_mut(lines: &mut [Line]) -> &mut [f32] {
    bytemuck::cast_slice_mut(lines)
}

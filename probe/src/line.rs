//! One cache line of `f32`: the unit in which the kernels' operands are laid out and aligned.

/// `f32` values in one 64-byte line, and hidden columns in one packed panel.
pub(crate) const LANES: usize = 16;

/// Sixteen `f32` on one 64-byte boundary. Buffers are slices of these, so alignment is a type, not
/// a hope.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [f32; LANES]);

/// The line of zeros, with which buffers begin and ragged edges are padded.
pub(crate) const ZERO: Line = Line([0.0; LANES]);

const _: () = assert!(size_of::<Line>() == 64 && align_of::<Line>() == 64);

// SAFETY: all bits zero are sixteen zeros.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: sixteen `f32` fill the 64 bytes without padding (asserted above), every bit pattern is a
// valid `f32`, and the type is `Copy`, `'static` and without interior mutability.
unsafe impl bytemuck::Pod for Line {}

/// `lines` as plain `f32`, to be written.
pub(crate) fn floats_mut(lines: &mut [Line]) -> &mut [f32] {
    bytemuck::cast_slice_mut(lines)
}

//! Values as the bytes that host and device exchange.

use trail_ptx::params::{RowSampled, RowSampling};

/// Numbers, and structs of numbers: any bytes are a valid value, and no byte of a value is padding.
///
/// # Safety
/// The type must be `Copy` data without padding, references or invalid bit patterns.
pub unsafe trait Plain: Copy + 'static {}

// SAFETY: integers.
unsafe impl Plain for u8 {}
// SAFETY: integers.
unsafe impl Plain for u32 {}
// SAFETY: an array has no padding between its elements.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

const _: () = assert!(size_of::<RowSampling>() == 8 + 6 * 4 + 8 * 4, "no padding");
// SAFETY: integers and floats in C layout; their sizes add up to the struct's (asserted above).
unsafe impl Plain for RowSampling {}

const _: () = assert!(size_of::<RowSampled>() == 8 + 4 * 4 + 40 * 4 + 2 * 4, "no padding");
// SAFETY: as above.
unsafe impl Plain for RowSampled {}

/// The bytes of `values`.
pub fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `Plain` has no padding, so that all bytes are initialised; the extent is the slice's.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The value that begins at `bytes`, of any alignment.
///
/// # Panics
/// If there are fewer bytes than a value has.
pub fn read<T: Plain>(bytes: &[u8]) -> T {
    assert!(bytes.len() >= size_of::<T>(), "{} bytes are too few", bytes.len());
    // SAFETY: `Plain` takes any bytes; the read is unaligned and within the slice.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

/// All values in `bytes`.
///
/// # Panics
/// If the bytes are not a whole number of values.
pub fn read_all<T: Plain>(bytes: &[u8]) -> Vec<T> {
    let size = size_of::<T>();
    assert!(bytes.len().is_multiple_of(size), "{} bytes are not whole values", bytes.len());
    bytes.chunks_exact(size).map(read).collect()
}

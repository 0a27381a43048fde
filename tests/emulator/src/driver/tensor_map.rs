//! Tensor maps of bulk copies.

use std::ffi::c_void;

use super::{api, error};
use crate::memory::{Swizzle, TensorMap, WORDS};

/// Bytes of an element of each `CUtensorMapDataType`.
const ELEMENT_BYTES: [u64; 13] = [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4];
/// Most elements of a box in a dimension.
const MAX_BOX: u64 = 256;

/// The map of a matrix, if it keeps the rules of the API.
fn matrix(
    data_type: u32,
    base: u64,
    extents: [u64; 2],
    row_bytes: u64,
    boxed: [u64; 2],
    swizzle: u32,
) -> Option<TensorMap> {
    let element = *ELEMENT_BYTES.get(data_type as usize)?;
    let swizzle = Swizzle::of_driver(swizzle.into())?;
    let inner = boxed[0] * element;
    let is_sound = base.is_multiple_of(16)
        && extents.iter().all(|extent| (1..=1 << 32).contains(extent))
        && row_bytes.is_multiple_of(16)
        && row_bytes < 1 << 40
        && boxed.iter().all(|side| (1..=MAX_BOX).contains(side))
        && inner.is_multiple_of(16)
        && swizzle.span().is_none_or(|span| inner == span);
    is_sound.then_some(TensorMap { base, element, extents, row_bytes, boxed, swizzle })
}

api! {
    fn cuTensorMapEncodeTiled(
        map: *mut [u64; WORDS], data_type: u32, rank: u32, base: *mut c_void,
        extents: *const [u64; 2], strides: *const u64, boxed: *const [u32; 2],
        steps: *const [u32; 2], interleave: u32, swizzle: u32, _promotion: u32, fill: u32) {
        let pointers = [extents.is_null(), strides.is_null(), boxed.is_null(), steps.is_null()];
        if map.is_null() || !(map as usize).is_multiple_of(64) || pointers.contains(&true) {
            return Err(error::INVALID_VALUE);
        }
        if rank != 2 || interleave != 0 || fill != 0 {
            return super::unsupported::say(
                "a tensor map of another rank than 2, interleaved, or filled with NaN");
        }
        // SAFETY: not null; a map of rank 2 has as many of each.
        let (extents, row_bytes, boxed, steps) =
            unsafe { (*extents, *strides, *boxed, *steps) };
        if steps != [1, 1] {
            return Err(error::INVALID_VALUE);
        }
        let boxed = boxed.map(u64::from);
        let found = matrix(data_type, base as u64, extents, row_bytes, boxed, swizzle);
        let found = found.ok_or(error::INVALID_VALUE)?;
        // SAFETY: the API's contract, and checked above.
        unsafe { map.write(found.encode()) };
        Ok(())
    }
}

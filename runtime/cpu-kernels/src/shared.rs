//! A slice whose disjoint parts are written by the workers of one parallel region.

use std::marker::PhantomData;
use std::ops::Range;

/// A `&mut [T]` that is split into parts at run time.
pub struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: it only gives out disjoint `&mut [T]` (the contract of `part`), as `split_at_mut` does.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Wraps `slice` for the duration of the borrow.
    pub fn new(slice: &'a mut [T]) -> Self {
        SharedMut { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    ///
    /// No two live parts may overlap.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds by the assertion, disjoint by the contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// Writes one element.
    ///
    /// # Safety
    ///
    /// No other thread may access the element during the call, and no live part may contain it.
    #[inline(always)]
    pub unsafe fn write(&self, index: usize, value: T) {
        assert!(index < self.len);
        // SAFETY: in bounds by the assertion, exclusive by the contract.
        unsafe { self.start.add(index).write(value) }
    }
}

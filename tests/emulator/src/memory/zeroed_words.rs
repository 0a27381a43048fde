//! Words that begin as zeros, in pages that the host has only once they are written.

use std::alloc::Layout;
use std::sync::atomic::AtomicU64;

/// A number of words, all zero at first.
pub(crate) struct ZeroedWords {
    at: *mut AtomicU64,
    count: usize,
}

// SAFETY: the pointer is to atomics, shared freely; it is freed once, when the last owner goes.
unsafe impl Send for ZeroedWords {}
// SAFETY: as above.
unsafe impl Sync for ZeroedWords {}

impl ZeroedWords {
    /// `count` words, or none where the host has no memory for them.
    pub(crate) fn new(count: usize) -> ZeroedWords {
        // SAFETY: the layout is not empty; zero bytes are valid atomics.
        let at = Self::layout(count).map(|layout| unsafe { std::alloc::alloc_zeroed(layout) });
        match at {
            Some(at) if !at.is_null() => ZeroedWords { at: at.cast(), count },
            _ => ZeroedWords { at: std::ptr::NonNull::dangling().as_ptr(), count: 0 },
        }
    }

    /// The layout of `count` words, at least one.
    fn layout(count: usize) -> Option<Layout> {
        Layout::array::<AtomicU64>(count).ok().filter(|layout| layout.size() > 0)
    }

    /// All words.
    #[inline]
    pub(crate) fn all(&self) -> &[AtomicU64] {
        // SAFETY: `new` allocated that many zeroed words; of none, the pointer is aligned.
        unsafe { std::slice::from_raw_parts(self.at, self.count) }
    }
}

impl Drop for ZeroedWords {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.count) {
            // SAFETY: allocated by `new` with this layout.
            unsafe { std::alloc::dealloc(self.at.cast(), layout) };
        }
    }
}

//! The system's allocator with counted calls and bytes: for tests that a step does not allocate or
//! that memory is bounded. Linking this crate makes it the global allocator, so that it is a
//! dependency of tests only.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

thread_local! {
    // Const and without destructor, so that reading it never allocates, even while a thread ends.
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
    static LARGEST_OF_THREAD: Cell<usize> = const { Cell::new(0) };
}

static OF_PROCESS: AtomicU64 = AtomicU64::new(0);

static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

/// Bytes that are allocated now, by all threads: as they were asked for, touched or not.
pub fn live_bytes() -> u64 {
    LIVE_BYTES.load(Ordering::Relaxed).max(0) as u64
}

/// Number of allocations that the calling thread has made so far.
pub fn of_thread() -> u64 {
    OF_THREAD.get()
}

/// Bytes of the largest allocation that the calling thread has made since the last call.
pub fn take_largest_of_thread() -> usize {
    LARGEST_OF_THREAD.replace(0)
}

/// Number of allocations that all threads have made so far.
pub fn of_process() -> u64 {
    OF_PROCESS.load(Ordering::Relaxed)
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

impl Counting {
    fn count(&self, bytes: usize) {
        OF_THREAD.set(OF_THREAD.get() + 1);
        LARGEST_OF_THREAD.set(LARGEST_OF_THREAD.get().max(bytes));
        OF_PROCESS.fetch_add(1, Ordering::Relaxed);
        LIVE_BYTES.fetch_add(bytes as i64, Ordering::Relaxed);
    }

    fn release(&self, bytes: usize) {
        LIVE_BYTES.fetch_sub(bytes as i64, Ordering::Relaxed);
    }
}

// SAFETY: every call is forwarded unchanged to the system's allocator, which fulfils the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size());
        // SAFETY: `System` has the same obligations, which the caller fulfils.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size());
        // SAFETY: `System` has the same obligations, which the caller fulfils.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.count(size);
        self.release(layout.size());
        // SAFETY: `System` has the same obligations, which the caller fulfils.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.release(layout.size());
        // SAFETY: `System` has the same obligations, which the caller fulfils.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_counts_see_this_threads_calls() {
        let (thread, process) = (of_thread(), of_process());
        let mut grown = std::hint::black_box(vec![1_u8]);
        grown.reserve(1000);
        assert_eq!(of_thread(), thread + 2);
        assert!(of_process() >= process + 2);
        std::thread::spawn(|| drop(std::hint::black_box(Box::new(1)))).join().unwrap();
        assert!(of_process() > process + 2);
    }

    #[test]
    fn live_bytes_rise_and_fall() {
        const BYTES: u64 = 100 << 20; // far more than other tests allocate meanwhile
        let before = live_bytes();
        let held = std::hint::black_box(Vec::<u8>::with_capacity(BYTES as usize));
        assert!(live_bytes() > before + BYTES / 2);
        drop(held);
        assert!(live_bytes() < before + BYTES / 2);
    }
}

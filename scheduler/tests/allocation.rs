//! After construction nothing allocates: a counting global allocator watches 1,000 steps.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use trail_scheduler::Policy;
use trail_scheduler::bench::Load;
use trail_scheduler::policies::{Fcfs, Oracle, Sjf, Trail};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system allocator unchanged; only a counter is added. `realloc` and
// `alloc_zeroed` keep their default bodies, which come through `alloc`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above with this layout, by the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// One test in this file: another one's thread would be counted as well.
#[test]
fn a_step_allocates_nothing() {
    let policies: [Box<dyn Policy>; 4] =
        [Box::new(Fcfs), Box::new(Sjf), Box::new(Trail::default()), Box::new(Oracle::default())];
    for policy in policies {
        let name = policy.name();
        let mut load = Load::new(policy, 64, 512, 3).unwrap();
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..1000).for_each(|_| assert!(load.step() > 0));
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before, "{name}");
    }
}

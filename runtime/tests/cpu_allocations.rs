//! A forward pass allocates nothing, whatever its batch.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use trail_runtime::batch::{BLOCK_TOKENS, Batch};
use trail_runtime::cpu::{CpuBackend, CpuOptions, Isa};
use trail_runtime::model::{Dtype, Model};

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's; `p` is the system's.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn forward_allocates_nothing() {
    let (rows, segments, blocks_each) = (100, 4, 7);
    let options = CpuOptions {
        threads: 2,
        isa: Isa::Auto,
        max_rows: rows,
        max_segments: segments,
        num_blocks: segments * blocks_each,
        max_context: blocks_each * BLOCK_TOKENS,
    };
    let model = Arc::new(Model::random("tiny", Dtype::Bf16, 3).unwrap());
    let mut backend = CpuBackend::new(model, options).unwrap();
    let tokens: Vec<u32> = (0..rows as u32).collect();
    let blocks: Vec<u32> = (0..(segments * blocks_each) as u32).collect();
    let tables: Vec<&[u32]> = blocks.chunks(blocks_each).collect();
    let mut prefill = Batch::default();
    prefill.push(0, 0, &tokens, tables[0], true);
    let mut mixed = Batch::default();
    mixed.push(0, 100, &[7], tables[0], true);
    mixed.push(1, 0, &tokens[..97], tables[1], false);
    mixed.push(2, 0, &[9], tables[2], true);
    mixed.push(3, 0, &[9], tables[3], true);
    // The threads may still be starting up, and that allocates.
    backend.forward(&prefill, None);
    std::thread::sleep(std::time::Duration::from_millis(50));
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..20 {
        backend.forward(&prefill, None);
        backend.forward(&mixed, None);
    }
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0);
}

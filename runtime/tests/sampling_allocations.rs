//! Choosing a token allocates nothing, whatever the parameters.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use trail_runtime::engine::SamplingParams;
use trail_runtime::engine::sampling::{History, Sampler};

/// The system's allocator, counting the calls of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System`, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn sample_allocates_nothing() {
    let vocab_size = 5000;
    let mut logits: Vec<f32> =
        (0..vocab_size).map(|id| ((id * 7919) % 4999) as f32 * 0.003).collect();
    let seen: Vec<u32> = (0..6000).collect();
    let history = History { prompt: &seen, generated: &seen };
    let plain = SamplingParams::default();
    let all = [
        plain.clone(),
        SamplingParams { temperature: 0.0, ..plain.clone() },
        SamplingParams { temperature: 0.7, top_logprobs: 20, ..plain.clone() },
        SamplingParams { top_k: 50, ..plain.clone() },
        SamplingParams { top_k: 4999, ..plain.clone() },
        SamplingParams { top_p: 0.999, ..plain.clone() },
        SamplingParams { min_p: 0.1, top_k: 40, top_p: 0.9, ..plain.clone() },
        SamplingParams {
            repetition_penalty: 1.2,
            presence_penalty: 0.5,
            frequency_penalty: 0.5,
            ..plain
        },
    ];
    let mut sampler = Sampler::new(vocab_size);
    for params in &all {
        let before = ALLOCATIONS.get();
        for position in 0..10 {
            sampler.sample(&mut logits, params, history, position);
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "{params:?}");
    }
    logits.reverse();
    logits[17] = f32::NAN;
    let before = ALLOCATIONS.get();
    sampler.sample(&mut logits, &all[3], history, 0);
    assert_eq!(ALLOCATIONS.get() - before, 0, "broken logits");
}

//! Proof of swapping: what goes to the host comes back bit for bit, beside steps that write the
//! pool, in every order in which a driver may run the queue.

mod world;

use cudarc::driver::sys::CUresult;
use std::time::{Duration, Instant};
use trail_cuda_emulator::{Failing, Order};
use trail_runtime::backend::Transfers;
use trail_scheduler::Copies;
use world::{World, content};

/// Requests come, are written to by steps, leave for the host, come back into other blocks, are
/// forgotten, and end while a step still writes to what was theirs.
fn swaps_at_random(order: Order, seed: u64, checksums: bool) {
    let session = trail_cuda_emulator::session();
    if let Some(emulator) = session.emulator() {
        emulator.order(order);
        emulator.seed(seed);
    }
    let mut world = World::new(24, 14, checksums, seed);
    for _ in 0..2000 {
        world.act();
    }
    world.settle();
    let counts = world.counts;
    assert!(counts.iter().all(|&count| count >= 10), "too little happened: {counts:?}");
}

#[test]
fn what_comes_back_is_what_left_when_work_runs_late() {
    swaps_at_random(Order::Late, 1, false);
}

#[test]
fn what_comes_back_is_what_left_when_work_runs_early() {
    swaps_at_random(Order::Early, 2, false);
}

#[test]
fn what_comes_back_is_what_left_in_any_order() {
    for seed in 3..7 {
        swaps_at_random(Order::Seeded, seed, true);
    }
}

fn copies<'a>(device: &'a [u32], host: &'a [u32]) -> Copies<'a> {
    Copies { device, host }
}

#[test]
fn blocks_that_are_adjacent_on_both_sides_are_one_copy() {
    let session = trail_cuda_emulator::session();
    let Some(emulator) = session.emulator() else { return };
    let mut world = World::new(12, 8, false, 1);
    world.write(&[2, 3, 4, 5, 7]);
    emulator.fail(Failing::Copy, 2, CUresult::CUDA_ERROR_UNKNOWN as u32);
    world.swap.swap_out(0, copies(&[2, 3, 4, 5], &[4, 5, 6, 7])).unwrap();
    let fault = world.swap.swap_out(1, copies(&[7], &[0])).unwrap_err();
    let wanted = "swapping 1 KV blocks out, from block 7 on: CUDA_ERROR_UNKNOWN (999)";
    assert_eq!(fault.to_string(), wanted);
}

#[test]
fn a_broken_promise_is_a_fault_that_says_which() {
    let _session = trail_cuda_emulator::session();
    let mut world = World::new(12, 4, false, 1);
    world.write(&[0, 1, 2]);
    let outside = world.swap.swap_out(0, copies(&[0, 1], &[3, 4])).unwrap_err().to_string();
    assert_eq!(outside, "host block 4 of request 0 is none of 4");
    let fewer = world.swap.swap_in(0, copies(&[5, 6], &[0, 1, 2])).unwrap_err().to_string();
    assert_eq!(fewer, "2 KV blocks of request 0 for 3 blocks of the host");
    // A transfer of nothing ends.
    world.swap.swap_out(1, copies(&[], &[])).unwrap();
    world.wait(1);
}

#[test]
fn a_block_that_changes_on_the_host_is_named() {
    let _session = trail_cuda_emulator::session();
    let mut world = World::new(12, 6, true, 1);
    world.write(&[0, 1, 2]);
    world.swap.swap_out(1, copies(&[2, 0, 1], &[3, 5, 0])).unwrap();
    world.wait(1);
    let planted = content(world.version_of(0));
    // SAFETY: no copy is in flight; the test alone looks at host memory.
    let memory =
        unsafe { std::slice::from_raw_parts_mut(world.swap.host_memory(), 6 * planted.len()) };
    let at = memory.chunks(planted.len()).position(|block| block == planted).unwrap();
    memory[at * planted.len() + 100] ^= 1;
    world.swap.swap_in(1, copies(&[5, 6, 7], &[3, 5, 0])).unwrap();
    let fault = world.wait_for_fault();
    let wanted = format!(
        "block 1 of the KV of request 1 changed while it was on the host (there in block {at})"
    );
    assert_eq!(fault, wanted);
}

/// Dropped with copies in flight, and after the device was lost: nothing is used after it is freed,
/// nothing leaks, nothing panics.
#[test]
fn a_swap_may_be_dropped_at_any_time() {
    let session = trail_cuda_emulator::session();
    for lost in [false, true] {
        let mut world = World::new(12, 8, false, 1);
        world.write(&[0, 1, 2]);
        world.swap.swap_out(0, copies(&[0, 1], &[0, 1])).unwrap();
        if let (true, Some(emulator)) = (lost, session.emulator()) {
            emulator.lose_device(CUresult::CUDA_ERROR_UNKNOWN as u32);
            assert!(world.swap.finished(&mut Vec::new()).is_err());
        }
        drop(world);
        if let Some(emulator) = session.emulator() {
            assert_eq!(emulator.live_allocations(), 0);
            emulator.lose_device(0);
        }
    }
}

/// A transfer that never ends is an error, and no drop waits for it.
#[test]
fn a_swap_that_never_ends_is_an_error() {
    let session = trail_cuda_emulator::session();
    let Some(emulator) = session.emulator() else { return };
    let mut world = World::within(Duration::from_secs(3), (12, 8), false, 1);
    emulator.fail(Failing::HangCopy, 1, 1);
    world.swap.swap_out(0, copies(&[0, 1], &[0, 1])).unwrap();
    let fault = world.wait_for_fault();
    assert!(fault.starts_with("swapping KV blocks: the GPU was not done in 3 s"), "{fault}");
    let begin = Instant::now();
    drop(world);
    assert!(begin.elapsed() < Duration::from_secs(10), "the drop waited for the device");
    emulator.forget_context();
}

#[test]
fn costs_are_measured() {
    let _session = trail_cuda_emulator::session();
    let mut world = World::new(12, 8, false, 1);
    world.swap.set_token_s(0.25);
    assert!(world.swap.block_s() > 0.0 && world.swap.block_s() < 1.0);
    assert_eq!((world.swap.token_s(), world.swap.host_blocks()), (0.25, 8));
}

//! Streams, events, graphs: their order is kept, and what the host leaves out is noticed, because
//! work runs as late as it may.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::common::queue::*;
use crate::common::{Gpu, SEMANTICS};
use cudarc::driver::result::{event, stream};
use cudarc::driver::sys::{self, CUresult};
use trail_cuda_emulator::{Emulator, Order};

#[test]
fn one_stream_keeps_its_order() {
    in_every_order(|gpu, module, _| {
        let (s, host, back, at) = (new_stream(), Pinned::new(), Pinned::new(), gpu.alloc(BYTES));
        host.set(5);
        to_device(s, at, &host);
        add(module, s, at, 3);
        add(module, s, at, 4);
        to_host(s, &back, at);
        finish(s);
        assert!((0..COUNT).all(|i| back.get(i) == 12));
        gpu.free(at);
        destroy(&[s]);
    });
}

#[test]
fn an_event_orders_two_streams() {
    in_every_order(|gpu, module, _| {
        let (s, t, e) = (new_stream(), new_stream(), new_event());
        let (host, back, at) = (Pinned::new(), Pinned::new(), gpu.alloc(BYTES));
        host.set(1);
        to_device(s, at, &host);
        add(module, s, at, 10);
        // SAFETY: live streams and event.
        unsafe {
            event::record(e, s).unwrap();
            stream::wait_event(t, e, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT).unwrap();
        }
        add(module, t, at, 100);
        to_host(t, &back, at);
        finish(t);
        assert!((0..COUNT).all(|i| back.get(i) == 111));
        // SAFETY: the event's record has run, since `t` waited for it.
        unsafe { event::destroy(e) }.unwrap();
        gpu.free(at);
        destroy(&[s, t]);
    });
}

/// The planted bug of the test above: no event. In the late order the second stream runs alone, on
/// memory that was never written.
#[test]
fn a_missing_event_is_found() {
    let session = trail_cuda_emulator::session();
    late(&session);
    let gpu = Gpu::new();
    let module = gpu.load(SEMANTICS).unwrap();
    let (s, t, host, at) = (new_stream(), new_stream(), Pinned::new(), gpu.alloc(BYTES));
    host.set(1);
    to_device(s, at, &host);
    add(&module, t, at, 100);
    // SAFETY: a live stream.
    let code = unsafe { sys::cuStreamSynchronize(t) };
    assert_eq!(code, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let found = session.take_findings();
    assert!(found[0].contains("read of unwritten memory: kernel add"), "{found:?}");
    // Pinned memory of a broken context is gone with it.
    std::mem::forget(host);
    drop((module, gpu));
    let _ = session.take_findings();
}

#[test]
fn a_host_that_reads_before_it_waits_finds_nothing() {
    let session = trail_cuda_emulator::session();
    late(&session);
    let gpu = Gpu::new();
    let module = gpu.load(SEMANTICS).unwrap();
    let (s, host, back, at) = (new_stream(), Pinned::new(), Pinned::new(), gpu.alloc(BYTES));
    host.set(7);
    back.set(8);
    to_device(s, at, &host);
    add(&module, s, at, 1);
    to_host(s, &back, at);
    // The right answer stood there from before; it was taken away.
    assert_ne!(back.get(0), 8);
    finish(s);
    assert_eq!(back.get(0), 8);
    // The source of a copy that has not run is changed too soon: the copy takes the new values.
    to_device(s, at, &host);
    host.set(100);
    to_host(s, &back, at);
    finish(s);
    assert_eq!(back.get(0), 100);
    gpu.free(at);
    destroy(&[s]);
}

#[test]
fn an_allocation_in_a_stream_is_not_there_for_another() {
    let session = trail_cuda_emulator::session();
    late(&session);
    let gpu = Gpu::new();
    let module = gpu.load(SEMANTICS).unwrap();
    let (s, t) = (new_stream(), new_stream());
    // SAFETY: used on its own stream, then freed there.
    unsafe {
        let at = cudarc::driver::result::malloc_async(s, BYTES).unwrap();
        sys::cuMemsetD8Async(at, 0, BYTES, s).result().unwrap();
        add(&module, s, at, 1);
        cudarc::driver::result::free_async(at, s).unwrap();
        finish(s);
        // The bug: another stream uses it without waiting for the first.
        let at = cudarc::driver::result::malloc_async(s, BYTES).unwrap();
        sys::cuMemsetD8Async(at, 0, BYTES, t).result().unwrap();
        assert_eq!(sys::cuStreamSynchronize(t), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    let found = session.take_findings();
    assert!(found[0].contains("not yet allocated on its stream"), "{found:?}");
    drop((module, gpu));
    let _ = session.take_findings();
}

#[test]
fn the_legacy_stream_waits_for_the_others() {
    in_every_order(|gpu, module, _| {
        let blocking = stream::create(stream::StreamKind::Default).unwrap();
        let (host, at) = (Pinned::new(), gpu.alloc(BYTES));
        host.set(2);
        to_device(blocking, at, &host);
        add(module, null_mut(), at, 5);
        add(module, blocking, at, 6);
        // A plain copy is on the legacy stream: it waits for all streams.
        assert_eq!(gpu.download::<i32>(at, COUNT).unwrap(), [13; COUNT]);
        gpu.free(at);
        destroy(&[blocking]);
    });
}

#[test]
fn events_are_ready_when_their_work_has_run() {
    let session = trail_cuda_emulator::session();
    late(&session);
    let gpu = Gpu::new();
    let module = gpu.load(SEMANTICS).unwrap();
    let (s, begin, end, at) = (new_stream(), new_event(), new_event(), gpu.upload(&[0i32; COUNT]));
    // SAFETY: live handles.
    unsafe {
        event::record(begin, s).unwrap();
        add(&module, s, at, 1);
        event::record(end, s).unwrap();
        let mut milliseconds = 0.0;
        assert_eq!(
            sys::cuEventElapsedTime(&mut milliseconds, begin, end),
            CUresult::CUDA_ERROR_NOT_READY
        );
        assert_eq!(sys::cuEventQuery(end), CUresult::CUDA_ERROR_NOT_READY);
        event::synchronize(end).unwrap();
        assert_eq!(sys::cuEventQuery(end), CUresult::CUDA_SUCCESS);
        assert!(event::elapsed(begin, end).unwrap() > 0.0);
        event::destroy(begin).unwrap();
        event::destroy(end).unwrap();
    }
    gpu.free(at);
    destroy(&[s]);
}

#[test]
fn values_in_memory_order_streams_and_host() {
    in_every_order(|gpu, module, _| {
        let (s, t) = (new_stream(), new_stream());
        let (flag, back, at) = (Pinned::new(), Pinned::new(), gpu.upload(&[0i32; COUNT]));
        flag.set(0);
        let word = flag.0 as u64;
        // SAFETY: the word is pinned and aligned.
        unsafe {
            // `t` waits for what `s` writes, and `s` for what the host writes.
            sys::cuStreamWaitValue32_v2(t, word, 2, 0).result().unwrap();
            add(module, t, at, 10);
            to_host(t, &back, at);
            sys::cuStreamWaitValue32_v2(s, word + 4, 1, 1).result().unwrap();
            add(module, s, at, 3);
            sys::cuStreamWriteValue32_v2(s, word, 2, 0).result().unwrap();
            flag.0.add(1).write_volatile(1);
        }
        finish(t);
        assert!((0..COUNT).all(|i| back.get(i) == 13));
        gpu.free(at);
        finish(s);
        destroy(&[s, t]);
    });
}

#[test]
fn the_device_goes_on_while_the_host_polls() {
    let session = trail_cuda_emulator::session();
    session.emulator().unwrap().order(Order::Late);
    let gpu = Gpu::new();
    let (s, flag) = (new_stream(), Pinned::new());
    flag.set(0);
    // SAFETY: the word is pinned and aligned.
    unsafe { sys::cuStreamWriteValue32_v2(s, flag.0 as u64, 9, 0) }.result().unwrap();
    let begin = std::time::Instant::now();
    while flag.get(0) != 9 {
        assert!(begin.elapsed().as_secs() < 10, "the write never ran");
        std::thread::yield_now();
    }
    destroy(&[s]);
    drop(flag);
    drop(gpu);
}

#[test]
fn a_host_function_runs_in_its_turn() {
    in_every_order(|gpu, module, _| {
        unsafe extern "C" fn double(value: *mut c_void) {
            // SAFETY: the test passes a pinned integer that outlives the stream's work.
            unsafe { *value.cast::<i32>() *= 2 };
        }
        let (s, back, at) = (new_stream(), Pinned::new(), gpu.upload(&[4i32; COUNT]));
        add(module, s, at, 1);
        to_host(s, &back, at);
        // SAFETY: `double` may be called with this pointer.
        unsafe { cudarc::driver::result::stream::launch_host_function(s, double, back.0.cast()) }
            .unwrap();
        finish(s);
        assert_eq!((back.get(0), back.get(1)), (10, 5));
        gpu.free(at);
        destroy(&[s]);
    });
}

/// A host that polls for a flag behind a copy. Returns true if it saw the flag before the rows: the
/// flag is a copy itself, or a stream's write with `flags`.
fn flag_overtakes_rows(gpu: &Gpu, emulator: Emulator, flags: Option<u32>) -> bool {
    let (s, host, rows, flag) = (new_stream(), Pinned::new(), Pinned::new(), Pinned::new());
    let at = gpu.alloc(BYTES);
    host.set(7);
    flag.set(0);
    to_device(s, at, &host);
    finish(s);
    to_host(s, &rows, at);
    match flags {
        // SAFETY: pinned memory of 4 bytes at least, and device memory of as many.
        None => unsafe { sys::cuMemcpyDtoHAsync_v2(flag.0.cast(), at, 4, s) },
        // SAFETY: pinned memory, known to the device by the same address.
        Some(flags) => unsafe { sys::cuStreamWriteValue32_v2(s, flag.0 as u64, 7, flags) },
    }
    .result()
    .unwrap();
    while flag.get(0) != 7 {
        assert!(emulator.step(), "the flag never comes");
    }
    let overtook = (0..COUNT).any(|i| rows.get(i) != 7);
    finish(s);
    assert!((0..COUNT).all(|i| rows.get(i) == 7));
    gpu.free(at);
    destroy(&[s]);
    overtook
}

/// Only a stream's write with its fence says that the copies before it have arrived.
#[test]
fn a_flag_without_a_fence_overtakes_the_rows() {
    let session = trail_cuda_emulator::session();
    let emulator = session.emulator().unwrap();
    let gpu = Gpu::new();
    let overtakes = |flags| {
        let seeds = 0..20;
        seeds
            .filter(|&seed| {
                emulator.seed(seed);
                late(&session);
                flag_overtakes_rows(&gpu, emulator, flags)
            })
            .count()
    };
    assert!(overtakes(None) > 0, "a copy as the flag");
    assert!(overtakes(Some(1)) > 0, "NO_MEMORY_BARRIER");
    assert_eq!(overtakes(Some(0)), 0);
}

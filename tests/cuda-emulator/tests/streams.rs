//! Streams, events, graphs: their order is kept, and what the host leaves out is noticed, because work runs as late as it may.

mod common;

use std::ffi::c_void;
use std::ptr::null_mut;

use common::{Gpu, Module};
use cudarc::driver::result::{event, stream};
use cudarc::driver::sys::{self, CUevent_flags, CUresult, CUstream};
use trail_cuda_emulator::{Emulator, Order};

trail_cuda_emulator::on_emulator!();

const SEMANTICS: &str = include_str!("ptx/semantics.ptx");
const COUNT: usize = 1000;
const BYTES: usize = COUNT * 4;

/// Runs `body` in the late order and in the early one, and with some seeds.
fn in_every_order(body: impl Fn(&Gpu, &Module, Emulator)) {
    let session = trail_cuda_emulator::session();
    let emulator = session.emulator().unwrap();
    for round in 0..8u64 {
        emulator.reset();
        emulator.seed(round);
        emulator.order([Order::Late, Order::Early, Order::Seeded][(round as usize).min(2)]);
        let gpu = Gpu::new();
        let module = gpu.load(SEMANTICS).unwrap();
        body(&gpu, &module, emulator);
    }
}

fn add(module: &Module, on: CUstream, at: u64, value: i32) {
    module
        .launch_on(on, "add", 8, 128, 0, vec![at.into(), (COUNT as i32).into(), value.into()])
        .unwrap();
}

fn sum(module: &Module, on: CUstream, to: u64, a: u64, b: u64) {
    module
        .launch_on(on, "sum", 8, 128, 0, vec![to.into(), a.into(), b.into(), (COUNT as i32).into()])
        .unwrap();
}

fn new_stream() -> CUstream {
    stream::create(stream::StreamKind::NonBlocking).unwrap()
}

fn new_event() -> sys::CUevent {
    event::create(CUevent_flags::CU_EVENT_DEFAULT).unwrap()
}

/// Pinned memory of `COUNT` integers.
struct Pinned(*mut i32);

impl Pinned {
    fn new() -> Pinned {
        // SAFETY: freed in drop.
        Pinned(unsafe { cudarc::driver::result::malloc_host(BYTES, 0) }.unwrap().cast())
    }

    fn set(&self, value: i32) {
        // SAFETY: the memory holds `COUNT` integers.
        (0..COUNT).for_each(|i| unsafe { self.0.add(i).write_volatile(value) });
    }

    fn get(&self, i: usize) -> i32 {
        // SAFETY: as above.
        unsafe { self.0.add(i).read_volatile() }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`.
        unsafe { cudarc::driver::result::free_host(self.0.cast()) }.unwrap();
    }
}

fn to_device(on: CUstream, at: u64, from: &Pinned) {
    // SAFETY: both have `BYTES` bytes.
    unsafe { sys::cuMemcpyHtoDAsync_v2(at, from.0.cast(), BYTES, on) }.result().unwrap();
}

fn to_host(on: CUstream, to: &Pinned, at: u64) {
    // SAFETY: both have `BYTES` bytes.
    unsafe { sys::cuMemcpyDtoHAsync_v2(to.0.cast(), at, BYTES, on) }.result().unwrap();
}

fn finish(on: CUstream) {
    // SAFETY: a live stream.
    unsafe { stream::synchronize(on) }.unwrap();
}

fn destroy(streams: &[CUstream]) {
    // SAFETY: created by the test, not used again.
    streams.iter().for_each(|&s| unsafe { stream::destroy(s) }.unwrap());
}

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

/// The planted bug of the test above: no event. In the late order the second stream runs alone, on memory that nobody wrote.
#[test]
fn a_missing_event_is_found() {
    let session = trail_cuda_emulator::session();
    session.emulator().unwrap().order(Order::Late);
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
    assert!(found[0].contains("read of memory nobody wrote: kernel add"), "{found:?}");
    // Pinned memory of a broken context is gone with it.
    std::mem::forget(host);
    drop((module, gpu));
    let _ = session.take_findings();
}

#[test]
fn a_host_that_reads_before_it_waits_finds_nothing() {
    let session = trail_cuda_emulator::session();
    session.emulator().unwrap().order(Order::Late);
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
    session.emulator().unwrap().order(Order::Late);
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
        // A plain copy is on the legacy stream: it waits for all of them.
        assert_eq!(gpu.download::<i32>(at, COUNT).unwrap(), [13; COUNT]);
        gpu.free(at);
        destroy(&[blocking]);
    });
}

#[test]
fn events_are_ready_when_their_work_has_run() {
    let session = trail_cuda_emulator::session();
    session.emulator().unwrap().order(Order::Late);
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

/// Captures: `s` forks to `t`, both change their own array, `s` joins and sums.
fn capture(module: &Module, s: CUstream, t: CUstream, [a, b, to]: [u64; 3]) -> sys::CUgraph {
    let (fork, join) = (new_event(), new_event());
    // SAFETY: live handles; the events are destroyed after the capture.
    unsafe {
        stream::begin_capture(s, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        add(module, s, a, 1);
        event::record(fork, s).unwrap();
        stream::wait_event(t, fork, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT).unwrap();
        add(module, t, b, 10);
        add(module, s, a, 100);
        event::record(join, t).unwrap();
        stream::wait_event(s, join, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT).unwrap();
        sum(module, s, to, a, b);
        let graph = stream::end_capture(s).unwrap();
        event::destroy(fork).unwrap();
        event::destroy(join).unwrap();
        graph
    }
}

#[test]
fn a_captured_graph_runs_again_and_again() {
    in_every_order(|gpu, module, emulator| {
        let (s, t) = (new_stream(), new_stream());
        let arrays = [gpu.upload(&[0i32; COUNT]), gpu.upload(&[0i32; COUNT]), gpu.alloc(BYTES)];
        let back = Pinned::new();
        let graph = capture(module, s, t, arrays);
        // Nothing ran while it was captured.
        assert_eq!(emulator.launches(), 0);
        let mut exec = null_mut();
        // SAFETY: live handles.
        unsafe {
            sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0).result().unwrap();
            for round in 1..=3 {
                sys::cuGraphLaunch(exec, s).result().unwrap();
                to_host(s, &back, arrays[2]);
                finish(s);
                assert!((0..COUNT).all(|i| back.get(i) == round * 111));
            }
            // The third node adds 1000 instead of 100 from now on.
            let mut nodes = [null_mut(); 4];
            let mut count = 4;
            sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count).result().unwrap();
            assert_eq!(count, 4);
            let (n, value) = (COUNT as i32, 1000i32);
            let mut pointers = [
                std::ptr::from_ref(&arrays[0]).cast_mut().cast::<c_void>(),
                std::ptr::from_ref(&n).cast_mut().cast(),
                std::ptr::from_ref(&value).cast_mut().cast(),
            ];
            let mut params: sys::CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
            params.func = module.function("add");
            (params.gridDimX, params.gridDimY, params.gridDimZ) = (8, 1, 1);
            (params.blockDimX, params.blockDimY, params.blockDimZ) = (128, 1, 1);
            params.kernelParams = pointers.as_mut_ptr();
            sys::cuGraphExecKernelNodeSetParams_v2(exec, nodes[2], &params).result().unwrap();
            sys::cuGraphLaunch(exec, s).result().unwrap();
            to_host(s, &back, arrays[2]);
            finish(s);
            assert_eq!(back.get(0), 333 + 1011);
            sys::cuGraphExecDestroy(exec).result().unwrap();
            sys::cuGraphDestroy(graph).result().unwrap();
        }
        arrays.into_iter().for_each(|at| gpu.free(at));
        destroy(&[s, t]);
    });
}

#[test]
fn a_capture_that_does_not_join_is_refused() {
    let _session = trail_cuda_emulator::session();
    let gpu = Gpu::new();
    let module = gpu.load(SEMANTICS).unwrap();
    let (s, t, e, at) = (new_stream(), new_stream(), new_event(), gpu.upload(&[0i32; COUNT]));
    // SAFETY: live handles.
    unsafe {
        stream::begin_capture(s, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        event::record(e, s).unwrap();
        stream::wait_event(t, e, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT).unwrap();
        add(&module, t, at, 1);
        // Neither waiting nor allocating belongs into a capture.
        assert_eq!(sys::cuStreamSynchronize(s), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        let mut graph = null_mut();
        assert_eq!(
            sys::cuStreamEndCapture(s, &mut graph),
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED
        );
        event::destroy(e).unwrap();
    }
    gpu.free(at);
    destroy(&[s, t]);
}

//! Refusals of drivers and chips: unknown flags and attributes, calls that a capture forbids, text
//! that is too new, memory that is not there, and kernels that never end.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::common::queue::{BYTES, new_stream};
use crate::common::{Gpu, Module, SEMANTICS};
use cudarc::driver::result::{self, stream};
use cudarc::driver::sys::{self, CUresult, CUstream};
use trail_cuda_emulator::Chip;

/// Begins a capture on `stream`.
fn begin(stream: CUstream) {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: a live stream.
    unsafe { stream::begin_capture(stream, mode) }.unwrap();
}

/// A graph of one launch, on an array that is freed by the caller.
fn graph(module: &Module, stream: CUstream, at: u64) -> sys::CUgraph {
    begin(stream);
    module.launch_on(stream, "add", 1, 32, 0, vec![at.into(), 8i32.into(), 1i32.into()]).unwrap();
    // SAFETY: the capture was begun above.
    unsafe { stream::end_capture(stream) }.unwrap()
}

fn instantiate(graph: sys::CUgraph, flags: u64) -> (CUresult, sys::CUgraphExec) {
    let mut executable = null_mut();
    // SAFETY: a live graph.
    (unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, flags) }, executable)
}

#[test]
fn unknown_flags_and_attributes_are_refused() {
    let _session = trail_cuda_emulator::session();
    let gpu = Gpu::new();
    let module = gpu.load(SEMANTICS).unwrap();
    let at = gpu.upload(&[0i32; 8]);
    let s = new_stream();
    let graph = graph(&module, s, at);
    assert_eq!(instantiate(graph, 16).0, CUresult::CUDA_ERROR_INVALID_VALUE);
    // SAFETY: plain data, for which zeros are valid.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
    let config = sys::CUlaunchConfig {
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: s,
        attrs: &mut attribute,
        numAttrs: 1,
    };
    let (count, value) = (8i32, 1i32);
    let mut arguments = [
        std::ptr::from_ref(&at).cast_mut().cast::<c_void>(),
        std::ptr::from_ref(&count).cast_mut().cast(),
        std::ptr::from_ref(&value).cast_mut().cast(),
    ];
    let add = module.function("add");
    // SAFETY: the arguments are the kernel's.
    let code = unsafe { sys::cuLaunchKernelEx(&config, add, arguments.as_mut_ptr(), null_mut()) };
    assert_eq!(code, CUresult::CUDA_ERROR_INVALID_VALUE);
    // SAFETY: made above, destroyed once.
    unsafe { result::graph::destroy(graph) }.unwrap();
    gpu.free(at);
}

#[test]
fn a_call_that_a_capture_forbids_invalidates_it() {
    let _session = trail_cuda_emulator::session();
    let _gpu = Gpu::new();
    let s = new_stream();
    // SAFETY: a live stream; an allocation that is refused.
    let forbidden: [fn(CUstream) -> CUresult; 3] = [
        |s| unsafe { sys::cuStreamQuery(s) },
        |s| unsafe { sys::cuStreamSynchronize(s) },
        |_| unsafe { sys::cuMemAlloc_v2(&mut 0, BYTES) },
    ];
    for call in forbidden {
        begin(s);
        assert_eq!(call(s), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        // SAFETY: the capture was begun above.
        let ended = unsafe { stream::end_capture(s) };
        assert_eq!(ended.unwrap_err().0, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
}

/// A graph takes device memory when it is uploaded or launched first, and gives it back.
#[test]
fn a_graph_takes_memory() {
    let session = trail_cuda_emulator::session();
    let emulator = session.emulator().unwrap();
    let gpu = Gpu::new();
    let module = gpu.load(SEMANTICS).unwrap();
    let at = gpu.upload(&[0i32; 8]);
    let s = new_stream();
    let graph = graph(&module, s, at);
    let free = || result::mem_get_info().unwrap().0;
    let before = free();
    let (code, executable) = instantiate(graph, 0);
    assert_eq!((code, free()), (CUresult::CUDA_SUCCESS, before));
    // SAFETY: live handles.
    unsafe {
        sys::cuGraphUpload(executable, s).result().unwrap();
        assert_eq!(free(), before - (64 << 10));
        result::graph::exec_destroy(executable).unwrap();
        assert_eq!(free(), before);
        // As much as is taken, and no more.
        let taken = result::mem_get_info().unwrap();
        emulator.memory((taken.1 - taken.0) as u64);
        let (_, executable) = instantiate(graph, 0);
        let launched = sys::cuGraphLaunch(executable, s);
        assert_eq!(launched, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        result::graph::exec_destroy(executable).unwrap();
        result::graph::destroy(graph).unwrap();
    }
    gpu.free(at);
}

#[test]
fn the_priorities_of_streams_are_lost_without_their_flag() {
    let session = trail_cuda_emulator::session();
    let gpu = Gpu::new();
    let module = gpu.load(SEMANTICS).unwrap();
    let at = gpu.upload(&[0i32; 8]);
    let s = new_stream();
    let high = result::stream::create_with_priority(result::stream::StreamKind::NonBlocking, -5);
    let high = high.unwrap();
    begin(s);
    let add = |to| module.launch_on(to, "add", 1, 32, 0, vec![at.into(), 8i32.into(), 1i32.into()]);
    // SAFETY: live handles.
    let graph = unsafe {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let (fork, join) =
            (result::event::create(flags).unwrap(), result::event::create(flags).unwrap());
        let wait = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        result::event::record(fork, s).unwrap();
        stream::wait_event(high, fork, wait).unwrap();
        add(high).unwrap();
        result::event::record(join, high).unwrap();
        stream::wait_event(s, join, wait).unwrap();
        add(s).unwrap();
        let graph = stream::end_capture(s).unwrap();
        result::event::destroy(fork).unwrap();
        result::event::destroy(join).unwrap();
        graph
    };
    for (flags, found) in [(8, 0), (0, 1)] {
        let (_, executable) = instantiate(graph, flags);
        let findings = session.take_findings();
        assert_eq!(findings.len(), found, "{findings:?}");
        assert!(findings.iter().all(|text| text.contains("USE_NODE_PRIORITY")), "{findings:?}");
        // SAFETY: made above, destroyed once.
        unsafe { result::graph::exec_destroy(executable) }.unwrap();
    }
    // SAFETY: as above.
    unsafe { result::graph::destroy(graph) }.unwrap();
    gpu.free(at);
}

#[test]
fn text_and_memory_have_bounds() {
    let session = trail_cuda_emulator::session();
    let emulator = session.emulator().unwrap();
    emulator.chip(Chip::L4);
    emulator.driver(12_000);
    emulator.host_memory(1 << 20);
    let gpu = Gpu::new();
    let newer = SEMANTICS.replacen(".version", "// .version", 1);
    let newer = format!(".version 8.4\n{newer}");
    let code = gpu.load(&newer).err().map(|code| code.0);
    assert_eq!(code, Some(CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION));
    // SAFETY: freed below where it is allocated.
    unsafe {
        assert_eq!(
            result::malloc_host((1 << 20) + 1, 0).unwrap_err().0,
            CUresult::CUDA_ERROR_OUT_OF_MEMORY
        );
        let host = result::malloc_host(1 << 20, 0).unwrap();
        result::free_host(host).unwrap();
    }
}

#[test]
fn a_kernel_that_never_ends_is_never_done() {
    let session = trail_cuda_emulator::session();
    let emulator = session.emulator().unwrap();
    let gpu = Gpu::new();
    let module = gpu.load(SEMANTICS).unwrap();
    let at = gpu.upload(&[0i32; 8]);
    emulator.hang(1);
    let s = new_stream();
    module.launch_on(s, "add", 1, 32, 0, vec![at.into(), 8i32.into(), 1i32.into()]).unwrap();
    for _ in 0..100 {
        // SAFETY: a live stream.
        assert_eq!(unsafe { sys::cuStreamQuery(s) }, CUresult::CUDA_ERROR_NOT_READY);
    }
    // Nothing is freed: it goes with the context.
    std::mem::forget(module);
    std::mem::forget(gpu);
    emulator.forget_context();
}

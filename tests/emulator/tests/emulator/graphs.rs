//! Graphs by stream capture: they run as captured, again and again, and what does not join is
//! refused.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::common::queue::*;
use crate::common::{Gpu, Module, SEMANTICS};
use cudarc::driver::result::{event, stream};
use cudarc::driver::sys::{self, CUresult, CUstream};

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

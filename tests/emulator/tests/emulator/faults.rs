//! Planned failures: the nth allocation, launch or copy, and a lost device; the next session finds
//! all well again.

use crate::common::{Gpu, SEMANTICS};
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUresult};
use trail_cuda_emulator::Failing;

#[test]
fn the_nth_allocation_fails() {
    let session = trail_cuda_emulator::session();
    let gpu = Gpu::new();
    session.emulator().unwrap().fail(
        Failing::Allocation,
        2,
        CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32,
    );
    let first = gpu.alloc(16);
    // SAFETY: freed below, if it were allocated.
    let second = unsafe { result::malloc_sync(16) };
    assert_eq!(second.unwrap_err().0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let third = gpu.alloc(16);
    gpu.free(first);
    gpu.free(third);
}

#[test]
fn a_small_device_runs_out_of_memory() {
    let session = trail_cuda_emulator::session();
    session.emulator().unwrap().memory(600 << 20);
    let gpu = Gpu::new();
    let (free, total) = result::mem_get_info().unwrap();
    assert_eq!(total, 600 << 20);
    // SAFETY: freed below.
    unsafe {
        assert_eq!(
            result::malloc_sync(free + 1).unwrap_err().0,
            CUresult::CUDA_ERROR_OUT_OF_MEMORY
        );
        let at = result::malloc_sync(free).unwrap();
        gpu.free(at);
    }
}

#[test]
fn the_nth_launch_and_copy_fail() {
    let session = trail_cuda_emulator::session();
    let gpu = Gpu::new();
    let module = gpu.load(SEMANTICS).unwrap();
    let at = gpu.upload(&[0i32; 16]);
    let emulator = session.emulator().unwrap();
    emulator.fail(Failing::Launch, 1, CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES as u32);
    emulator.fail(Failing::Copy, 2, CUresult::CUDA_ERROR_UNKNOWN as u32);
    let add = || module.launch("add", 1, 32, 0, vec![at.into(), 16i32.into(), 1i32.into()]);
    assert_eq!(add().unwrap_err().0, CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    add().unwrap();
    assert_eq!(gpu.download::<i32>(at, 16).unwrap(), [1; 16]);
    assert_eq!(gpu.download::<i32>(at, 16).unwrap_err().0, CUresult::CUDA_ERROR_UNKNOWN);
    assert_eq!(gpu.download::<i32>(at, 16).unwrap(), [1; 16]);
    gpu.free(at);
}

#[test]
fn a_lost_device_fails_every_call() {
    let session = trail_cuda_emulator::session();
    let gpu = Gpu::new();
    let at = gpu.upload(&[0i32; 16]);
    let emulator = session.emulator().unwrap();
    emulator.lose_device(CUresult::CUDA_ERROR_UNKNOWN as u32);
    assert_eq!(gpu.sync_code(), CUresult::CUDA_ERROR_UNKNOWN);
    assert_eq!(gpu.download::<i32>(at, 16).unwrap_err().0, CUresult::CUDA_ERROR_UNKNOWN);
    // SAFETY: asks for a number.
    let count = unsafe { sys::cuDeviceGetCount(&mut 0) };
    assert_eq!(count, CUresult::CUDA_ERROR_UNKNOWN);
    emulator.lose_device(0);
    gpu.free(at);
}

#[test]
fn launches_that_no_device_takes_are_refused() {
    let _session = trail_cuda_emulator::session();
    let gpu = Gpu::new();
    let module = gpu.load(SEMANTICS).unwrap();
    let at = gpu.upload(&[0i32; 16]);
    let add = |blocks, threads, shared| {
        module.launch("add", blocks, threads, shared, vec![at.into(), 16i32.into(), 1i32.into()])
    };
    for (blocks, threads, shared) in [(0, 32, 0), (1, 0, 0), (1, 2000, 0), (1, 32, 60 << 10)] {
        assert_eq!(add(blocks, threads, shared).unwrap_err().0, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let function = module.function("add");
    let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: a live function.
    unsafe {
        result::function::set_function_attribute(function, attribute, 60 << 10).unwrap();
        assert!(result::function::set_function_attribute(function, attribute, 164 << 10).is_err());
    }
    add(1, 32, 60 << 10).unwrap();
    gpu.sync().unwrap();
    gpu.free(at);
}

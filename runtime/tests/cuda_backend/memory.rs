//! Memory of the device and of the host: owned, freed, and clear about what there is too little of.

use cudarc::driver::sys::CUresult;
use std::sync::Arc;
use trail_cuda_emulator::Failing;
use trail_ptx::DevicePtr;
use trail_runtime::cuda::{CudaError, Device, Priority};

#[test]
fn what_a_device_holds_is_freed_on_any_thread() {
    let session = trail_cuda_emulator::session();
    let device = Arc::new(Device::open(0).unwrap());
    let (memory, pinned) = (device.alloc(0, "x").unwrap(), device.alloc_pinned(100, "y").unwrap());
    assert_eq!((memory.bytes(), pinned.bytes()), (0, 100));
    assert!(
        memory.device_ptr::<u8>() != DevicePtr::NULL
            && pinned.device_ptr::<u8>() != DevicePtr::NULL
            && !pinned.as_ptr().is_null()
    );
    if let Some(emulator) = session.emulator() {
        assert_eq!(emulator.live_allocations(), 2);
    }
    // The last hold of the context goes on a thread that never bound it.
    drop(device);
    std::thread::spawn(move || drop((memory, pinned))).join().unwrap();
    if let Some(emulator) = session.emulator() {
        assert_eq!(emulator.live_allocations(), 0);
    }
}

#[test]
fn too_little_memory_is_reported_with_figures_and_help() {
    let session = trail_cuda_emulator::session();
    let device = Device::open(0).unwrap();
    let free = device.free_bytes().unwrap();
    let error = device.alloc(free * 2, "the weights").err().unwrap();
    let wanted = format!(
        "out of device memory for the weights: {} bytes needed, {free} free; ask for less",
        free * 2
    );
    assert_eq!(error.or_try("ask for less").to_string(), wanted);
    let Some(emulator) = session.emulator() else { return };
    emulator.fail(Failing::Allocation, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32);
    let error = device.alloc_pinned(64, "a ring").err().unwrap();
    assert!(
        error.to_string().starts_with("out of pinned host memory for a ring: 64 bytes needed; "),
        "{error}"
    );
    emulator.fail(Failing::Allocation, 1, CUresult::CUDA_ERROR_NOT_PERMITTED as u32);
    let error = device.alloc(64, "a ring").err().unwrap();
    let wanted = "allocating 64 bytes for a ring: CUDA_ERROR_NOT_PERMITTED (800)";
    assert_eq!(error.to_string(), wanted);
}

#[test]
fn zeros_are_written_before_anybody_reads() {
    let _session = trail_cuda_emulator::session();
    let device = Device::open(0).unwrap();
    let stream = device.stream(Priority::High).unwrap();
    let event = device.event().unwrap();
    let zeros = device.alloc_zeros(1000, "zeros").unwrap();
    let mut host = vec![7u8; 1000];
    // SAFETY: both have 1000 bytes and outlive the copy, which the event ends.
    unsafe {
        cudarc::driver::result::memcpy_dtoh_async(
            &mut host,
            zeros.device_ptr::<u8>().address(),
            stream.cu_stream(),
        )
        .unwrap();
    }
    event.record(&stream).unwrap();
    event.synchronize().unwrap();
    assert!(host.iter().all(|&byte| byte == 0));
}

/// A lost device takes nothing back: that is said once, and nothing panics or counts as a leak.
#[test]
fn a_drop_that_fails_is_reported_by_the_next_call() {
    let session = trail_cuda_emulator::session();
    let Some(emulator) = session.emulator() else { return };
    let device = Device::open(0).unwrap();
    assert!(device.parked().is_none());
    let (first, second) = (device.alloc(16, "a").unwrap(), device.alloc_pinned(16, "b").unwrap());
    emulator.lose_device(CUresult::CUDA_ERROR_UNKNOWN as u32);
    drop((first, second));
    let error = device.alloc(16, "c").err().unwrap();
    assert_eq!(error.to_string(), "freeing a: CUDA_ERROR_UNKNOWN (999)");
    assert!(matches!(device.alloc(16, "c"), Err(CudaError::Driver { .. })));
    assert!(device.parked().is_none());
    drop(device.alloc(16, "d"));
}

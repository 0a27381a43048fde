//! Device and host memory.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use super::config::Target;
use super::queue::Work;
use super::state::{Handle, State, lock, ready};
use super::stream::queue;
use super::{Code, api, error, put, run};
use crate::memory::{Allocation, Kind, State as Life};
use crate::report::{Finding, Kind as Fault};

fn allocate(
    state: &mut State,
    bytes: usize,
    kind: Kind,
    life: Life,
) -> Result<Arc<Allocation>, Code> {
    if bytes == 0 {
        return Err(error::INVALID_VALUE);
    }
    if !state.captures.is_empty() && life == Life::Live {
        let capturing: Vec<Handle> = state.streams.keys().copied().collect();
        capturing.into_iter().try_for_each(|stream| state.invalidate_capture(stream))?;
    }
    state.config.count(Target::Allocation)?;
    let room = match kind {
        Kind::Device => state.free_bytes(),
        _ => state.config.host_memory.saturating_sub(state.memory.pinned()),
    };
    if bytes as u64 > room {
        return Err(error::OUT_OF_MEMORY);
    }
    state.memory.allocate(bytes as u64, kind, life, "").ok_or(error::OUT_OF_MEMORY)
}

/// The live allocation that starts at `at`, or a finding.
fn owned(state: &mut State, at: u64, kind: &[Kind]) -> Result<Arc<Allocation>, Code> {
    match state.memory.at_base(at).filter(|allocation| kind.contains(&allocation.kind)).cloned() {
        Some(allocation) => Ok(allocation),
        None => {
            let what = state
                .memory
                .find(at)
                .map_or_else(|| "in no allocation".to_owned(), |a| format!("in {a}"));
            state.report(Finding::host(Fault::Host, format!("free of {at:#x}, which is {what}")));
            Err(error::INVALID_VALUE)
        }
    }
}

/// Frees what starts at `at` though the device is lost or its context broken, where every call
/// fails: who tried has not leaked it.
fn freed_in_vain(at: u64, code: Code) -> Code {
    let mut state = lock();
    if state.health().is_err()
        && let Some(allocation) = state.memory.at_base(at).cloned()
    {
        state.memory.free(&allocation);
    }
    code
}

api! {
    fn cuMemAlloc_v2(at: *mut u64, bytes: usize) {
        let allocation = allocate(&mut *ready()?, bytes, Kind::Device, Life::Live)?;
        // SAFETY: the API's contract.
        unsafe { put(at, allocation.base) }
    }

    fn cuMemAllocManaged(_at: *mut u64, _bytes: usize, _flags: c_uint) {
        super::unsupported::say("cuMemAllocManaged")
    }

    fn cuMemAllocAsync(at: *mut u64, bytes: usize, stream: Handle) {
        let mut state = ready()?;
        let allocation = allocate(&mut state, bytes, Kind::Device, Life::Pending)?;
        drop(queue(state, stream, Work::Born(allocation.clone()))?);
        // SAFETY: the API's contract.
        unsafe { put(at, allocation.base) }
    }

    fn cuMemAllocFromPoolAsync(at: *mut u64, bytes: usize, _pool: Handle, stream: Handle) {
        let mut state = ready()?;
        let allocation = allocate(&mut state, bytes, Kind::Device, Life::Pending)?;
        drop(queue(state, stream, Work::Born(allocation.clone()))?);
        // SAFETY: the API's contract.
        unsafe { put(at, allocation.base) }
    }

    // Does not wait for queued work: the API does not promise it, and work that still uses the
    // memory is then found out.
    fn cuMemFree_v2(at: u64) {
        let mut state = run::wait_if_hung(ready().map_err(|code| freed_in_vain(at, code))?);
        if at == 0 {
            return Ok(());
        }
        if !state.captures.is_empty() {
            return Err(error::STREAM_CAPTURE_UNSUPPORTED);
        }
        let allocation = owned(&mut state, at, &[Kind::Device])?;
        state.memory.free(&allocation);
        Ok(())
    }

    fn cuMemFreeAsync(at: u64, stream: Handle) {
        let mut state = ready().map_err(|code| freed_in_vain(at, code))?;
        let allocation = owned(&mut state, at, &[Kind::Device])?;
        queue(state, stream, Work::Free(allocation)).map(|_| ())
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let state = ready()?;
        let (all, left) = (state.config.memory, state.free_bytes());
        // SAFETY: the API's contract.
        unsafe { put(free, left as usize).and(put(total, all as usize)) }
    }

    fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, at: u64) {
        let state = ready()?;
        let allocation = state.memory.check(at, 1).map_err(|_| error::NOT_FOUND)?;
        if !base.is_null() {
            // SAFETY: the API's contract.
            unsafe { put(base, allocation.base)? };
        }
        // SAFETY: null, or the API's contract.
        if bytes.is_null() { Ok(()) } else { unsafe { put(bytes, allocation.bytes as usize) } }
    }

    fn cuMemHostAlloc(host: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        let allocation = allocate(&mut *ready()?, bytes, Kind::Host, Life::Live)?;
        // SAFETY: the API's contract.
        unsafe { put(host, allocation.base as *mut c_void) }
    }

    fn cuMemAllocHost_v2(host: *mut *mut c_void, bytes: usize) {
        let allocation = allocate(&mut *ready()?, bytes, Kind::Host, Life::Live)?;
        // SAFETY: the API's contract.
        unsafe { put(host, allocation.base as *mut c_void) }
    }

    fn cuMemFreeHost(host: *mut c_void) {
        let state = ready().map_err(|code| freed_in_vain(host as u64, code))?;
        let mut state = run::wait_if_hung(state);
        state.posted.land_all();
        let allocation = owned(&mut state, host as u64, &[Kind::Host])?;
        state.memory.free(&allocation);
        Ok(())
    }

    fn cuMemHostRegister_v2(host: *mut c_void, bytes: usize, _flags: c_uint) {
        let mut state = ready()?;
        if host.is_null() || bytes == 0 {
            return Err(error::INVALID_VALUE);
        }
        if state.memory.check(host as u64, 1).is_ok() {
            return Err(error::HOST_MEMORY_ALREADY_REGISTERED);
        }
        state.config.count(Target::Allocation)?;
        state.memory.register(host.cast(), bytes as u64);
        Ok(())
    }

    fn cuMemHostUnregister(host: *mut c_void) {
        let mut state = ready()?;
        state.posted.land_all();
        let found = state.memory.at_base(host as u64).filter(
            |allocation| allocation.kind == Kind::Registered).cloned();
        let allocation = found.ok_or(error::HOST_MEMORY_NOT_REGISTERED)?;
        state.memory.free(&allocation);
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(at: *mut u64, host: *mut c_void, _flags: c_uint) {
        ready()?.memory.check(host as u64, 1).map_err(|_| error::INVALID_VALUE)?;
        // SAFETY: the API's contract.
        unsafe { put(at, host as u64) }
    }

    fn cuMemHostGetFlags(flags: *mut c_uint, host: *mut c_void) {
        ready()?.memory.check(host as u64, 1).map_err(|_| error::INVALID_VALUE)?;
        // SAFETY: the API's contract.
        unsafe { put(flags, 0) }
    }

    // The attributes that say what a pointer is: memory type, device pointer, host pointer,
    // ordinal.
    fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint, at: u64) {
        let allocation = ready()?.memory.check(at, 1).map_err(|_| error::INVALID_VALUE)?;
        let on_host = matches!(allocation.kind, Kind::Host | Kind::Registered);
        // SAFETY: the API's contract, for each attribute's type.
        unsafe {
            match attribute {
                2 => put(data.cast::<c_uint>(), if on_host { 1 } else { 2 }),
                3 => put(data.cast::<u64>(), at),
                4 if on_host => put(data.cast::<u64>(), at),
                9 => put(data.cast::<c_int>(), 0),
                _ => Err(error::INVALID_VALUE),
            }
        }
    }

    fn cuDeviceGetDefaultMemPool(pool: *mut Handle, _device: c_int) {
        // SAFETY: the API's contract.
        unsafe { put(pool, 0x7D00_0000_0040) }
    }

    fn cuDeviceGetMemPool(pool: *mut Handle, _device: c_int) {
        // SAFETY: the API's contract.
        unsafe { put(pool, 0x7D00_0000_0040) }
    }

    fn cuMemPoolSetAttribute(_pool: Handle, _attribute: c_uint, _value: *mut c_void) {
        ready().map(|_| ())
    }

    fn cuMemPoolTrimTo(_pool: Handle, _bytes: usize) {
        ready().map(|_| ())
    }
}

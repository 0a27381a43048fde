//! The context. There is one: `cuCtxCreate` holds the primary one under the same handle.

use std::ffi::{c_int, c_uint};

use super::config::Target;
use super::device::exists;
use super::state::{Handle, RESERVED, State, lock, ready};
use super::{Answer, CURRENT, Code, api, error, put, run};

fn retain(state: &mut State) -> Result<Handle, Code> {
    if state.retained == 0 {
        state.config.count(Target::Context)?;
        if state.config.memory < RESERVED {
            return Err(error::OUT_OF_MEMORY);
        }
        state.context = state.handle();
    }
    state.retained += 1;
    Ok(state.context)
}

/// Gives the context up; the last one to do so ends it, after all work.
fn release() -> Answer {
    let mut state = lock();
    if state.retained == 0 {
        return Err(error::INVALID_CONTEXT);
    }
    if state.retained == 1 {
        state = run::all(state);
        let error = state.sticky;
        state.destroy_context();
        return error.map_or(Ok(()), Err);
    }
    state.retained -= 1;
    Ok(())
}

api! {
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) {
        exists(device)?;
        let handle = retain(&mut lock())?;
        // SAFETY: the API's contract.
        unsafe { put(context, handle) }
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        exists(device)?;
        release()
    }

    fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        exists(device)?;
        let mut state = run::all(lock());
        let retained = state.retained;
        state.destroy_context();
        if retained > 0 {
            state.context = state.handle();
            state.retained = retained;
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) {
        exists(device)
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) {
        exists(device)?;
        let is_active = c_int::from(lock().retained > 0);
        // SAFETY: the API's contract.
        unsafe { put(flags, 0).and(put(active, is_active)) }
    }

    fn cuCtxCreate_v2(context: *mut Handle, _flags: c_uint, device: c_int) {
        exists(device)?;
        let handle = retain(&mut lock())?;
        CURRENT.set(handle);
        // SAFETY: the API's contract.
        unsafe { put(context, handle) }
    }

    fn cuCtxDestroy_v2(context: Handle) {
        if context == 0 || lock().context != context {
            return Err(error::INVALID_CONTEXT);
        }
        release()
    }

    fn cuCtxSetCurrent(context: Handle) {
        let state = lock();
        if !state.initialised {
            return Err(error::NOT_INITIALIZED);
        }
        if context != 0 && context != state.context {
            return Err(error::INVALID_CONTEXT);
        }
        CURRENT.set(context);
        Ok(())
    }

    fn cuCtxGetCurrent(context: *mut Handle) {
        let current = CURRENT.get();
        let live = if current == lock().context { current } else { 0 };
        // SAFETY: the API's contract.
        unsafe { put(context, live) }
    }

    fn cuCtxPushCurrent_v2(context: Handle) {
        if context == 0 || lock().context != context {
            return Err(error::INVALID_CONTEXT);
        }
        CURRENT.set(context);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: *mut Handle) {
        let current = CURRENT.replace(0);
        // SAFETY: null, or the API's contract.
        if context.is_null() { Ok(()) } else { unsafe { put(context, current) } }
    }

    fn cuCtxGetDevice(device: *mut c_int) {
        drop(ready()?);
        // SAFETY: the API's contract.
        unsafe { put(device, 0) }
    }

    fn cuCtxSynchronize() {
        let state = ready()?;
        if !state.captures.is_empty() {
            return Err(error::STREAM_CAPTURE_UNSUPPORTED);
        }
        run::all(state).health()
    }

    fn cuCtxSetFlags(_flags: c_uint) {
        ready().map(|_| ())
    }

    fn cuCtxGetFlags(flags: *mut c_uint) {
        drop(ready()?);
        // SAFETY: the API's contract.
        unsafe { put(flags, 0) }
    }

    fn cuCtxGetApiVersion(_context: Handle, version: *mut c_uint) {
        // SAFETY: the API's contract.
        unsafe { put(version, 12040) }
    }

    fn cuCtxGetLimit(value: *mut usize, _limit: c_uint) {
        drop(ready()?);
        // SAFETY: the API's contract.
        unsafe { put(value, 0) }
    }

    fn cuCtxSetLimit(_limit: c_uint, _value: usize) {
        ready().map(|_| ())
    }

    fn cuCtxGetCacheConfig(config: *mut c_uint) {
        drop(ready()?);
        // SAFETY: the API's contract.
        unsafe { put(config, 0) }
    }

    fn cuCtxSetCacheConfig(_config: c_uint) {
        ready().map(|_| ())
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        drop(ready()?);
        // SAFETY: the API's contract.
        unsafe { put(least, 0).and(put(greatest, -5)) }
    }

    fn cuProfilerStart() {
        Ok(())
    }

    fn cuProfilerStop() {
        Ok(())
    }
}

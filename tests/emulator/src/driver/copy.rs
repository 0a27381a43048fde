//! Copies and fills.

use std::ffi::{c_uint, c_void};
use std::sync::{Arc, MutexGuard};

use super::config::Target;
use super::queue::{HostBytes, Work};
use super::state::{Handle, State, ready};
use super::stream::{queue, queue_and_wait};
use super::{Answer, Code, api, error};
use crate::memory::POISON;
use crate::report::{Finding, Kind};

/// A range that must be within one allocation, though perhaps one that its stream has not made yet.
fn range(state: &mut State, at: u64, bytes: usize) -> Answer {
    if state.memory.find(at).is_some_and(|allocation| allocation.contains(at, bytes as u64)) {
        return Ok(());
    }
    let why = state.memory.check(at, bytes as u64).err().unwrap_or_default();
    state.report(Finding::host(Kind::Host, format!("copy or memset: {why}")));
    Err(error::INVALID_VALUE)
}

/// Checks that come before every copy: counts it, and lets empty ones pass.
fn begin(bytes: usize) -> Result<Option<MutexGuard<'static, State>>, Code> {
    let mut state = ready()?;
    state.config.count(Target::Copy)?;
    Ok((bytes > 0).then_some(state))
}

/// Does a copy from or to this host memory wait for its turn? Pinned memory does; in a capture all
/// memory does.
fn waits_its_turn(state: &State, host: usize, bytes: usize, stream: Handle) -> bool {
    let captured = state.streams.get(&stream).is_some_and(|stream| stream.capture.is_some());
    captured || state.memory.check(host as u64, bytes as u64).is_ok()
}

fn to_device(to: u64, from: *const c_void, bytes: usize, stream: Handle, wait: bool) -> Answer {
    let Some(mut state) = begin(bytes)? else { return Ok(()) };
    range(&mut state, to, bytes)?;
    if from.is_null() {
        return Err(error::INVALID_VALUE);
    }
    let from = if wait || waits_its_turn(&state, from as usize, bytes, stream) {
        HostBytes::At(from as usize)
    } else {
        // Pageable memory is taken at once, as a driver does through its staging buffer.
        // SAFETY: the caller promised `bytes` bytes there.
        HostBytes::Taken(Arc::new(
            unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) }.to_vec(),
        ))
    };
    let work = Work::ToDevice { from, to, bytes };
    if wait { queue_and_wait(state, stream, work) } else { queue(state, stream, work).map(|_| ()) }
}

fn to_host(to: *mut c_void, from: u64, bytes: usize, stream: Handle, wait: bool) -> Answer {
    let Some(mut state) = begin(bytes)? else { return Ok(()) };
    range(&mut state, from, bytes)?;
    if to.is_null() {
        return Err(error::INVALID_VALUE);
    }
    let work = Work::ToHost { from, to: to as usize, bytes };
    // Into pageable memory a driver copies before it returns.
    let waits = waits_its_turn(&state, to as usize, bytes, stream);
    if wait || !waits {
        return queue_and_wait(state, stream, work);
    }
    // Until the copy has run the destination is undefined: a host that reads it too soon must
    // not find the right bytes of an earlier copy.
    // SAFETY: the caller promised `bytes` bytes there.
    unsafe { std::ptr::write_bytes(to.cast::<u8>(), POISON, bytes) };
    queue(state, stream, work).map(|_| ())
}

fn within(to: u64, from: u64, bytes: usize, stream: Handle, wait: bool) -> Answer {
    let Some(mut state) = begin(bytes)? else { return Ok(()) };
    range(&mut state, to, bytes)?;
    range(&mut state, from, bytes)?;
    let work = Work::Within { from, to, bytes };
    // Between two places on the device even the plain call may return before the copy has run.
    let _ = wait;
    queue(state, stream, work).map(|_| ())
}

fn fill(to: u64, pattern: &[u8], count: usize, stream: Handle) -> Answer {
    let Some(mut state) = begin(count)? else { return Ok(()) };
    if !to.is_multiple_of(pattern.len() as u64) {
        return Err(error::INVALID_VALUE);
    }
    range(&mut state, to, count * pattern.len())?;
    queue(state, stream, Work::Fill { to, pattern: pattern.to_vec(), count }).map(|_| ())
}

api! {
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) {
        to_device(to, from, bytes, 0, true)
    }
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) {
        to_device(to, from, bytes, stream, false)
    }
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) {
        to_host(to, from, bytes, 0, true)
    }
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle) {
        to_host(to, from, bytes, stream, false)
    }
    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) { within(to, from, bytes, 0, true) }
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) {
        within(to, from, bytes, stream, false)
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) {
        anywhere(to, from, bytes, stream, false)
    }
    fn cuMemcpy(to: u64, from: u64, bytes: usize) { anywhere(to, from, bytes, 0, true) }

    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) { fill(to, &[value], count, 0) }
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) {
        fill(to, &[value], count, stream)
    }
    fn cuMemsetD16_v2(to: u64, value: u16, count: usize) {
        fill(to, &value.to_le_bytes(), count, 0)
    }
    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: Handle) {
        fill(to, &value.to_le_bytes(), count, stream)
    }
    fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) {
        fill(to, &value.to_le_bytes(), count, 0)
    }
    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: Handle) {
        fill(to, &value.to_le_bytes(), count, stream)
    }
}

/// A copy whose direction the addresses tell.
fn anywhere(to: u64, from: u64, bytes: usize, stream: Handle, wait: bool) -> Answer {
    let (to_known, from_known) = {
        let state = ready()?;
        (state.memory.find(to).is_some(), state.memory.find(from).is_some())
    };
    match (to_known, from_known) {
        (true, true) => within(to, from, bytes, stream, wait),
        (true, false) => to_device(to, from as *const c_void, bytes, stream, wait),
        (false, true) => to_host(to as *mut c_void, from, bytes, stream, wait),
        (false, false) => Err(error::INVALID_VALUE),
    }
}

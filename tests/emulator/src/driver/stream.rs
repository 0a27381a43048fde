//! Streams: an order of operations, and the state of a capture.

use std::ffi::{c_int, c_uint};
use std::sync::MutexGuard;

use super::queue::{Id, Work};
use super::state::{Handle, State, ready};
use super::{Answer, Code, api, error, put, run};

/// A stream.
pub(crate) struct Stream {
    /// Does not wait for the legacy stream, nor the legacy stream for it.
    pub(crate) apart: bool,
    pub(crate) priority: i32,
    pub(crate) number: u64,
    /// The capture it takes part in.
    pub(crate) capture: Option<u64>,
}

const LEGACY: [Handle; 2] = [0, 1];
const PER_THREAD: Handle = 2;

/// The handle under which a stream is kept: the legacy one is 0.
pub(crate) fn canonical(state: &State, stream: Handle) -> Result<Handle, Code> {
    if LEGACY.contains(&stream) {
        Ok(0)
    } else if stream == PER_THREAD || state.streams.contains_key(&stream) {
        Ok(stream)
    } else {
        Err(error::INVALID_HANDLE)
    }
}

/// Operations that an operation on `stream` has to wait for.
fn predecessors(state: &State, stream: Handle) -> Vec<Id> {
    let last = |handle: &Handle| state.queue.last.get(handle).copied();
    let apart = |handle: &Handle| state.streams.get(handle).is_some_and(|stream| stream.apart);
    if stream == 0 {
        // The legacy stream waits for all that do not stand apart.
        return state
            .queue
            .last
            .iter()
            .filter(|(handle, _)| !apart(handle))
            .map(|(_, &id)| id)
            .collect();
    }
    let legacy = if apart(&stream) { None } else { last(&0) };
    last(&stream).into_iter().chain(legacy).collect()
}

/// Queues work on a stream, or records it when the stream is being captured. Gives the operation
/// that was queued.
pub(crate) fn queue(
    mut state: MutexGuard<'static, State>,
    stream: Handle,
    work: Work,
) -> Result<(MutexGuard<'static, State>, Option<Id>), Code> {
    let stream = canonical(&state, stream)?;
    if let Some(capture) = state.streams.get(&stream).and_then(|stream| stream.capture) {
        state.capture(capture, stream, work)?;
        return Ok((state, None));
    }
    if stream == 0 && !state.captures.is_empty() {
        return Err(error::STREAM_CAPTURE_IMPLICIT);
    }
    let after = predecessors(&state, stream);
    Ok(queue_after(state, stream, work, after))
}

/// Queues work behind given operations and makes it the stream's last.
pub(crate) fn queue_after(
    mut state: MutexGuard<'static, State>,
    stream: Handle,
    work: Work,
    after: Vec<Id>,
) -> (MutexGuard<'static, State>, Option<Id>) {
    let id = state.queue.push(work, after);
    state.queue.last.insert(stream, id);
    run::notice();
    (run::some(state), Some(id))
}

/// The operations that the next one on `stream` would wait for.
pub(crate) fn ends(state: &State, stream: Handle) -> Vec<Id> {
    predecessors(state, stream)
}

/// Queues work and waits for it.
pub(crate) fn queue_and_wait(
    state: MutexGuard<'static, State>,
    stream: Handle,
    work: Work,
) -> Answer {
    match queue(state, stream, work)? {
        (state, Some(id)) => run::until(state, id).health(),
        (_, None) => Err(error::STREAM_CAPTURE_UNSUPPORTED),
    }
}

api! {
    fn cuStreamCreate(stream: *mut Handle, flags: c_uint) {
        let handle = create(flags, 0)?;
        // SAFETY: the API's contract.
        unsafe { put(stream, handle) }
    }

    fn cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int) {
        let handle = create(flags, priority.clamp(-5, 0))?;
        // SAFETY: the API's contract.
        unsafe { put(stream, handle) }
    }

    fn cuStreamDestroy_v2(stream: Handle) {
        let mut state = ready()?;
        // Its work still runs; the stream only takes no more.
        state.streams.remove(&stream).map(|_| ()).ok_or(error::INVALID_HANDLE)
    }

    fn cuStreamSynchronize(stream: Handle) {
        let mut state = ready()?;
        let stream = canonical(&state, stream)?;
        state.invalidate_capture(stream)?;
        for id in ends(&state, stream) {
            state = run::until(state, id);
        }
        state.posted.land_all();
        state.health()
    }

    fn cuStreamQuery(stream: Handle) {
        let mut state = ready()?;
        let stream = canonical(&state, stream)?;
        state.invalidate_capture(stream)?;
        // Polling advances the device; otherwise the host would poll without end.
        let (mut state, _) = run::one(state);
        state.health()?;
        let last = ends(&state, stream);
        if !last.iter().all(|&id| state.queue.is_done(id)) {
            return Err(error::NOT_READY);
        }
        if !last.is_empty() {
            state.posted.land_all();
        }
        Ok(())
    }

    fn cuStreamGetFlags(stream: Handle, flags: *mut c_uint) {
        let state = ready()?;
        let apart = state.streams.get(&canonical(&state, stream)?).is_some_and(
            |stream| stream.apart);
        // SAFETY: the API's contract.
        unsafe { put(flags, c_uint::from(apart)) }
    }

    fn cuStreamGetPriority(stream: Handle, priority: *mut c_int) {
        let state = ready()?;
        let value = state.streams.get(&canonical(&state, stream)?).map_or(
            0, |stream| stream.priority);
        // SAFETY: the API's contract.
        unsafe { put(priority, value) }
    }

    fn cuStreamGetId(stream: Handle, id: *mut u64) {
        let state = ready()?;
        let value = state.streams.get(&canonical(&state, stream)?).map_or(
            0, |stream| stream.number);
        // SAFETY: the API's contract.
        unsafe { put(id, value) }
    }

    fn cuStreamGetCtx(_stream: Handle, context: *mut Handle) {
        let handle = ready()?.context;
        // SAFETY: the API's contract.
        unsafe { put(context, handle) }
    }

    fn cuStreamAttachMemAsync(_stream: Handle, _at: u64, _bytes: usize, _flags: c_uint) {
        ready().map(|_| ())
    }

    fn cuStreamWaitValue32(stream: Handle, at: u64, value: u32, flags: c_uint) {
        wait_value(stream, at, u64::from(value), flags, false)
    }

    fn cuStreamWaitValue32_v2(stream: Handle, at: u64, value: u32, flags: c_uint) {
        wait_value(stream, at, u64::from(value), flags, false)
    }

    fn cuStreamWaitValue64(stream: Handle, at: u64, value: u64, flags: c_uint) {
        wait_value(stream, at, value, flags, true)
    }

    fn cuStreamWaitValue64_v2(stream: Handle, at: u64, value: u64, flags: c_uint) {
        wait_value(stream, at, value, flags, true)
    }

    fn cuStreamWriteValue32(stream: Handle, at: u64, value: u32, flags: c_uint) {
        write_value(stream, at, u64::from(value), flags, false)
    }

    fn cuStreamWriteValue32_v2(stream: Handle, at: u64, value: u32, flags: c_uint) {
        write_value(stream, at, u64::from(value), flags, false)
    }

    fn cuStreamWriteValue64(stream: Handle, at: u64, value: u64, flags: c_uint) {
        write_value(stream, at, value, flags, true)
    }

    fn cuStreamWriteValue64_v2(stream: Handle, at: u64, value: u64, flags: c_uint) {
        write_value(stream, at, value, flags, true)
    }
}

fn create(flags: c_uint, priority: i32) -> Result<Handle, Code> {
    if flags > 1 {
        return Err(error::INVALID_VALUE);
    }
    let mut state = ready()?;
    let handle = state.handle();
    let number = handle as u64;
    state.streams.insert(handle, Stream { apart: flags == 1, priority, number, capture: None });
    Ok(handle)
}

fn word(state: &State, at: u64, wide: bool) -> Answer {
    let bytes = if wide { 8 } else { 4 };
    let valid = at.is_multiple_of(bytes)
        && state.memory.find(at).is_some_and(|allocation| allocation.contains(at, bytes));
    if valid { Ok(()) } else { Err(error::INVALID_VALUE) }
}

fn wait_value(stream: Handle, at: u64, value: u64, flags: c_uint, wide: bool) -> Answer {
    let state = ready()?;
    word(&state, at, wide)?;
    queue(state, stream, Work::Wait { at, value, flags, wide }).map(|_| ())
}

/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`.
const NO_MEMORY_BARRIER: c_uint = 1;

fn write_value(stream: Handle, at: u64, value: u64, flags: c_uint, wide: bool) -> Answer {
    if flags & !NO_MEMORY_BARRIER != 0 {
        return Err(error::INVALID_VALUE);
    }
    let mut state = ready()?;
    if !state.config.memory_operations {
        let stream = canonical(&state, stream)?;
        state.invalidate_capture(stream)?;
        return Err(error::NOT_SUPPORTED);
    }
    word(&state, at, wide)?;
    queue(state, stream, Work::Store { at, value, wide, fences: flags & NO_MEMORY_BARRIER == 0 })
        .map(|_| ())
}

//! Events: a mark in a stream's order.

use std::ffi::c_uint;
use std::sync::MutexGuard;
use std::time::Instant;

use super::queue::{Id, Work};
use super::state::{Handle, State, ready};
use super::stream::{self, canonical};
use super::{Answer, api, error, put, run};

/// An event. Every record is a separate instance: a wait is for the one recorded last before.
pub(crate) struct Event {
    timed: bool,
    instance: u64,
    /// The operation of the last record.
    operation: Option<Id>,
    reached: Option<(u64, Instant)>,
    /// Recorded into a capture: its number, and the nodes that the event represents.
    pub(crate) captured: Option<(u64, Vec<usize>)>,
}

impl Event {
    /// The record `instance` ran.
    pub(crate) fn reach(&mut self, instance: u64) {
        self.reached = Some((instance, Instant::now()));
    }
}

const DISABLE_TIMING: c_uint = 2;

api! {
    fn cuEventCreate(event: *mut Handle, flags: c_uint) {
        let mut state = ready()?;
        let handle = state.handle();
        let timed = flags & DISABLE_TIMING == 0;
        state.events.insert(
            handle, Event { timed, instance: 0, operation: None, reached: None, captured: None });
        // SAFETY: the API's contract.
        unsafe { put(event, handle) }
    }

    fn cuEventDestroy_v2(event: Handle) {
        ready()?.events.remove(&event).map(|_| ()).ok_or(error::INVALID_HANDLE)
    }

    fn cuEventRecord(event: Handle, stream: Handle) {
        record(event, stream)
    }

    fn cuEventRecordWithFlags(event: Handle, stream: Handle, _flags: c_uint) {
        record(event, stream)
    }

    fn cuEventQuery(event: Handle) {
        let (state, _) = run::one(ready()?);
        state.health()?;
        let event = state.events.get(&event).ok_or(error::INVALID_HANDLE)?;
        if event.captured.is_some() {
            return Err(error::CAPTURED_EVENT);
        }
        if event.operation.is_none_or(|id| state.queue.is_done(id)) { Ok(()) } else {
            Err(error::NOT_READY) }
    }

    fn cuEventSynchronize(event: Handle) {
        let state = ready()?;
        let event = state.events.get(&event).ok_or(error::INVALID_HANDLE)?;
        if event.captured.is_some() {
            return Err(error::CAPTURED_EVENT);
        }
        match event.operation {
            Some(id) => run::until(state, id).health(),
            None => Ok(()),
        }
    }

    fn cuEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle) {
        let value = elapsed(start, end)?;
        // SAFETY: the API's contract.
        unsafe { put(milliseconds, value) }
    }

    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: Handle, end: Handle) {
        let value = elapsed(start, end)?;
        // SAFETY: the API's contract.
        unsafe { put(milliseconds, value) }
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) {
        let mut state = ready()?;
        let stream = canonical(&state, stream)?;
        let (operation, captured) = {
            let event = state.events.get(&event).ok_or(error::INVALID_HANDLE)?;
            (event.operation, event.captured.clone())
        };
        if let Some((capture, nodes)) = captured {
            return state.join_capture(capture, stream, &nodes);
        }
        if state.streams.get(&stream).is_some_and(|stream| stream.capture.is_some()) {
            // An event from outside a capture cannot be waited for inside.
            return if operation.is_some() { Err(error::STREAM_CAPTURE_ISOLATION) } else { Ok(()) };
        }
        let Some(operation) = operation else { return Ok(()) };
        let mut after = stream::ends(&state, stream);
        after.push(operation);
        let _done: (MutexGuard<'static, State>, _) = stream::queue_after(
            state, stream, Work::Join, after);
        Ok(())
    }
}

fn record(event: Handle, stream: Handle) -> Answer {
    let mut state = ready()?;
    let canonical = canonical(&state, stream)?;
    if !state.events.contains_key(&event) {
        return Err(error::INVALID_HANDLE);
    }
    if let Some(capture) = state.streams.get(&canonical).and_then(|stream| stream.capture) {
        let ends = state
            .captures
            .get(&capture)
            .and_then(|capture| capture.ends.get(&canonical))
            .cloned()
            .unwrap_or_default();
        if let Some(event) = state.events.get_mut(&event) {
            event.captured = Some((capture, ends));
        }
        return Ok(());
    }
    let instance = state.events.get_mut(&event).map_or(0, |event| {
        event.captured = None;
        event.instance += 1;
        event.instance
    });
    let (mut state, id) = stream::queue(state, stream, Work::Record { event, instance })?;
    if let Some(event) = state.events.get_mut(&event) {
        event.operation = id;
    }
    Ok(())
}

fn elapsed(start: Handle, end: Handle) -> Result<f32, u32> {
    let state = ready()?;
    let when = |event: Handle| {
        let event = state.events.get(&event).ok_or(error::INVALID_HANDLE)?;
        if !event.timed || event.instance == 0 {
            return Err(error::INVALID_HANDLE);
        }
        match event.reached {
            Some((instance, when)) if instance == event.instance => Ok(when),
            _ => Err(error::NOT_READY),
        }
    };
    let (start, end) = (when(start)?, when(end)?);
    // Like a device's, the result may be negative.
    Ok(if end >= start {
        (end - start).as_secs_f32() * 1e3
    } else {
        -(start - end).as_secs_f32() * 1e3
    })
}

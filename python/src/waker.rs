//! Wake-ups of an event loop: the engine's thread never takes the interpreter's lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use pyo3::prelude::*;

use crate::error;

/// Numbers of the streams that have events.
#[derive(Default)]
struct Ready {
    streams: Vec<u64>,
    is_stopped: bool,
}

#[derive(Default)]
pub(crate) struct Shared {
    ready: Mutex<Ready>,
    changed: Condvar,
    next_stream: AtomicU64,
}

impl Shared {
    /// A number for a new stream.
    pub(crate) fn number(&self) -> u64 {
        self.next_stream.fetch_add(1, Ordering::Relaxed)
    }

    /// Reports that `stream` has events.
    pub(crate) fn wake(&self, stream: u64) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.streams.push(stream);
        if ready.streams.len() == 1 {
            self.changed.notify_one();
        }
    }

    /// Waits for streams with events; `None` once stopped.
    fn wait(&self) -> Option<Vec<u64>> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |ready: &mut Ready| ready.streams.is_empty() && !ready.is_stopped;
        let ready = self.changed.wait_while(ready, waits);
        let mut ready = ready.unwrap_or_else(PoisonError::into_inner);
        (!ready.is_stopped).then(|| std::mem::take(&mut ready.streams))
    }
}

/// Calls a function with the numbers of the streams that have events, on a dedicated thread.
#[pyclass(frozen, module = "trail_rt._native")]
pub(crate) struct Waker {
    pub(crate) shared: Arc<Shared>,
}

#[pymethods]
impl Waker {
    #[new]
    fn new(callback: Py<PyAny>) -> PyResult<Waker> {
        let shared = Arc::<Shared>::default();
        let of_thread = shared.clone();
        let run = move || {
            while let Some(streams) = of_thread.wait() {
                // No interpreter any more, or a closed loop.
                let call = Python::try_attach(|py| callback.call1(py, (streams,)).is_ok());
                if call != Some(true) {
                    break;
                }
            }
            Python::try_attach(|_| drop(callback));
        };
        let thread = std::thread::Builder::new().name("trail-waker".into());
        thread.spawn(run).map_err(|why| error::engine(format!("cannot start a thread: {why}")))?;
        Ok(Waker { shared })
    }

    /// Ends the thread.
    fn stop(&self) {
        self.shared.ready.lock().unwrap_or_else(PoisonError::into_inner).is_stopped = true;
        self.shared.changed.notify_one();
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.stop();
    }
}

//! Ctrl-C in a long computation.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(100);

/// Looks for signals while the interpreter's lock is free for others.
pub(crate) struct Signals {
    looked: Instant,
    found: PyResult<()>,
}

impl Signals {
    pub(crate) fn new() -> Signals {
        Signals { looked: Instant::now(), found: Ok(()) }
    }

    /// True from a signal on whose handler raised an exception; costs little however often it is
    /// asked.
    pub(crate) fn raised(&mut self) -> bool {
        if self.found.is_ok() && self.looked.elapsed() >= INTERVAL {
            self.looked = Instant::now();
            self.found = Python::attach(|py| py.check_signals());
        }
        self.found.is_err()
    }

    /// The exception, if there was one.
    pub(crate) fn into_result(self) -> PyResult<()> {
        self.found
    }
}

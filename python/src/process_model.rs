//! A model with its engine, and the process that opened it.

use std::ops::Deref;
use std::process;

use pyo3::PyResult;
use trail_cli::OpenModel;

use crate::error;

/// A model that answers in the process that opened it alone: a child made by a fork has none of the
/// engine's threads.
pub(crate) struct ProcessModel {
    /// `None` while it is dropped.
    model: Option<OpenModel>,
    process: u32,
}

impl ProcessModel {
    pub(crate) fn new(model: OpenModel) -> ProcessModel {
        ProcessModel { model: Some(model), process: process::id() }
    }

    /// Refuses a call of another process.
    pub(crate) fn check_process(&self) -> PyResult<()> {
        match process::id() == self.process {
            true => Ok(()),
            false => {
                Err(error::engine("the engine is another process's: open the model after the fork"))
            }
        }
    }
}

impl Deref for ProcessModel {
    type Target = OpenModel;

    fn deref(&self) -> &OpenModel {
        self.model.as_ref().expect("until it is dropped")
    }
}

impl Drop for ProcessModel {
    /// Leaves the engine to its process: a child would wait for threads that it does not have.
    fn drop(&mut self) {
        if self.check_process().is_err() {
            std::mem::forget(self.model.take());
        }
    }
}

//! Exceptions, by kind.

// The macros make public types.
#![allow(missing_docs)]

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(trail_rt, TrailError, PyException, "The base of all exceptions of trail_rt.");
create_exception!(
    trail_rt,
    ModelError,
    TrailError,
    "A model, a probe, a trace or an option cannot be used."
);
create_exception!(trail_rt, RequestError, TrailError, "A request or an argument is invalid.");
create_exception!(
    trail_rt,
    EngineError,
    TrailError,
    "The engine is full, has stopped, or broke down: the request may be tried again."
);

/// An error about a model, its files or its options.
pub(crate) fn model(error: impl ToString) -> PyErr {
    ModelError::new_err(error.to_string())
}

/// An error in a request.
pub(crate) fn request(error: impl ToString) -> PyErr {
    RequestError::new_err(error.to_string())
}

/// An error of the engine.
pub(crate) fn engine(error: impl ToString) -> PyErr {
    EngineError::new_err(error.to_string())
}

/// An error of a submission.
pub(crate) fn submission(error: &trail_cli::Error) -> PyErr {
    match error.code() {
        2 => request(error),
        _ => engine(error),
    }
}

//! The filter of a probe's predictions: token by token, each answer for itself.

use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use trail_probe::{CheckedTracker, Filter};

use crate::{arrays, error};

/// Expectation of the rest of an answer, tokens.
#[pyclass(frozen, get_all, module = "trail_rt._native")]
pub(crate) struct Estimate {
    remaining: f32,
    p10: f32,
    p50: f32,
    p90: f32,
}

/// The filter of a probe's predictions.
#[pyclass(frozen, module = "trail_rt._native")]
pub(crate) struct Tracker {
    bins: usize,
    tracker: Mutex<CheckedTracker>,
}

impl Tracker {
    pub(crate) fn new(filter: Filter, max_requests: usize) -> PyResult<Tracker> {
        let bins = filter.bins().count();
        let tracker = CheckedTracker::new(filter, max_requests).map_err(error::request)?;
        Ok(Tracker { bins, tracker: Mutex::new(tracker) })
    }

    fn lock(&self) -> MutexGuard<'_, CheckedTracker> {
        self.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Tracker {
    /// Takes in the probabilities `[bins]` after `generated` tokens of the answer at `place`, 0 for
    /// those of the prompt.
    fn observe(
        &self,
        place: usize,
        generated: u32,
        probabilities: PyReadonlyArray1<'_, f32>,
    ) -> PyResult<Estimate> {
        let p = arrays::column("probabilities", &probabilities, self.bins)?;
        let estimate = self.lock().observe(place, generated, p).map_err(error::request)?;
        let [p10, p50, p90] = estimate.quantiles;
        Ok(Estimate { remaining: estimate.remaining, p10, p50, p90 })
    }

    /// Makes `place` free for another answer.
    fn forget(&self, place: usize) -> PyResult<()> {
        self.lock().forget(place).map_err(error::request)
    }
}

//! The filter of a probe's predictions: token by token, each answer for itself.

use std::sync::{Mutex, PoisonError};

use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use trail_probe::Filter;

use crate::{arrays, error};

/// Expectation of the rest of an answer, tokens.
#[pyclass(frozen, get_all, module = "trail_rt._native")]
pub(crate) struct Estimate {
    remaining: f32,
    p10: f32,
    p50: f32,
    p90: f32,
}

struct State {
    tracker: trail_probe::Tracker,
    /// Numbers of answers that each place had before.
    generations: Vec<u32>,
}

/// The filter of a probe's predictions.
#[pyclass(frozen, module = "trail_rt._native")]
pub(crate) struct Tracker {
    bins: usize,
    state: Mutex<State>,
}

impl Tracker {
    pub(crate) fn new(filter: Filter, max_requests: usize) -> Tracker {
        let bins = filter.bins().count();
        let tracker = trail_probe::Tracker::new(filter, max_requests);
        let generations = vec![0; max_requests];
        Tracker { bins, state: Mutex::new(State { tracker, generations }) }
    }
}

fn no_place(place: usize, places: usize) -> PyErr {
    error::request(format!("there is no place {place}: the tracker has {places}"))
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
        let mut guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { tracker, generations } = &mut *guard;
        let generation =
            *generations.get(place).ok_or_else(|| no_place(place, generations.len()))?;
        let estimate = tracker.observe(place, generation, generated, p);
        let estimate = estimate.ok_or_else(|| error::request("an answer that has ended"))?;
        let [p10, p50, p90] = estimate.quantiles;
        Ok(Estimate { remaining: estimate.remaining, p10, p50, p90 })
    }

    /// Makes `place` free for another answer.
    fn forget(&self, place: usize) -> PyResult<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let places = state.generations.len();
        let generation = state.generations.get_mut(place);
        *generation.ok_or_else(|| no_place(place, places))? += 1;
        Ok(())
    }
}

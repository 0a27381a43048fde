//! The order alone, for engines with their own batches and memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use trail_scheduler::limits::MAX_REQUESTS;
use trail_scheduler::policies::Needs;
use trail_scheduler::{NewRequest, Progress};

use crate::error;
use crate::scheduler::ranked;

/// Ranks the requests of an engine with its own batches and memory.
#[pyclass(frozen, module = "trail_rt._native")]
pub(crate) struct Ranks {
    ranks: Mutex<trail_scheduler::Ranks>,
}

impl Ranks {
    fn lock(&self) -> MutexGuard<'_, trail_scheduler::Ranks> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Ranks {
    #[new]
    #[pyo3(signature = (policy="trail", *, max_requests=4096, **options))]
    fn new(
        policy: &str,
        max_requests: u32,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Ranks> {
        if max_requests == 0 || max_requests > MAX_REQUESTS {
            let why = format!("max_requests is {max_requests}: give 1 to {MAX_REQUESTS}");
            return Err(error::request(why));
        }
        let kind = ranked(policy, options, None)?;
        if kind.needs() == Needs::TrueLengths {
            let why = format!("'{policy}' ranks by true lengths, which no request has here");
            return Err(error::request(why));
        }
        let ranks = trail_scheduler::Ranks::new(max_requests, kind);
        Ok(Ranks { ranks: Mutex::new(ranks) })
    }

    /// Takes a request into the order; returns its number.
    #[pyo3(signature = (prompt_tokens, max_tokens, *, arrival=0.0, predicted_length=None,
                        priority=0))]
    fn submit(
        &self,
        prompt_tokens: u32,
        max_tokens: u32,
        arrival: f64,
        predicted_length: Option<f32>,
        priority: i32,
    ) -> PyResult<u64> {
        let request = NewRequest {
            prompt_tokens,
            max_tokens,
            arrival_s: arrival,
            initial_prediction: predicted_length,
            priority,
            ..NewRequest::default()
        };
        self.lock().submit(&request).map_err(error::request)
    }

    /// Begins a step at `now` seconds: all requests, best rank first. `batch` has of each request
    /// in the engine's its number, the tokens whose KV is computed, and the output tokens.
    fn order(&self, now: f64, batch: Vec<(u64, u32, u32)>) -> PyResult<Vec<u64>> {
        let progress = |(request, computed, generated)| Progress { request, computed, generated };
        let batch: Vec<Progress> = batch.into_iter().map(progress).collect();
        self.lock().order(now, &batch).map_err(error::request)
    }

    /// Removes a request that ended with `generated` output tokens. False if it has ended before.
    fn finish(&self, request: u64, generated: u32) -> bool {
        self.lock().finish(request, generated).is_ok()
    }

    fn __len__(&self) -> usize {
        self.lock().live()
    }
}

//! The table of requests: which indices are taken, and the generation of each.

use std::ops::{Index, IndexMut};

use crate::request::{NewRequest, Phase, Prediction, RequestIdx, RequestState};

/// Predicted work of the requests that are admitted and not finished.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outstanding {
    /// Sum of [`RequestState::remaining`], output tokens. Exact below 2^30, as its terms are
    /// multiples of 2^-23.
    pub tokens: f64,
    /// Requests in the sum: those with a prediction.
    pub predicted: u32,
}

impl Outstanding {
    fn add(&mut self, request: &RequestState) {
        let Some(tokens) = request.remaining() else { return };
        self.tokens += f64::from(tokens);
        self.predicted += 1;
    }

    fn remove(&mut self, request: &RequestState) {
        let Some(tokens) = request.remaining() else { return };
        self.tokens -= f64::from(tokens);
        self.predicted -= 1;
    }
}

/// All requests, by index.
pub(crate) struct Requests {
    states: Vec<RequestState>,
    /// Of the requests outside the batch. Those in it change with every token and prediction: they
    /// are summed when asked for.
    outside: Outstanding,
    free: Vec<RequestIdx>,
    /// Indices whose request has finished while its transfer has not.
    ending: usize,
    arrivals: u64,
}

impl Requests {
    pub(crate) fn new(max_requests: u32) -> Requests {
        Requests {
            states: vec![RequestState::default(); max_requests as usize],
            free: (0..max_requests).rev().map(RequestIdx).collect(),
            outside: Outstanding::default(),
            ending: 0,
            arrivals: 0,
        }
    }

    /// Stores a request at a free index, if any.
    pub(crate) fn take(&mut self, request: &NewRequest) -> Option<RequestIdx> {
        let idx = self.free.pop()?;
        let generation = self[idx].generation;
        self[idx] = RequestState::new(idx, generation, self.arrivals, request);
        self.arrivals += 1;
        self.outside.add(&self.states[idx.index()]);
        Some(idx)
    }

    /// Records a prediction of the request at `idx`; see [`RequestState::predict`].
    #[inline]
    pub(crate) fn predict(
        &mut self,
        idx: RequestIdx,
        prediction: &Prediction,
        refresh: u32,
    ) -> bool {
        let state = &mut self.states[idx.index()];
        if state.phase == Phase::Running {
            return state.predict(prediction, refresh);
        }
        self.outside.remove(state);
        let accepted = state.predict(prediction, refresh);
        self.outside.add(state);
        accepted
    }

    /// Moves the request at `idx` into or out of the batch; [`IndexMut`] must not.
    pub(crate) fn set_phase(&mut self, idx: RequestIdx, phase: Phase) {
        let state = &mut self.states[idx.index()];
        match (state.phase, phase) {
            (Phase::Running, Phase::Running) => {}
            (Phase::Running, _) => self.outside.add(state),
            (_, Phase::Running) => self.outside.remove(state),
            _ => {}
        }
        state.phase = phase;
    }

    /// Sum over all requests; `batch`: those that run.
    pub(crate) fn outstanding(&self, batch: impl Iterator<Item = RequestIdx>) -> Outstanding {
        let mut sum = self.outside;
        for idx in batch {
            sum.add(&self[idx]);
        }
        sum
    }

    /// Ends the request at `idx`: results that carry its generation are stale from now on. The
    /// index stays taken until it is released.
    pub(crate) fn end(&mut self, idx: RequestIdx) {
        let state = &mut self.states[idx.index()];
        if state.phase != Phase::Running {
            self.outside.remove(state);
        }
        state.planned = false;
        state.ended = true;
        state.generation = state.generation.wrapping_add(1);
        self.ending += 1;
    }

    /// Frees the index of a request that has ended.
    pub(crate) fn release(&mut self, idx: RequestIdx) {
        let state = &mut self[idx];
        debug_assert!(state.ended && state.phase != Phase::Free);
        state.phase = Phase::Free;
        self.ending -= 1;
        self.free.push(idx);
    }

    pub(crate) fn live(&self) -> usize {
        self.states.len() - self.free.len() - self.ending
    }
}

impl Index<RequestIdx> for Requests {
    type Output = RequestState;
    fn index(&self, idx: RequestIdx) -> &RequestState {
        &self.states[idx.index()]
    }
}

impl IndexMut<RequestIdx> for Requests {
    fn index_mut(&mut self, idx: RequestIdx) -> &mut RequestState {
        &mut self.states[idx.index()]
    }
}

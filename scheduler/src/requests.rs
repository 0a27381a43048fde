//! The table of requests: which indices are taken, and the generation of each.

use std::ops::{Index, IndexMut};

use crate::request::{NewRequest, Phase, RequestIdx, RequestState};

/// All requests, by index.
pub(crate) struct Requests {
    states: Vec<RequestState>,
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
            ending: 0,
            arrivals: 0,
        }
    }

    /// Stores a request at a free index, if there is one.
    pub(crate) fn take(&mut self, request: &NewRequest) -> Option<RequestIdx> {
        let idx = self.free.pop()?;
        let generation = self[idx].generation;
        self[idx] = RequestState::new(idx, generation, self.arrivals, request);
        self.arrivals += 1;
        Some(idx)
    }

    /// Ends the request at `idx`: results that carry its generation are stale from now on. The
    /// index stays taken until it is released.
    pub(crate) fn end(&mut self, idx: RequestIdx) {
        let state = &mut self[idx];
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

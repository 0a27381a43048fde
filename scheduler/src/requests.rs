//! The slots: which are taken, by whom, and how often each was used.

use std::ops::{Index, IndexMut};

use crate::request::{NewRequest, Phase, RequestState, Slot};

/// All requests there are, by slot.
pub(crate) struct Requests {
    states: Vec<RequestState>,
    free: Vec<Slot>,
    /// Slots whose request is finished, but whose transfer is not.
    ending: usize,
    arrivals: u64,
}

impl Requests {
    pub(crate) fn new(max_requests: u32) -> Requests {
        Requests {
            states: vec![RequestState::default(); max_requests as usize],
            free: (0..max_requests).rev().map(Slot).collect(),
            ending: 0,
            arrivals: 0,
        }
    }

    /// Puts a request into a free slot, if there is one.
    pub(crate) fn take(&mut self, request: &NewRequest) -> Option<Slot> {
        let slot = self.free.pop()?;
        let generation = self[slot].generation;
        self[slot] = RequestState::new(slot, generation, self.arrivals, request);
        self.arrivals += 1;
        Some(slot)
    }

    /// The slot's request is no more: whoever still speaks of this generation is out of date. The
    /// slot stays taken until it is released.
    pub(crate) fn end(&mut self, slot: Slot) {
        let state = &mut self[slot];
        state.planned = false;
        state.ended = true;
        state.generation = state.generation.wrapping_add(1);
        self.ending += 1;
    }

    /// Frees the slot of a request that has ended.
    pub(crate) fn release(&mut self, slot: Slot) {
        let state = &mut self[slot];
        debug_assert!(state.ended && state.phase != Phase::Free);
        state.phase = Phase::Free;
        self.ending -= 1;
        self.free.push(slot);
    }

    pub(crate) fn live(&self) -> usize {
        self.states.len() - self.free.len() - self.ending
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        (0..self.states.len() as u32).map(Slot)
    }
}

impl Index<Slot> for Requests {
    type Output = RequestState;
    fn index(&self, slot: Slot) -> &RequestState {
        &self.states[slot.index()]
    }
}

impl IndexMut<Slot> for Requests {
    fn index_mut(&mut self, slot: Slot) -> &mut RequestState {
        &mut self.states[slot.index()]
    }
}

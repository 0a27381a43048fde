//! The pool of recurrent states: what gated delta nets keep of a request's tokens.

use crate::backend::Batch;
use crate::model::{DeltaNetConfig, ModelConfig};

use super::CpuOptions;
use trail_cpu_kernels::Aligned;

/// States `[state][layer][key head][head_state_len]` in f32; none for a model without gated delta
/// nets. A state takes memory when it is first used.
pub(super) struct StatePool {
    pub(super) values: Aligned,
    /// Values of a state.
    len: usize,
    /// The last batch that writes each state, by its number `[states]`.
    written: Vec<u64>,
    /// Number of the batch.
    batch: u64,
}

impl StatePool {
    /// Reserves the states of `options`.
    pub(super) fn new(config: &ModelConfig, options: &CpuOptions) -> Result<Self, String> {
        let len = config.delta_net.as_ref().map_or(0, DeltaNetConfig::state_len);
        let count = options.num_states(config);
        let values = Aligned::reserved(count * len)
            .map_err(|error| format!("{count} recurrent states: {error}; lower --max-running"))?;
        Ok(StatePool { values, len, written: vec![0; count], batch: 0 })
    }

    /// Number of states.
    pub(super) fn count(&self) -> usize {
        self.written.len()
    }

    /// Values of a state.
    pub(super) fn state_len(&self) -> usize {
        self.len
    }

    /// Panics if two segments of `batch` would write one state, or one reads what another writes.
    pub(super) fn check(&mut self, batch: &Batch) {
        if self.len == 0 {
            return;
        }
        self.batch += 1;
        let copies = batch.state_copies.iter().map(|copy| copy.state);
        let after = batch.segments.iter().map(|segment| segment.state.after);
        for state in after.chain(copies) {
            let last = std::mem::replace(&mut self.written[state as usize], self.batch);
            assert!(last < self.batch, "state {state} is written twice");
        }
        for segment in &batch.segments {
            let state = segment.state;
            assert_eq!(state.before.is_none(), segment.start == 0, "a state before no token");
            let read = state.before.filter(|&before| before != state.after);
            let is_written = |state: u32| self.written[state as usize] == self.batch;
            assert!(!read.is_some_and(is_written), "a state is read and written");
            let ends = batch.copies(segment).iter().map(|copy| copy.end);
            assert!(ends.is_sorted(), "copies out of order");
        }
    }

    /// Brings the state before each segment of `batch` to its place after it.
    pub(super) fn begin(&mut self, batch: &Batch) {
        if self.len == 0 {
            return;
        }
        for segment in &batch.segments {
            let after = segment.state.after as usize * self.len;
            match segment.state.before {
                None => self.values[after..after + self.len].fill(0.0),
                Some(before) if before == segment.state.after => {}
                Some(before) => {
                    let before = before as usize * self.len;
                    self.values.copy_within(before..before + self.len, after);
                }
            }
        }
    }
}

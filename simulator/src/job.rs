//! A request of a simulation: its sizes, its arrival, and the predictions it will be given.

use std::sync::Arc;

use crate::release::ReleaseWalk;
use trail_scheduler::limits::MAX_CONTEXT;
use trail_scheduler::{BlockHash, NewRequest, RequestId};

/// A request to simulate.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The caller's number of it.
    pub id: u64,
    /// Arrival on the virtual clock, nanoseconds.
    pub arrival_ns: u64,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Output tokens that it will generate, at least 1; hidden from all policies but the oracle.
    pub output_tokens: u32,
    /// Largest number of output tokens that the policies know of.
    pub max_tokens: u32,
    /// The caller's priority: lower goes first.
    pub priority: i32,
    /// r: output tokens expected by a prompt-only predictor.
    pub r: Option<f32>,
    /// Predictions of the remaining tokens, one per output token.
    pub refined: Refined,
    /// Names of the full KV blocks of its prompt, for the prefix cache: the first ones, or all.
    /// Equal hashes mean equal tokens up to the end of the block.
    pub block_hashes: Arc<[BlockHash]>,
}

/// The refined predictions of a request: element g is the expected number of remaining tokens after
/// g generated ones.
#[derive(Clone, Debug, PartialEq)]
pub enum Refined {
    /// None: r is counted down.
    None,
    /// The true number of remaining tokens.
    Exact,
    /// Recorded ones; stretched if the recorded answer was of another length.
    Recorded(Arc<[f32]>),
    /// Synthesised errors at the level of TRAIL's released probe; the seed of the request.
    Release(u64),
}

impl Job {
    /// The request in the scheduler's terms, submitted at `now_s`.
    pub(crate) fn to_scheduler(&self, now_s: f64) -> NewRequest {
        let max = self.max_tokens as f32;
        NewRequest {
            id: RequestId(self.id),
            prompt_tokens: self.prompt_tokens,
            max_tokens: self.max_tokens,
            arrival_s: now_s,
            // As in the engine: an answer is cut at max_tokens, whatever the predictor expects.
            initial_prediction: self.r.map(|tokens| tokens.clamp(1.0, max)),
            true_length: Some(self.output_tokens),
            priority: self.priority,
            ..NewRequest::default()
        }
    }

    /// True if prompt and output fit the longest context of any scheduler.
    pub(crate) fn fits_a_context(prompt_tokens: u32, output_tokens: u32) -> bool {
        u64::from(prompt_tokens) + u64::from(output_tokens) <= u64::from(MAX_CONTEXT)
    }
}

impl Refined {
    /// Writes the predictions of an answer of `length` tokens to `to`; none if there are none.
    pub fn fill(&self, length: u32, to: &mut Vec<f32>) {
        to.clear();
        match self {
            Refined::None => {}
            Refined::Exact => to.extend((0..length).map(|generated| (length - generated) as f32)),
            Refined::Recorded(trace) if trace.len() == length as usize => {
                to.extend_from_slice(trace);
            }
            Refined::Recorded(trace) if trace.is_empty() => {}
            Refined::Recorded(trace) => {
                let (have, want) = (trace.len() as u64, u64::from(length));
                let stretch = (want as f64 / have as f64) as f32;
                to.extend((0..want).map(|at| stretch * trace[(at * have / want) as usize]));
            }
            Refined::Release(seed) => ReleaseWalk::new(*seed).fill(length, to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_trace_is_stretched_to_other_lengths() {
        let trace = Refined::Recorded([8.0, 5.0, 2.0, 1.0].into());
        let mut filled = Vec::new();
        trace.fill(4, &mut filled);
        assert_eq!(filled, [8.0, 5.0, 2.0, 1.0]);
        trace.fill(8, &mut filled);
        assert_eq!(filled, [16.0, 16.0, 10.0, 10.0, 4.0, 4.0, 2.0, 2.0]);
        trace.fill(2, &mut filled);
        assert_eq!(filled, [4.0, 1.0]);
        Refined::Recorded([].into()).fill(3, &mut filled);
        assert!(filled.is_empty());
        Refined::Exact.fill(3, &mut filled);
        assert_eq!(filled, [3.0, 2.0, 1.0]);
    }
}

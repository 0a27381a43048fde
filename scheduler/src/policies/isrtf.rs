//! Iterative shortest remaining time first: ranks change once per window of output tokens.

use super::UNKNOWN_LENGTH_TOKENS;
use crate::{Key, Phase, Policy, RequestState};

/// Requests run for a window each; at its end they are ranked by the prediction made there.
///
/// Source: ELIS (ISRTF), Algorithm 1: windows of K = 50 tokens (paper).
/// * The predictor is called once per window (paper); its value for a request that did not run
///   cannot change, so it is cached (own). Here it is the probe's, or the countdown from the last
///   one if none has arrived for the window's last token.
/// * Within a window a request is preempted for memory alone, lowest priority first (paper). Its
///   window ends with that.
/// * Deviation: the paper returns a whole batch when all its requests have produced K tokens, or
///   one has finished. With continuous batching each request has its own window, which begins when
///   it enters the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isrtf {
    /// Output tokens of a window (K), at least 1.
    pub window_tokens: u32,
}

impl Default for Isrtf {
    /// K = 50, the paper's choice.
    fn default() -> Self {
        Isrtf { window_tokens: 50 }
    }
}

impl Isrtf {
    /// The policy, for [`crate::Scheduler::new`].
    ///
    /// # Panics
    ///
    /// If a window has no token.
    pub fn policy(self) -> impl Policy + use<> {
        assert!(self.window_tokens > 0, "a window has at least a token");
        IsrtfPolicy { window_tokens: self.window_tokens, cached: Vec::new() }
    }
}

/// [`Isrtf`] with the predictions of the windows.
struct IsrtfPolicy {
    window_tokens: u32,
    /// `[index]`: remaining tokens predicted at the end of the last window.
    cached: Vec<f32>,
}

impl IsrtfPolicy {
    /// True between two windows, and in the prefill before the first token of one.
    fn at_boundary(&self, request: &RequestState) -> bool {
        request.slice_tokens.is_multiple_of(self.window_tokens)
    }

    fn predict_again(&mut self, request: &RequestState) {
        self.cached[request.idx.index()] = request.remaining().unwrap_or(UNKNOWN_LENGTH_TOKENS);
    }
}

impl Policy for IsrtfPolicy {
    fn name(&self) -> &'static str {
        "isrtf"
    }

    fn key(&self, request: &RequestState) -> Key {
        let class = if self.preemptable(request) { Key::OPEN } else { Key::PINNED };
        Key::new(class, f64::from(self.cached[request.idx.index()]), request.seq)
    }

    fn preemptable(&self, request: &RequestState) -> bool {
        let window_over = request.slice_tokens > 0 && self.at_boundary(request);
        request.phase != Phase::Running || window_over
    }

    fn reserve(&mut self, max_requests: u32) {
        self.cached = vec![0.0; max_requests as usize];
    }

    fn on_submitted(&mut self, request: &RequestState) {
        self.predict_again(request);
    }

    fn on_preempted(&mut self, request: &RequestState) {
        self.predict_again(request);
    }

    fn on_predicted(&mut self, request: &RequestState) {
        if self.at_boundary(request) {
            self.predict_again(request);
        }
    }

    fn on_tokens(&mut self, request: &RequestState, generated: u32) {
        if generated > 0 && self.at_boundary(request) {
            self.predict_again(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::request;
    use crate::policies::testing::{Toy, run_lengths};
    use crate::{Prediction, RequestIdx};

    #[test]
    fn a_shorter_arrival_waits_for_the_end_of_the_window() {
        let mut toy = Toy::new(Isrtf { window_tokens: 4 }.policy(), 1).submit(&[10]);
        toy.step();
        // Shorter than the remaining 9; the second is not shorter than what remains after 4.
        let ran = toy.submit(&[2, 7]).run().ran;
        assert_eq!(run_lengths(&ran), [(0, 4), (1, 2), (0, 6), (2, 7)]);
    }

    #[test]
    fn predictions_within_a_window_wait_for_its_end() {
        let mut policy = IsrtfPolicy { window_tokens: 2, cached: Vec::new() };
        policy.reserve(1);
        let mut request = request(0, Some(40.0));
        request.idx = RequestIdx(0);
        policy.on_submitted(&request);
        (request.phase, request.started) = (Phase::Running, true);
        assert!(!policy.preemptable(&request), "its prefill is part of the window");
        for step in 0..2 {
            request.advance(step, 1, true);
            policy.on_tokens(&request, 1);
            if step == 0 {
                let early = Prediction { remaining: 5.0, ..Prediction::default() };
                assert!(request.predict(&early, 1));
                policy.on_predicted(&request);
                assert_eq!(policy.key(&request), Key::new(Key::PINNED, 40.0, 0));
            }
        }
        // 5 tokens at the age of 0, so 3 after two.
        assert_eq!(policy.key(&request), Key::new(Key::OPEN, 3.0, 0));
        assert!(policy.preemptable(&request));
    }
}

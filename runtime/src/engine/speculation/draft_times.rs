//! Times of the draft model.

use std::time::Duration;

use super::row_times::RowTimes;
use crate::backend::DraftModel;

/// Weight of the newest chunk in the mean time of a token.
const NEWEST: f32 = 0.25;

/// Steps after which times begin again with those of the start: where drafting does not pay none is
/// measured, and a time that was too long by chance would last.
const PERIOD: u32 = 1024;

/// Times of the draft model, nanoseconds: measured at the start, then in steps.
pub(super) struct DraftTimes {
    /// Of passes, by the requests in them.
    passes: RowTimes,
    token_ns: f32,
    /// Those of a pass and of a token at the start.
    start: (f32, f32),
    steps: u32,
}

impl DraftTimes {
    pub(super) fn of(model: &dyn DraftModel) -> DraftTimes {
        DraftTimes::new([model.row_time(), model.token_time()].map(nanoseconds))
    }

    fn new([row_ns, token_ns]: [f32; 2]) -> DraftTimes {
        let passes = RowTimes::new();
        DraftTimes { passes, token_ns, start: (row_ns, token_ns), steps: 0 }
    }

    /// Begins a step.
    pub(super) fn begin(&mut self) {
        self.steps += 1;
        if self.steps == PERIOD {
            *self = DraftTimes::new([self.start.0, self.start.1]);
        }
    }

    /// Time of a pass with `requests` requests.
    pub(super) fn pass_ns(&self, requests: usize) -> f32 {
        self.passes.ns(requests).unwrap_or(self.start.0)
    }

    /// Time of a missing token.
    pub(super) fn token_ns(&self) -> f32 {
        self.token_ns
    }

    /// Adds a pass with `requests` requests.
    pub(super) fn record_pass(&mut self, requests: usize, ns: f32) {
        self.passes.record(requests, ns);
    }

    /// Adds a chunk of `tokens` missing tokens.
    pub(super) fn record_tokens(&mut self, tokens: usize, ns: f32) {
        self.token_ns += NEWEST * (ns / tokens as f32 - self.token_ns);
    }
}

pub(super) fn nanoseconds(time: Duration) -> f32 {
    time.as_nanos() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without passes too, which never come where drafting does not pay.
    #[test]
    fn a_time_that_was_too_long_is_forgotten() {
        let mut times = DraftTimes::new([1e6, 1e5]);
        assert_eq!((times.pass_ns(1), times.pass_ns(4), times.token_ns()), (1e6, 1e6, 1e5));
        times.record_pass(1, 9e6);
        times.record_tokens(10, 5e6);
        assert_eq!((times.pass_ns(1), times.pass_ns(4), times.token_ns()), (9e6, 9e6, 2e5));
        (0..PERIOD).for_each(|_| times.begin());
        assert_eq!((times.pass_ns(1), times.pass_ns(4), times.token_ns()), (1e6, 1e6, 1e5));
    }
}

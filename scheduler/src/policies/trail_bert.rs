//! TRAIL without refined predictions: the prediction from the prompt, counted down.

use super::{DEFAULT_C, expected_length, is_past};
use crate::{Key, Policy, RequestState};

/// As [`super::Trail`], with r minus the generated tokens in the place of the probe's estimate. A
/// request that outlives r ranks as if one token were left.
///
/// Source: TRAIL-BERT, the fourth system of TRAIL's Figure 6 (section 4): c = 0.8 and "BERT
/// predictions" (paper). The countdown, clamped at 1, is that of the released code between two
/// predictions (code). The first prediction is the engine's prompt-only predictor, whatever its
/// network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrailBert {
    /// Share of r during which preemption is allowed, in [0, 1].
    pub c: f32,
}

impl Default for TrailBert {
    /// c = 0.8, the paper's choice.
    fn default() -> Self {
        TrailBert { c: DEFAULT_C }
    }
}

impl Policy for TrailBert {
    fn name(&self) -> &'static str {
        "trail-bert"
    }

    fn key(&self, request: &RequestState) -> Key {
        if request.started && !self.preemptable(request) {
            return Key::pinned(request);
        }
        let remaining = expected_length(request) - request.generated as f32;
        Key::new(Key::OPEN, f64::from(remaining.max(1.0)), request.seq)
    }

    fn preemptable(&self, request: &RequestState) -> bool {
        !is_past(self.c, expected_length(request), request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::request;
    use crate::policies::testing::running;
    use crate::{Phase, Prediction};

    #[test]
    fn r_counts_down_whatever_the_probe_says() {
        let policy = TrailBert { c: 1.0 };
        let mut request = running(0, 100.0, 30);
        assert!(
            request.predict(&Prediction { remaining: 7.0, step: 29, ..Prediction::default() }, 1)
        );
        assert_eq!(policy.key(&request), Key::new(Key::OPEN, 70.0, 0));
        request.phase = Phase::Paused;
        assert_eq!(policy.key(&request), Key::new(Key::OPEN, 70.0, 0));
    }

    #[test]
    fn a_window_as_trails_and_a_floor_of_one_token() {
        let policy = TrailBert::default();
        assert!(policy.preemptable(&running(0, 100.0, 79)));
        assert_eq!(policy.key(&running(0, 100.0, 80)).class(), Key::PINNED);
        let waiting = request(4, Some(-3.0));
        assert_eq!(policy.key(&waiting), Key::new(Key::OPEN, 1.0, 4));
    }
}

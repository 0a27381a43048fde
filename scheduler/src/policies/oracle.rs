//! Shortest remaining processing time with the true lengths: the bound for every predictor.

use super::is_past;
use crate::{Key, Policy, RequestState};

/// SRPT. A request of unknown true length counts with its `max_tokens`.
///
/// Source: the oracle columns of TRAIL's evaluation; Schrage 1968 for its optimality.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Oracle {
    /// None: preemptable to the last token. Some(c): only during the first floor(c length) tokens,
    /// as in [`super::Trail`].
    pub c: Option<f32>,
}

fn true_length(request: &RequestState) -> u32 {
    request.true_length.unwrap_or(request.max_tokens).min(request.max_tokens)
}

impl Policy for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn key(&self, request: &RequestState) -> Key {
        if request.started && !self.preemptable(request) {
            return Key::pinned(request);
        }
        let remaining = true_length(request).saturating_sub(request.generated);
        Key::new(Key::OPEN, f64::from(remaining), request.seq)
    }

    fn preemptable(&self, request: &RequestState) -> bool {
        self.c.is_none_or(|c| !is_past(c, true_length(request) as f32, request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Phase;
    use crate::policies::request;

    #[test]
    fn counts_true_tokens_down() {
        let mut request = request(0, Some(3.0)); // true length 100
        (request.phase, request.started) = (Phase::Running, true);
        request.generated = 60;
        let srpt = Oracle::default();
        assert_eq!(srpt.key(&request), Key::new(Key::OPEN, 40.0, 0));
        assert!(srpt.preemptable(&request));
        request.true_length = None; // max_tokens 512
        assert_eq!(srpt.key(&request), Key::new(Key::OPEN, 452.0, 0));
    }

    #[test]
    fn c_limits_preemption_as_in_trail() {
        let limited = Oracle { c: Some(0.5) };
        let mut request = request(0, None);
        (request.phase, request.started) = (Phase::Running, true);
        request.generated = 49;
        assert!(limited.preemptable(&request));
        request.generated = 50;
        assert!(!limited.preemptable(&request));
        assert_eq!(limited.key(&request).class(), Key::PINNED);
    }
}

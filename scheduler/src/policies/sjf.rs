//! Shortest job first by the prompt-only prediction, without preemption.

use super::expected_length;
use crate::{Key, Policy, RequestState};

/// Running rows first, then the queue by r, shortest first. Refined predictions are not used.
///
/// Source: `SJF_BERT`, the second baseline of TRAIL section 4.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sjf;

impl Policy for Sjf {
    fn name(&self) -> &'static str {
        "sjf"
    }

    fn key(&self, request: &RequestState) -> Key {
        if request.started {
            return Key::pinned(request);
        }
        Key::new(Key::OPEN, expected_length(request), request.seq)
    }

    fn preemptable(&self, _request: &RequestState) -> bool {
        false
    }
}

//! First come, first served, as vLLM does it with chunked prefill.

use crate::{Key, Policy, RequestState};

/// Running rows first (decodes and unfinished prefills in order of arrival), then the queue in
/// order of arrival up to the first request that does not fit. When blocks run out the latest
/// arrival in the batch is evicted and recomputed, ahead of those that never started.
///
/// Source: vLLM 0.5's scheduler with chunked prefill, the baseline of TRAIL section 4.
/// One difference: the latest arrival itself, when it finds no block to grow, is paused with its
/// KV instead of discarding it at once; a request ranked before it takes its blocks when needed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fcfs;

impl Policy for Fcfs {
    fn name(&self) -> &'static str {
        "fcfs"
    }

    fn key(&self, request: &RequestState) -> Key {
        if request.started { Key::pinned(request) } else { Key::new(Key::OPEN, 0.0, request.seq) }
    }

    fn preemptable(&self, _request: &RequestState) -> bool {
        false
    }

    fn strict_order(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Phase;
    use crate::policies::request;

    #[test]
    fn batch_first_then_the_evicted_then_the_queue_by_arrival() {
        let mut running = request(3, None);
        (running.phase, running.started) = (Phase::Running, true);
        let mut evicted = request(2, None);
        evicted.started = true;
        let waiting = request(0, Some(1.0));
        let later = request(1, Some(0.0));
        let keys = [running, evicted, waiting, later].map(|request| Fcfs.key(&request));
        assert!(keys.is_sorted(), "{keys:?}");
        assert!(Fcfs.strict_order());
    }
}

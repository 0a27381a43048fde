//! The state of a live request, as others than the scheduler see it.

use crate::key::Key;
use crate::request::{Phase, RequestId, RequestIdx};
use crate::scheduler::Scheduler;

/// A request that is admitted and not finished.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LiveRequest {
    /// The caller's name for it.
    pub id: RequestId,
    /// Its rank: the order over all requests.
    pub key: Key,
    /// Its phase.
    pub phase: Phase,
    /// True once it was in a plan.
    pub started: bool,
    /// True if one ranked before it may take its place in the batch.
    pub preemptable: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Output tokens generated.
    pub generated: u32,
    /// Tokens whose KV is in the cache.
    pub computed: u32,
    /// Largest number of tokens to generate.
    pub max_tokens: u32,
    /// Number of times it left the batch unfinished.
    pub preemptions: u32,
    /// Number of times it lost its KV.
    pub evictions: u32,
    /// The caller's priority: lower goes first.
    pub priority: i32,
    /// Time of arrival, seconds on the caller's clock.
    pub arrival_s: f64,
    /// The first prediction of the whole output's tokens.
    pub first_prediction: Option<f32>,
    /// Expected remaining output tokens.
    pub remaining: Option<f32>,
    /// The 10 % quantile, the median and the 90 % quantile of the remaining output tokens; `None`
    /// before the probe's first prediction.
    pub quantiles: Option<[f32; 3]>,
}

impl LiveRequest {
    /// Tokens to compute before its next one can be sampled; 1 for a decode.
    pub fn uncomputed(&self) -> u32 {
        self.prompt_tokens + self.generated - self.computed
    }
}

impl Scheduler {
    /// The live requests, in no order. Visits every index.
    pub fn live_requests(&self) -> impl Iterator<Item = LiveRequest> {
        (0..self.config.max_requests).filter_map(|idx| self.live_request(RequestIdx(idx)))
    }

    fn live_request(&self, idx: RequestIdx) -> Option<LiveRequest> {
        let request = &self.requests[idx];
        if request.phase == Phase::Free || request.ended {
            return None;
        }
        Some(LiveRequest {
            id: request.id,
            key: self.key(idx),
            phase: request.phase,
            started: request.started,
            preemptable: self.policy.preemptable(request),
            prompt_tokens: request.prompt_tokens,
            generated: request.generated,
            computed: request.computed,
            max_tokens: request.max_tokens,
            preemptions: request.preemptions,
            evictions: request.evictions,
            priority: request.priority,
            arrival_s: request.arrival_s,
            first_prediction: request.first_prediction,
            remaining: request.remaining(),
            quantiles: request.remaining_quantiles(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::Trail;
    use crate::{NewRequest, Prediction, SchedulerConfig};

    #[test]
    fn live_requests_are_those_not_finished_and_their_keys_are_the_order() {
        let config = SchedulerConfig { max_running: 1, ..SchedulerConfig::default() };
        let policy = Box::new(Trail::default().policy());
        let mut scheduler = Scheduler::new(config, policy).expect("valid");
        let mut submit = |id, tokens| {
            let initial_prediction = Some(tokens);
            let id = RequestId(id);
            let of = NewRequest { id, prompt_tokens: 20, max_tokens: 90, ..Default::default() };
            scheduler.submit(NewRequest { initial_prediction, ..of }).expect("room")
        };
        let [long, short, gone] = [submit(7, 80.0), submit(8, 9.0), submit(9, 1.0)];
        scheduler.finish(gone);
        scheduler.plan(1, 0.0);
        scheduler.advance();
        let generation = scheduler.generation(short);
        let prediction =
            Prediction { remaining: 6.0, p10: 2.0, p50: 5.0, p90: 200.0, step: 1, generation };
        scheduler.predict(short, prediction);
        scheduler.plan(2, 0.0);
        scheduler.advance();
        let mut live: Vec<LiveRequest> = scheduler.live_requests().collect();
        live.sort_by_key(|request| request.key);
        let [first, second] = live[..] else { panic!("two are live: {live:?}") };
        assert_eq!((first.id.0, first.phase, first.generated), (8, Phase::Running, 2));
        assert_eq!((first.computed, first.uncomputed()), (21, 1));
        // One token since the prediction's step, which saw none; at most what max_tokens leaves.
        assert_eq!(first.quantiles, Some([1.0, 3.0, 88.0]));
        assert_eq!((second.id.0, second.phase, second.quantiles), (7, Phase::Waiting, None));
        assert_eq!((second.remaining, second.uncomputed()), (Some(80.0), 20));
        scheduler.finish(long);
        assert_eq!(scheduler.live_requests().count(), 1);
    }
}

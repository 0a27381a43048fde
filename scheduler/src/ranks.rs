//! The order alone, for an engine with its own batches and memory.

use crate::checked::{Misuse, RequestNumber, check_finite, check_request};
use crate::key::Ranked;
use crate::limits::MAX_CONTEXT;
use crate::plan::PlanRow;
use crate::policies::{Needs, PolicyKind};
use crate::policy::{Policy, rank};
use crate::refusal::Refusal;
use crate::request::{NewRequest, Phase, RequestIdx};
use crate::requests::Requests;

/// A request in an engine's batch: what the engine has done of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The request.
    pub request: RequestNumber,
    /// Tokens whose KV is computed.
    pub computed: u32,
    /// Output tokens sampled.
    pub generated: u32,
}

/// Ranks the requests of an engine by a policy. A [`crate::Scheduler`] plans each batch and gives
/// out the blocks; here the engine does both, and says at every step what became of its batch.
///
/// ```
/// use trail_scheduler::{NewRequest, Progress, Ranks};
///
/// let mut ranks = Ranks::new(16, "sjf".parse().expect("a policy"));
/// let request = |expected| NewRequest {
///     prompt_tokens: 5,
///     max_tokens: 100,
///     initial_prediction: Some(expected),
///     ..NewRequest::default()
/// };
/// let long = ranks.submit(&request(90.0)).expect("room");
/// let short = ranks.submit(&request(9.0)).expect("room");
/// assert_eq!(ranks.order(0.0, &[]).expect("live"), [short, long]);
/// // The engine took the long one, which is not preempted.
/// let batch = [Progress { request: long, computed: 5, generated: 1 }];
/// assert_eq!(ranks.order(0.1, &batch).expect("live"), [long, short]);
/// ranks.finish(long, 42).expect("live");
/// ```
pub struct Ranks {
    policy: Box<dyn Policy>,
    /// Requirement of the policy.
    needs: Needs,
    requests: Requests,
    max_requests: u32,
    /// The live requests; in the last order, then by arrival.
    live: Vec<Ranked>,
    /// Number of the next step.
    step: u64,
}

impl Ranks {
    /// Ranks at most `max_requests` requests by `policy`.
    pub fn new(max_requests: u32, policy: PolicyKind) -> Ranks {
        let needs = policy.needs();
        let mut policy = policy.build();
        policy.reserve(max_requests);
        let live = Vec::with_capacity(max_requests as usize);
        let requests = Requests::new(max_requests);
        Ranks { policy, needs, requests, max_requests, live, step: 0 }
    }

    fn number(&self, idx: RequestIdx) -> RequestNumber {
        u64::from(self.requests[idx].generation) << 32 | u64::from(idx.0)
    }

    fn find(&self, request: RequestNumber) -> Result<RequestIdx, Misuse> {
        let idx = RequestIdx(request as u32);
        let is_live = |&idx: &RequestIdx| {
            idx.0 < self.max_requests
                && self.requests[idx].phase != Phase::Free
                && self.number(idx) == request
        };
        Some(idx).filter(is_live).ok_or(Misuse::NoRequest(request))
    }

    /// Takes a request into the order.
    pub fn submit(&mut self, request: &NewRequest) -> Result<RequestNumber, Misuse> {
        check_request(request, self.needs)?;
        let NewRequest { prompt_tokens, max_tokens, .. } = *request;
        let needed_tokens = u64::from(prompt_tokens) + u64::from(max_tokens);
        let refusal = match (prompt_tokens, max_tokens) {
            (0, _) => Some(Refusal::EmptyPrompt),
            (_, 0) => Some(Refusal::ZeroMaxTokens),
            _ if needed_tokens <= u64::from(MAX_CONTEXT) => None,
            _ => Some(Refusal::ContextTooLong { needed_tokens, max_context: MAX_CONTEXT }),
        };
        if let Some(refusal) = refusal {
            return Err(refusal.into());
        }
        let full = Refusal::Full { max_requests: self.max_requests };
        let idx = self.requests.take(request).ok_or(full)?;
        self.policy.on_submitted(&self.requests[idx]);
        self.live.push(Ranked { key: rank(&*self.policy, &self.requests[idx], true), idx });
        Ok(self.number(idx))
    }

    /// Begins a step at `now_s` seconds: all live requests, best rank first. `batch` is the
    /// engine's, after its last step; requests that were in it and are not have lost their KV.
    pub fn order(&mut self, now_s: f64, batch: &[Progress]) -> Result<Vec<RequestNumber>, Misuse> {
        check_finite("now", now_s)?;
        let find = |of: &Progress| self.find(of.request);
        let indices: Vec<RequestIdx> = batch.iter().map(find).collect::<Result<_, _>>()?;
        for (&idx, of) in indices.iter().zip(batch) {
            self.record(idx, of.computed, of.generated);
            self.requests[idx].planned = true;
        }
        for at in 0..self.live.len() {
            let idx = self.live[at].idx;
            let is_in_batch = std::mem::take(&mut self.requests[idx].planned);
            if !is_in_batch && self.requests[idx].phase == Phase::Running {
                self.leave(idx);
            }
        }
        self.policy.on_step(self.step, now_s);
        self.step += 1;
        // All keys are computed again.
        while self.policy.next_changed().is_some() {}
        for ranked in &mut self.live {
            ranked.key = rank(&*self.policy, &self.requests[ranked.idx], true);
        }
        self.live.sort_unstable();
        Ok(self.live.iter().map(|ranked| self.number(ranked.idx)).collect())
    }

    /// Records what the engine has done of a request in its batch. More output than `max_tokens`
    /// counts as so many tokens.
    fn record(&mut self, idx: RequestIdx, computed: u32, generated: u32) {
        if self.requests[idx].phase != Phase::Running {
            self.requests.set_phase(idx, Phase::Running);
            self.requests[idx].started = true;
        }
        let request = &mut self.requests[idx];
        let sampled = generated.min(request.max_tokens).saturating_sub(request.generated);
        // Of an engine whose next step is in flight the last token's KV is computed, too.
        let computed = computed.min((request.tokens() + sampled).saturating_sub(1));
        let len = computed.saturating_sub(request.computed);
        if len == 0 && sampled == 0 {
            return;
        }
        // Tokens after the first were drafts.
        let len = len.saturating_sub(sampled.saturating_sub(1)).max(1);
        let row = PlanRow { idx, start: request.computed, len, sample: sampled > 0 };
        self.policy.on_scheduled(request, row);
        request.advance(self.step, len, row.sample);
        self.policy.on_tokens(request, u32::from(row.sample));
        for _ in 1..sampled {
            request.advance(self.step, 1, true);
            self.policy.on_tokens(request, 1);
        }
        request.computed = computed;
    }

    /// Moves a request from the batch to the queue.
    fn leave(&mut self, idx: RequestIdx) {
        self.requests.set_phase(idx, Phase::Waiting);
        let request = &mut self.requests[idx];
        (request.computed, request.slice_tokens) = (0, 0);
        request.preemptions += 1;
        request.evictions += 1;
        self.policy.on_preempted(request);
    }

    /// Removes a request that ended with `generated` output tokens, completed or not.
    pub fn finish(&mut self, request: RequestNumber, generated: u32) -> Result<(), Misuse> {
        let idx = self.find(request)?;
        let state = &self.requests[idx];
        if generated > state.generated {
            let computed = state.prompt_tokens.saturating_add(generated - 1);
            self.record(idx, computed, generated);
        }
        self.policy.on_finished(&self.requests[idx]);
        self.live.retain(|ranked| ranked.idx != idx);
        self.requests.end(idx);
        self.requests.release(idx);
        Ok(())
    }

    /// Number of live requests.
    pub fn live(&self) -> usize {
        self.live.len()
    }
}

#[cfg(test)]
mod tests;

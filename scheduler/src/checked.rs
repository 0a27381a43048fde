//! A scheduler for callers that may err, as programs of other languages: a wrong call is refused,
//! where [`Scheduler`] would panic or take it for another request's.

use std::fmt;

use crate::blocks::BlockId;
use crate::config::{ConfigError, SchedulerConfig};
use crate::plan::Plan;
use crate::policies::{Needs, PolicyKind};
use crate::refusal::Refusal;
use crate::request::{NewRequest, Phase, Prediction, RequestIdx, RequestState};
use crate::scheduler::Scheduler;

/// The number of a request: its index, and above it the number of requests that had the index
/// before. No two requests of a scheduler have the same.
pub type RequestNumber = u64;

/// A call that does not fit the state: one line, with what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// The request has finished, or never was.
    NoRequest(RequestNumber),
    /// The scheduler refuses the request.
    Refused(Refusal),
    /// A time or a number of tokens that is NaN or infinite, by its name.
    NotFinite(&'static str),
    /// A predicted length that is not above 0.
    NoLength,
    /// A request without its true length, of a policy that ranks by it.
    NoTrueLength,
    /// A plan before [`CheckedScheduler::advance`].
    NotAdvanced,
    /// An advance without a plan.
    NotPlanned,
    /// A plan with a request that has all its tokens.
    Complete(RequestNumber),
    /// More accepted tokens than there is room for.
    NoRoom {
        /// The request.
        request: RequestNumber,
        /// Tokens that it can take.
        room: u32,
    },
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misuse::NoRequest(request) => {
                write!(
                    f,
                    "there is no request {request}: it has finished, or is another scheduler's"
                )
            }
            Misuse::Refused(refusal) => refusal.fmt(f),
            Misuse::NotFinite(name) => write!(f, "{name} is NaN or infinite: give a number"),
            Misuse::NoLength => {
                f.write_str("predicted_length is not above 0: give none without a prediction")
            }
            Misuse::NoTrueLength => f.write_str(
                "the policy ranks by true_length, which a request lacks: give it to all",
            ),
            Misuse::NotAdvanced => f.write_str("the last plan was not computed: advance first"),
            Misuse::NotPlanned => f.write_str("there is no plan to advance by: plan first"),
            Misuse::Complete(request) => {
                write!(f, "request {request} has its max_tokens: finish it before the next plan")
            }
            Misuse::NoRoom { request, room } => write!(
                f,
                "request {request} can take {room} tokens more: accept at most these, after the \
                 advance of a step that sampled for it"
            ),
        }
    }
}

impl std::error::Error for Misuse {}

impl From<Refusal> for Misuse {
    fn from(refusal: Refusal) -> Misuse {
        Misuse::Refused(refusal)
    }
}

pub(crate) fn check_finite(name: &'static str, value: f64) -> Result<(), Misuse> {
    if value.is_finite() { Ok(()) } else { Err(Misuse::NotFinite(name)) }
}

/// Refuses numbers that are none, and a request without what the policy needs.
pub(crate) fn check_request(request: &NewRequest, needs: Needs) -> Result<(), Misuse> {
    check_finite("arrival", request.arrival_s)?;
    if let Some(length) = request.initial_prediction {
        check_finite("predicted_length", length.into())?;
        if length <= 0.0 {
            return Err(Misuse::NoLength);
        }
    }
    match needs == Needs::TrueLengths && request.true_length.is_none() {
        true => Err(Misuse::NoTrueLength),
        false => Ok(()),
    }
}

/// A [`Scheduler`] that numbers requests and steps itself. Without swapping and hashes of blocks.
pub struct CheckedScheduler {
    scheduler: Scheduler,
    /// Requirement of the policy.
    needs: Needs,
    /// Number of the next step.
    step: u64,
    /// True from a plan to its advance.
    is_planned: bool,
    /// The requests with a row in the last plan.
    planned: Vec<RequestNumber>,
}

impl CheckedScheduler {
    /// Creates a scheduler and allocates everything that it will need.
    pub fn new(
        config: SchedulerConfig,
        policy: PolicyKind,
    ) -> Result<CheckedScheduler, ConfigError> {
        let config = SchedulerConfig { host_blocks: 0, cached_blocks: 0, ..config };
        let scheduler = Scheduler::new(config, policy.build())?;
        let planned = Vec::with_capacity(config.max_running as usize);
        let needs = policy.needs();
        Ok(CheckedScheduler { scheduler, needs, step: 0, is_planned: false, planned })
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The number of the request at `idx`.
    pub fn number(&self, idx: RequestIdx) -> RequestNumber {
        u64::from(self.scheduler.generation(idx)) << 32 | u64::from(idx.0)
    }

    fn find(&self, request: RequestNumber) -> Result<RequestIdx, Misuse> {
        let idx = RequestIdx(request as u32);
        let is_index = idx.0 < self.scheduler.config().max_requests;
        let is_live = |state: &RequestState| {
            state.phase != Phase::Free && state.generation == (request >> 32) as u32
        };
        match is_index && is_live(self.scheduler.state(idx)) {
            true => Ok(idx),
            false => Err(Misuse::NoRequest(request)),
        }
    }

    /// Takes a request into the queue. See [`Scheduler::submit`].
    pub fn submit(&mut self, request: NewRequest) -> Result<RequestNumber, Misuse> {
        check_request(&request, self.needs)?;
        self.scheduler.submit(request).map(|idx| self.number(idx)).map_err(Misuse::Refused)
    }

    /// Records the output tokens that a request is expected to need: from now on, or from the
    /// beginning of `step`. `quantiles` are those of 10, 50 and 90 %, zeros for none.
    pub fn predict(
        &mut self,
        request: RequestNumber,
        remaining: f32,
        quantiles: [f32; 3],
        step: Option<u64>,
    ) -> Result<(), Misuse> {
        let idx = self.find(request)?;
        check_finite("remaining", remaining.into())?;
        quantiles.into_iter().try_for_each(|tokens| check_finite("quantiles", tokens.into()))?;
        let [p10, p50, p90] = quantiles;
        let (step, generation) = (step.unwrap_or(self.step), (request >> 32) as u32);
        let prediction = Prediction { remaining, p10, p50, p90, step, generation };
        self.scheduler.predict(idx, prediction);
        Ok(())
    }

    /// Plans the next step. See [`Scheduler::plan`].
    pub fn plan(&mut self, now_s: f64) -> Result<&Plan, Misuse> {
        if self.is_planned {
            return Err(Misuse::NotAdvanced);
        }
        check_finite("now", now_s)?;
        let is_complete = |&&request: &&RequestNumber| {
            self.state(request).is_ok_and(|state| state.generated >= state.max_tokens)
        };
        if let Some(&request) = self.planned.iter().find(is_complete) {
            return Err(Misuse::Complete(request));
        }
        self.scheduler.plan(self.step, now_s);
        (self.step, self.is_planned) = (self.step + 1, true);
        let plan = self.scheduler.last_plan();
        self.planned.clear();
        let number = |idx| u64::from(self.scheduler.generation(idx)) << 32 | u64::from(idx.0);
        self.planned.extend(plan.rows.iter().map(|row| number(row.idx)));
        Ok(plan)
    }

    /// The requests of the last plan's rows, in their order.
    pub fn planned(&self) -> &[RequestNumber] {
        &self.planned
    }

    /// Records that the plan's rows were computed. See [`Scheduler::advance`].
    pub fn advance(&mut self) -> Result<(), Misuse> {
        if !std::mem::take(&mut self.is_planned) {
            return Err(Misuse::NotPlanned);
        }
        self.scheduler.advance();
        Ok(())
    }

    /// Records draft tokens of the last step that were the ones sampled. See [`Scheduler::accept`].
    pub fn accept(&mut self, request: RequestNumber, tokens: u32) -> Result<(), Misuse> {
        let idx = self.find(request)?;
        let state = self.scheduler.state(idx);
        let decodes = !self.is_planned
            && self.planned.contains(&request)
            && state.generated > 0
            && state.uncomputed() == 1;
        let left = state.max_tokens.saturating_sub(state.generated);
        let room = if decodes { self.scheduler.room(idx).min(left) } else { 0 };
        if tokens > room {
            return Err(Misuse::NoRoom { request, room });
        }
        self.scheduler.accept(idx, tokens);
        Ok(())
    }

    /// Removes a request, completed or cancelled.
    pub fn finish(&mut self, request: RequestNumber) -> Result<(), Misuse> {
        let idx = self.find(request)?;
        self.scheduler.finish(idx);
        Ok(())
    }

    /// The state of a request.
    pub fn state(&self, request: RequestNumber) -> Result<&RequestState, Misuse> {
        self.find(request).map(|idx| self.scheduler.state(idx))
    }

    /// The KV blocks of a request, in the order of its tokens.
    pub fn blocks(&self, request: RequestNumber) -> Result<&[BlockId], Misuse> {
        self.find(request).map(|idx| self.scheduler.blocks(idx))
    }

    /// Ranks by another policy from the next plan on. See [`Scheduler::set_policy`].
    pub fn set_policy(&mut self, policy: PolicyKind) -> Result<(), Misuse> {
        let all = (0..self.scheduler.config().max_requests).map(RequestIdx);
        let lacks =
            |state: &RequestState| state.phase != Phase::Free && state.true_length.is_none();
        if policy.needs() == Needs::TrueLengths
            && all.map(|idx| self.scheduler.state(idx)).any(lacks)
        {
            return Err(Misuse::NoTrueLength);
        }
        self.needs = policy.needs();
        self.scheduler.set_policy(policy.build());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduler() -> CheckedScheduler {
        let config = SchedulerConfig {
            max_running: 2,
            max_requests: 4,
            num_blocks: 8,
            max_context: 64,
            ..SchedulerConfig::default()
        };
        CheckedScheduler::new(config, PolicyKind::Fcfs).expect("sound sizes")
    }

    fn request(max_tokens: u32) -> NewRequest {
        NewRequest { prompt_tokens: 4, max_tokens, ..NewRequest::default() }
    }

    #[test]
    fn calls_out_of_order_are_refused() {
        let mut scheduler = scheduler();
        assert_eq!(scheduler.advance(), Err(Misuse::NotPlanned));
        let one = scheduler.submit(request(1)).expect("room");
        assert_eq!(scheduler.plan(0.0).expect("a plan").rows.len(), 1);
        assert_eq!(scheduler.plan(0.0).err(), Some(Misuse::NotAdvanced));
        assert_eq!(scheduler.accept(one, 1).err(), Some(Misuse::NoRoom { request: one, room: 0 }));
        scheduler.advance().expect("a plan");
        assert_eq!(scheduler.plan(0.0).err(), Some(Misuse::Complete(one)));
        scheduler.finish(one).expect("live");
        assert_eq!(scheduler.plan(0.0).expect("a plan").rows.len(), 0);
    }

    #[test]
    fn numbers_that_are_none_are_refused_by_name() {
        let mut scheduler = scheduler();
        let one = scheduler.submit(request(4)).expect("room");
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let at = NewRequest { arrival_s: wrong.into(), ..request(4) };
            assert_eq!(scheduler.submit(at), Err(Misuse::NotFinite("arrival")));
            let predicted = NewRequest { initial_prediction: Some(wrong), ..request(4) };
            assert_eq!(scheduler.submit(predicted), Err(Misuse::NotFinite("predicted_length")));
            let mut predict =
                |remaining, p50| scheduler.predict(one, remaining, [1.0, p50, 3.0], None).err();
            assert_eq!(predict(wrong, 2.0), Some(Misuse::NotFinite("remaining")));
            assert_eq!(predict(2.0, wrong), Some(Misuse::NotFinite("quantiles")));
            assert_eq!(scheduler.plan(wrong.into()).err(), Some(Misuse::NotFinite("now")));
        }
        for length in [0.0, -1.0] {
            let predicted = NewRequest { initial_prediction: Some(length), ..request(4) };
            assert_eq!(scheduler.submit(predicted), Err(Misuse::NoLength));
        }
        assert_eq!(scheduler.state(one).expect("live").remaining(), None);
        assert_eq!(scheduler.plan(0.0).expect("a plan").rows.len(), 1);
    }

    #[test]
    fn a_policy_by_true_lengths_has_them_of_all_requests() {
        let (mut scheduler, oracle) = (scheduler(), "oracle".parse().expect("a policy"));
        let one = scheduler.submit(request(4)).expect("room");
        assert_eq!(scheduler.set_policy(oracle), Err(Misuse::NoTrueLength));
        scheduler.finish(one).expect("live");
        scheduler.set_policy(oracle).expect("no request");
        assert_eq!(scheduler.submit(request(4)), Err(Misuse::NoTrueLength));
        let known = NewRequest { true_length: Some(3), ..request(4) };
        scheduler.submit(known).expect("room");
        scheduler.set_policy(oracle).expect("all have it");
        scheduler.set_policy(PolicyKind::Fcfs).expect("it needs nothing");
        scheduler.submit(request(4)).expect("room");
    }

    #[test]
    fn the_number_of_a_finished_request_names_no_other() {
        let mut scheduler = scheduler();
        let first = scheduler.submit(request(2)).expect("room");
        scheduler.finish(first).expect("live");
        let second = scheduler.submit(request(2)).expect("room");
        assert_ne!(first, second);
        assert_eq!(first as u32, second as u32, "the index is used again");
        let gone = Err(Misuse::NoRequest(first));
        assert_eq!(scheduler.finish(first), gone);
        assert_eq!(scheduler.predict(first, 1.0, [0.0; 3], None), gone);
        assert_eq!(scheduler.state(u64::MAX).err(), Some(Misuse::NoRequest(u64::MAX)));
        scheduler.predict(second, 1.0, [0.0; 3], None).expect("live");
        assert_eq!(scheduler.state(second).expect("live").remaining(), Some(1.0));
    }

    #[test]
    fn accepted_tokens_stay_within_room_and_length() {
        let mut scheduler = scheduler();
        let one = scheduler.submit(request(6)).expect("room");
        for _ in 0..2 {
            scheduler.plan(0.0).expect("a plan");
            scheduler.advance().expect("a plan");
        }
        assert_eq!(scheduler.accept(one, 5), Err(Misuse::NoRoom { request: one, room: 4 }));
        scheduler.accept(one, 3).expect("room");
        assert_eq!(scheduler.state(one).expect("live").generated, 5);
    }
}

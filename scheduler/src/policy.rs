//! The interface of a scheduling policy: the rank of each request, and whether it may be preempted.

use crate::key::{Key, Ranked};
use crate::plan::{Plan, PlanRow};
use crate::request::{RequestIdx, RequestState};
use crate::requests::Requests;

/// Ranks requests. The scheduler fills the batch in rank order and moves blocks.
///
/// The contract: a key depends only on the request's state and on what the hooks recorded. The
/// state of a request outside the batch changes only by `Scheduler::predict`, so its key is
/// computed again only then and when [`Policy::next_changed`] names it. Keys of running requests
/// are computed at every step.
///
/// A started request that is not [`Policy::preemptable`] must have the key [`Key::pinned`], or one
/// that likewise precedes all keys outside the batch: the order alone decides who runs.
///
/// Without tokens and predictions keys change finitely often: each request finishes because of that
/// (the head of `fill` has the argument).
///
/// A policy that has state per request keeps it in a `Vec` by index, sized in
/// [`Policy::reserve`] and reset in [`Policy::on_submitted`].
pub trait Policy: Send {
    /// The policy's name on the command line and in reports.
    fn name(&self) -> &'static str;

    /// The request's rank in the order over running, paused and waiting requests.
    fn key(&self, request: &RequestState) -> Key;

    /// Returns true if the request, once started, may be preempted for one ranked before it.
    fn preemptable(&self, request: &RequestState) -> bool;

    /// Returns true if a request that does not fit blocks all requests ranked behind it.
    fn strict_order(&self) -> bool {
        false
    }

    /// Most requests that enter the batch in one step.
    fn max_entries(&self) -> u32 {
        u32::MAX
    }

    /// Called once, before every other method, with the number of request indices.
    fn reserve(&mut self, _max_requests: u32) {}

    /// Called at the beginning of each plan; time in seconds on the caller's clock.
    fn on_step(&mut self, _step: u64, _now_s: f64) {}

    /// Called after [`Policy::on_step`] with the KV blocks in use.
    fn on_blocks(&mut self, _used: u32, _num_blocks: u32) {}

    /// A live request whose key changed with time alone (a bound on waiting, say), and that was not
    /// named yet. Called after [`Policy::on_step`] until it returns `None`. To find such requests
    /// without a pass over all, a policy keeps them in a list by the step at which they are due.
    fn next_changed(&mut self) -> Option<RequestIdx> {
        None
    }

    /// Seconds in the system after which a request precedes those ranked by value, as of the last
    /// step; `None` without such a bound.
    fn overdue_after_s(&self) -> Option<f64> {
        None
    }

    /// Called when a request is admitted. Its index may have belonged to another before.
    fn on_submitted(&mut self, _request: &RequestState) {}

    /// Called for each row of a plan once it is filled.
    fn on_scheduled(&mut self, _request: &RequestState, _row: PlanRow) {}

    /// Called when a request leaves the batch unfinished, with its new phase.
    fn on_preempted(&mut self, _request: &RequestState) {}

    /// Called when a prediction was accepted, before the request's key is computed again.
    fn on_predicted(&mut self, _request: &RequestState) {}

    /// Called when a request's row was executed; `generated` is 1 if it sampled a token, else 0.
    fn on_tokens(&mut self, _request: &RequestState, _generated: u32) {}

    /// Called once when a request ends, in any phase.
    fn on_finished(&mut self, _request: &RequestState) {}

    /// The loops of a step over the batch; see [`BatchLoop`]. Provided.
    #[doc(hidden)]
    fn run_loop(&mut self, batch: BatchLoop<'_>) {
        batch.run(self);
    }
}

/// A loop over the requests of the batch that calls the policy for each. [`Policy::run_loop`] is
/// compiled for each policy, so a step has one dynamic call for each loop and not one for each
/// request: a tenth of its time.
#[doc(hidden)]
pub struct BatchLoop<'a>(pub(crate) Loop<'a>);

pub(crate) enum Loop<'a> {
    /// Computes the keys of the running requests, which are planned by no plan yet.
    Rank { running: &'a mut [Ranked], requests: &'a mut Requests, trusted: bool },
    /// Calls [`Policy::on_scheduled`].
    Scheduled { plan: &'a Plan, requests: &'a Requests },
    /// Advances the requests of the plan, and calls [`Policy::on_tokens`].
    Advance { plan: &'a Plan, requests: &'a mut Requests },
}

impl BatchLoop<'_> {
    fn run<P: Policy + ?Sized>(self, policy: &mut P) {
        match self.0 {
            Loop::Rank { running, requests, trusted } => {
                for ranked in running {
                    let request = &mut requests[ranked.idx];
                    request.planned = false;
                    ranked.key = rank(policy, request, trusted);
                }
            }
            Loop::Scheduled { plan, requests } => {
                plan.rows.iter().for_each(|row| policy.on_scheduled(&requests[row.idx], *row));
            }
            Loop::Advance { plan, requests } => {
                for row in &plan.rows {
                    let request = &mut requests[row.idx];
                    // A request finished since the plan; its index may belong to another by now.
                    if !request.planned {
                        continue;
                    }
                    request.advance(plan.step, row.len, row.sample);
                    debug_assert!(request.generated <= request.max_tokens, "finish was due");
                    policy.on_tokens(request, row.sample as u32);
                }
            }
        }
    }
}

/// The rank of `request`: after the caller's priority the policy's, or while its predictions are
/// not `trusted` first in, first out among those that it ranks by value.
pub(crate) fn rank<P>(policy: &P, request: &RequestState, trusted: bool) -> Key
where
    P: Policy + ?Sized,
{
    let key = policy.key(request);
    let key = match !trusted && key.is_by_value() {
        true => Key::new(Key::OVERDUE, 0.0, request.seq),
        false => key,
    };
    key.with_priority(request.priority)
}

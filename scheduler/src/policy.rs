//! What a scheduling policy is: a rank for each request, and whether it may be preempted.

use crate::key::Key;
use crate::plan::PlanRow;
use crate::request::RequestState;

/// Ranks requests. The scheduler does the rest: fills the batch in rank order, moves blocks.
///
/// The contract: a key depends only on the request's state and on what the hooks noted. While a
/// request is outside the batch nothing of its state changes but by `Scheduler::predict`, so its
/// key is asked for again only then, unless [`Policy::ages`] says otherwise. Keys of running
/// requests are asked for at every step.
///
/// A started request that is not [`Policy::preemptable`] must have the key [`Key::pinned`], or one
/// that likewise precedes all keys outside the batch: the order alone decides who runs.
///
/// A policy that keeps something per request keeps it in a `Vec` by index, sized in
/// [`Policy::reserve`] and reset in [`Policy::on_submitted`].
pub trait Policy: Send {
    /// The policy's name on the command line and in reports.
    fn name(&self) -> &'static str;

    /// The request's place in the one order over running and waiting requests.
    fn key(&self, request: &RequestState) -> Key;

    /// Whether the request, once started, may give way to one ranked before it.
    fn preemptable(&self, request: &RequestState) -> bool;

    /// Whether a request that does not fit holds up all those ranked behind it.
    fn strict_order(&self) -> bool {
        false
    }

    /// Whether keys also change while a request does not run (starvation counters, rounds waited).
    /// If so, each step visits every request: [`Policy::on_skipped`], then its key.
    fn ages(&self) -> bool {
        false
    }

    /// Called once, before all else: make room for this many indices.
    fn reserve(&mut self, _max_requests: u32) {}

    /// A step begins; time in seconds on the caller's clock.
    fn on_step(&mut self, _step: u64, _now_s: f64) {}

    /// A request was taken in. Its index may have had another before.
    fn on_submitted(&mut self, _request: &RequestState) {}

    /// A request is in this step's plan with `row`.
    fn on_scheduled(&mut self, _request: &RequestState, _row: PlanRow) {}

    /// A request is not in this step's plan. Called only if [`Policy::ages`].
    fn on_skipped(&mut self, _request: &RequestState) {}

    /// A request's row was carried out; `generated` is 1 if it sampled a token, else 0.
    fn on_tokens(&mut self, _request: &RequestState, _generated: u32) {}
}

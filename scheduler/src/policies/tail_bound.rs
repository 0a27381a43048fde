//! A bound on the time in the system: the longest wait that first come, first served would have
//! imposed on recent arrivals, or a share of it.

use super::express::Express;
use crate::index_list::IndexList;
use crate::request::{RequestIdx, RequestState};

/// Finds the requests that are overdue.
///
/// A scheduler that never idles while work waits serves the backlog at the same rate under every
/// policy. So the time that first come, first served would make an arrival wait is known without
/// running it: D = (expected service of all live requests) / (service per second). A request is
/// overdue once it would end, if it ran from now on, after more than a share of the recent maximum
/// of D in the system, and all that arrived before it are overdue. Overdue requests are served
/// first in, first out, which bounds the tail by that of first come, first served; all others keep
/// their rank.
///
/// Cost per step: a running sum, and the head of the list of arrivals.
pub(super) struct TailBound {
    share: f64,
    express: Express,
    /// Live requests that are not overdue, by arrival.
    arrivals: IndexList<RequestIdx>,
    /// By index.
    entries: Vec<Entry>,
    /// Expected service of all live requests, output tokens.
    backlog: f64,
    live: usize,
    /// Live requests at the last step, and rows of its plan.
    candidates: usize,
    rows: usize,
    /// Service since the last step, output tokens.
    served: f64,
    rate: Rate,
    /// The recent maximum of D, seconds.
    longest_s: f64,
    now_s: f64,
    /// Arrivals below this sequence number are overdue.
    overdue_end: u64,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    /// Expected service, less one token per token generated since.
    service: f64,
    /// The part of it that computes the prompt.
    prefill: f64,
    /// Tokens generated when `service` was expected.
    age: u32,
    arrival_s: f64,
    seq: u64,
    /// Precedes the overdue. As of the last expectation, so that a key changes only with its
    /// request.
    express: bool,
    /// Output tokens until it is known whether a request that is long by the prompt is short; 0
    /// where that is known, or was never open.
    trial_tokens: u32,
}

/// Tokens of a request after which its expected service is taken into the sum again. In between it
/// counts down, which takes no access to its entry.
const EXPECT_TOKENS: u32 = 8;

/// Seconds by which the recent maximum of D falls per second. A maximum is forgotten after ten
/// times its own length: long enough for the arrivals that met it to leave.
const FORGET: f64 = 0.1;

impl TailBound {
    /// A bound of `share` of the recent maximum of D, for `max_requests` indices; requests below
    /// `express` times the mean expected service precede the overdue ([`Express`]).
    pub(super) fn new(share: f32, express: f32, max_requests: u32) -> TailBound {
        TailBound {
            share: f64::from(share),
            express: Express::new(express),
            arrivals: IndexList::new(max_requests),
            entries: vec![Entry::default(); max_requests as usize],
            backlog: 0.0,
            live: 0,
            candidates: 0,
            rows: 0,
            served: 0.0,
            rate: Rate::default(),
            longest_s: 0.0,
            now_s: 0.0,
            overdue_end: 0,
        }
    }

    /// True if the request would end after the bound, or did when it was last looked at.
    pub(super) fn is_overdue(&self, request: &RequestState) -> bool {
        request.seq < self.overdue_end
    }

    /// True if the request precedes the overdue, though it is not overdue.
    pub(super) fn is_express(&self, request: &RequestState) -> bool {
        self.entries[request.idx.index()].express
    }

    pub(super) fn on_step(&mut self, now_s: f64) {
        let elapsed_s = (now_s - self.now_s).max(0.0);
        // The rate of a batch that took in all requests says nothing about a backlog.
        if 0 < self.rows && self.rows < self.candidates {
            self.rate.add(self.served, elapsed_s);
        }
        let drain_s = self.rate.seconds_for(self.backlog);
        self.longest_s = (self.longest_s - FORGET * elapsed_s).max(drain_s);
        (self.now_s, self.served) = (now_s, 0.0);
        (self.candidates, self.rows) = (self.live, 0);
    }

    /// The next request that has become overdue.
    pub(super) fn next_overdue(&mut self) -> Option<RequestIdx> {
        let idx = self.arrivals.front()?;
        let Entry { service, prefill, arrival_s, seq, .. } = self.entries[idx.index()];
        // A step gives a token to each request, and computes many of a prompt.
        let tokens_s = (service - prefill) * self.rate.seconds_for_step();
        let end_s = self.now_s + tokens_s + self.rate.seconds_for(prefill);
        if self.longest_s <= 0.0 || end_s - arrival_s <= self.share * self.longest_s {
            return None;
        }
        self.arrivals.remove(idx);
        self.overdue_end = seq + 1;
        Some(idx)
    }

    /// Takes in a request that needs `service` for its output and `prefill` for its prompt; after
    /// `trial_tokens` another may take its place.
    pub(super) fn on_submitted(
        &mut self,
        request: &RequestState,
        [service, prefill]: [f64; 2],
        trial_tokens: u32,
    ) {
        let (arrival_s, seq) = (request.arrival_s, request.seq);
        let age = request.generated;
        self.express.on_arrival(service + prefill);
        let idx = request.idx;
        self.entries[idx.index()] = Entry { age, arrival_s, seq, ..Entry::default() };
        self.arrivals.push_back(idx);
        self.live += 1;
        self.expect(request, [service, prefill]);
        let entry = &mut self.entries[idx.index()];
        // A request that was moved here is beyond its burn-in.
        if !entry.express && age < trial_tokens {
            entry.express = self.express.is_worth(f64::from(trial_tokens) + prefill);
            entry.trial_tokens = trial_tokens;
        }
    }

    /// Counts a request that was long by the prompt: short once an estimate of its burn-in says so
    /// or it ends within, else long.
    fn judge(&mut self, request: &RequestState, is_short: bool) {
        self.entries[request.idx.index()].trial_tokens = 0;
        self.express.on_judged(is_short);
    }

    pub(super) fn on_scheduled(&mut self) {
        self.rows += 1;
    }

    /// Updates the request's expected service, for its output and its prompt.
    pub(super) fn expect(&mut self, request: &RequestState, [service, prefill]: [f64; 2]) {
        let service = service + prefill;
        let express = self.express.is_short(service);
        let entry = &mut self.entries[request.idx.index()];
        let since = request.generated - entry.age;
        self.backlog += service - (entry.service - f64::from(since));
        (entry.service, entry.prefill) = (service, prefill);
        (entry.age, entry.express) = (request.generated, express);
        let (trial, generated) = (entry.trial_tokens, request.generated);
        // By half of the bound: one that the prompt put just above it was no surprise.
        let is_short = self.express.is_short(2.0 * service);
        if trial > 0 && (generated >= trial || generated > 0 && is_short) {
            self.judge(request, is_short);
        }
    }

    /// True if a new estimate of the request's service is due.
    pub(super) fn is_due(&self, request: &RequestState) -> bool {
        request.generated >= self.entries[request.idx.index()].age + EXPECT_TOKENS
    }

    /// Records the prefill of a row, as service in output tokens.
    pub(super) fn on_prefill(&mut self, served: f64) {
        self.served += served;
    }

    /// Records the tokens that a request generated.
    pub(super) fn on_tokens(&mut self, generated: u32) {
        self.served += f64::from(generated);
        self.backlog -= f64::from(generated);
    }

    pub(super) fn on_finished(&mut self, request: &RequestState) {
        let trial = self.entries[request.idx.index()].trial_tokens;
        if trial > 0 && request.generated > 0 {
            self.judge(request, request.generated < trial);
        }
        self.expect(request, [0.0; 2]);
        self.arrivals.remove(request.idx);
        self.live -= 1;
        if self.live == 0 {
            self.backlog = 0.0; // without the rounding errors of the sum
        }
    }
}

/// Service per second, over about the last [`RATE_MEMORY_S`] seconds of full batches.
#[derive(Default)]
struct Rate {
    served: f64,
    seconds: f64,
    steps: f64,
}

const RATE_MEMORY_S: f64 = 10.0;

impl Rate {
    fn add(&mut self, served: f64, seconds: f64) {
        let kept = RATE_MEMORY_S / (RATE_MEMORY_S + seconds);
        self.served = self.served * kept + served;
        self.seconds = self.seconds * kept + seconds;
        self.steps = self.steps * kept + 1.0;
    }

    /// Time of a step, in which each request of the batch gets a token; 0 before anything was
    /// measured.
    fn seconds_for_step(&self) -> f64 {
        if self.steps > 0.0 { self.seconds / self.steps } else { 0.0 }
    }

    /// Time to serve `service`; 0 before anything was measured.
    fn seconds_for(&self, service: f64) -> f64 {
        if self.served > 0.0 { service * self.seconds / self.served } else { 0.0 }
    }
}

#[cfg(test)]
mod tests;

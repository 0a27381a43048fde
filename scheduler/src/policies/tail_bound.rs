//! A bound on the time in the system: the longest wait that first come, first served would have
//! imposed on recent arrivals, or a share of it.

use super::express::Express;
use super::list::IndexList;
use crate::request::{RequestIdx, RequestState};

/// Finds the requests that are overdue.
///
/// A scheduler that never idles while work waits serves the backlog at the same rate under every
/// policy. So the time that first come, first served would make an arrival wait is known without
/// running it: D = (expected service of all live requests) / (service per second). A request is
/// overdue once it would end, if it ran from now on, after more than a share of the recent maximum
/// of D in the system. Overdue requests are served first in, first out, which bounds the tail by
/// that of first come, first served; all others keep their rank.
///
/// Cost per step: a running sum, and the head of the list of arrivals.
pub(super) struct TailBound {
    share: f64,
    express: Express,
    /// Live requests that are not overdue, by arrival.
    arrivals: IndexList,
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
    /// Expected service, of which one token is taken off per token generated since.
    service: f64,
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

    /// True if the request has been in the system for too long.
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
        let Entry { service, arrival_s, seq, .. } = self.entries[idx.index()];
        let end_s = self.now_s + service * self.rate.seconds_for_step();
        if self.longest_s <= 0.0 || end_s - arrival_s <= self.share * self.longest_s {
            return None;
        }
        self.arrivals.remove(idx);
        self.overdue_end = seq + 1;
        Some(idx)
    }

    /// Takes in a request that needs `service` in all, and `trial` for `trial_tokens`, after which
    /// another may take its place.
    pub(super) fn on_submitted(
        &mut self,
        request: &RequestState,
        service: f64,
        trial: f64,
        trial_tokens: u32,
    ) {
        let (arrival_s, seq) = (request.arrival_s, request.seq);
        let age = request.generated;
        self.express.on_arrival(service);
        let idx = request.idx;
        self.entries[idx.index()] = Entry { age, arrival_s, seq, ..Entry::default() };
        self.arrivals.push_back(idx);
        self.live += 1;
        self.expect(request, service);
        let entry = &mut self.entries[idx.index()];
        if !entry.express {
            (entry.express, entry.trial_tokens) = (self.express.is_worth(trial), trial_tokens);
        }
    }

    /// Counts a request that was long by the prompt, once its burn-in or the request has ended.
    fn judge(&mut self, request: &RequestState, is_short: bool) {
        let entry = &mut self.entries[request.idx.index()];
        let (trial, generated) = (entry.trial_tokens, request.generated);
        if trial > 0 && (generated >= trial || generated > 0 && is_short) {
            entry.trial_tokens = 0;
            self.express.on_judged(is_short);
        }
    }

    pub(super) fn on_scheduled(&mut self) {
        self.rows += 1;
    }

    /// Updates the request's expected service.
    pub(super) fn expect(&mut self, request: &RequestState, service: f64) {
        let express = self.express.is_short(service);
        // By half of the bound: one that the prompt put just above it was no surprise.
        self.judge(request, self.express.is_short(2.0 * service));
        let entry = &mut self.entries[request.idx.index()];
        let since = request.generated - entry.age;
        self.backlog += service - (entry.service - f64::from(since));
        (entry.service, entry.age, entry.express) = (service, request.generated, express);
    }

    /// True if a new estimate of the request's service is due.
    pub(super) fn is_due(&self, request: &RequestState) -> bool {
        request.generated.is_multiple_of(EXPECT_TOKENS)
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
        self.expect(request, 0.0);
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
mod tests {
    use super::*;
    use crate::policies::request;

    /// A bound with `count` requests of 10 tokens each that arrived at 0 s, 1 s, ...
    fn backlog(count: u64) -> TailBound {
        let mut bound = TailBound::new(0.5, 0.0, 64);
        for seq in 0..count {
            bound.on_submitted(&request(seq, None), 10.0, 0.0, 0);
        }
        bound
    }

    /// Serves `tokens` in `seconds`, with one row in the plan.
    fn serve(bound: &mut TailBound, tokens: f64, seconds: f64) {
        bound.on_scheduled();
        bound.on_prefill(tokens);
        bound.on_step(bound.now_s + seconds);
    }

    #[test]
    fn who_would_end_after_half_the_drain_time_is_overdue_in_order_of_arrival() {
        let mut bound = backlog(8);
        bound.on_step(8.0);
        assert_eq!(bound.next_overdue(), None, "no rate was measured yet");
        (0..8).for_each(|_| serve(&mut bound, 2.5, 0.25)); // 80 tokens at 10 a second: 8 s
        assert!((bound.longest_s - 8.0).abs() < 1e-9);
        let overdue: Vec<u32> =
            std::iter::from_fn(|| bound.next_overdue()).map(|idx| idx.0).collect();
        // At 10 s. Its 10 tokens take 10 steps of 0.25 s: arrived before 10 + 2.5 - 4 s.
        assert_eq!(overdue, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(bound.is_overdue(&request(7, None)) && !bound.is_overdue(&request(8, None)));

        let mut bound = TailBound::new(0.75, 0.0, 64);
        (0..8).for_each(|seq| bound.on_submitted(&request(seq, None), 10.0, 0.0, 0));
        bound.on_step(8.0);
        (0..8).for_each(|_| serve(&mut bound, 2.5, 0.25));
        let overdue = std::iter::from_fn(|| bound.next_overdue()).count();
        assert_eq!(overdue, 7, "arrived before 10 + 2.5 - 6 s");
    }

    /// A request that needs `service` tokens in all and 9 in its burn-in, and true if it precedes
    /// the overdue.
    fn submit(bound: &mut TailBound, seq: u64, service: f64) -> (RequestState, bool) {
        let request = request(seq, None);
        bound.on_submitted(&request, service, 9.0, 9);
        let is_express = bound.is_express(&request);
        (request, is_express)
    }

    #[test]
    fn who_is_short_by_the_prompt_or_later_is_express() {
        let mut bound = TailBound::new(0.9, 0.5, 64);
        let (request, is_express) = submit(&mut bound, 0, 20.0);
        assert!(!is_express && submit(&mut bound, 1, 6.6).1, "the mean is 20, then 13");
        for (service, is_express) in [(6.6, true), (6.7, false)] {
            bound.expect(&request, service);
            assert_eq!(bound.is_express(&request), is_express);
        }
    }

    /// Trials of 9 tokens in a mean of 40 are worth it if more than 9 in 20 find a short request.
    #[test]
    fn a_request_that_was_long_by_the_prompt_is_judged_once() {
        let mut bound = TailBound::new(0.9, 0.5, 64);
        let mut requests: Vec<RequestState> =
            (0..3).map(|seq| submit(&mut bound, seq, 40.0).0).collect();
        for (request, (generated, service)) in
            requests.iter_mut().zip([(8, 30.0), (9, 2.0), (9, 30.0)])
        {
            request.generated = generated;
            bound.expect(request, service);
            bound.expect(request, service);
        }
        assert!(submit(&mut bound, 3, 40.0).1, "one of two: the first is in its burn-in");
        bound.on_finished(&requests[0]); // short, as it has ended
        let (never_ran, is_express) = submit(&mut bound, 4, 40.0);
        bound.on_finished(&never_ran);
        assert!(is_express);
        let (mut long, _) = submit(&mut bound, 5, 40.0);
        long.generated = 9;
        bound.expect(&long, 40.0);
        assert!(submit(&mut bound, 6, 40.0).1, "two of four");
        let (mut long, _) = submit(&mut bound, 7, 40.0);
        long.generated = 9;
        bound.expect(&long, 40.0);
        assert!(!submit(&mut bound, 8, 40.0).1, "two of five");
    }

    #[test]
    fn the_longest_drain_time_is_forgotten_slowly() {
        let mut bound = backlog(2);
        bound.on_step(0.0);
        serve(&mut bound, 10.0, 1.0);
        assert_eq!(bound.longest_s, 2.0);
        (0..2).for_each(|seq| bound.on_finished(&request(seq, None)));
        bound.on_step(6.0);
        assert_eq!((bound.backlog, bound.longest_s), (0.0, 1.5));
    }

    #[test]
    fn the_backlog_counts_each_generated_token_once() {
        let mut bound = backlog(2);
        let mut first = request(0, None);
        (0..4).for_each(|_| bound.on_tokens(1));
        first.generated = 4;
        assert_eq!(bound.backlog, 16.0);
        bound.expect(&first, 9.0);
        assert_eq!(bound.backlog, 19.0, "9 of the first and 10 of the second");
        (0..2).for_each(|_| bound.on_tokens(1));
        first.generated = 6;
        bound.on_finished(&first);
        assert_eq!(bound.backlog, 10.0);
    }

    #[test]
    fn a_batch_with_free_places_tells_nothing_about_the_rate() {
        let mut bound = backlog(1);
        bound.on_step(0.0);
        serve(&mut bound, 10.0, 1.0);
        assert_eq!(bound.longest_s, 0.0);
    }
}

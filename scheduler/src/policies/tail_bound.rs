//! A bound on the time in the system: a multiple of the longest time that first come, first served
//! would have let recent arrivals wait.

mod drain;

pub(super) use self::drain::Work;
use self::drain::{Drain, Expectations};
use super::express::Express;
use super::ranking::Ranking;
use crate::index_list::IndexList;
use crate::plan::PlanRow;
use crate::request::{RequestIdx, RequestState};

/// Finds the requests that are overdue.
///
/// A scheduler that never idles while work waits serves the backlog at the same rate under every
/// policy. So the time that first come, first served would make an arrival wait is known without
/// running it ([`Drain::wait_s`]); D is its recent maximum. A request is overdue once it is in the
/// system for a share of D. Overdue requests go first in, first out: the time in the system is then
/// about D and the request's own service, the longest under first come, first served. All others
/// keep their rank.
///
/// Cost per step: some running means, and the head of the list of arrivals.
pub(super) struct TailBound {
    share: f64,
    /// Output tokens that a prompt token costs.
    prefill_weight: f64,
    express: Express,
    /// Live requests that are not overdue, by arrival.
    arrivals: IndexList<RequestIdx>,
    /// By index.
    entries: Vec<Entry>,
    /// Expected work of all live requests, the predictions as they are.
    backlog: Work,
    /// Number of the live requests that have no output yet, and their predicted output tokens.
    unbegun: (f64, f64),
    live: usize,
    /// Live requests at the last step.
    candidates: usize,
    /// The plan since the last step.
    planned: Planned,
    drain: Drain,
    /// D, seconds.
    longest_s: f64,
    now_s: f64,
    /// Arrivals below this sequence number are overdue.
    overdue_end: u64,
}

/// Rows of a plan, and its prefill tokens.
#[derive(Clone, Copy, Default)]
struct Planned {
    rows: usize,
    prefill: f64,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    /// Expected work; the output less one token per token generated since.
    work: Work,
    /// Output tokens predicted at its arrival, those that it came with included.
    predicted: f64,
    /// It has no output yet, and counts in `unbegun`.
    is_unbegun: bool,
    /// Tokens generated when `work` was expected.
    age: u32,
    /// Expectations since it began.
    since: Expectations,
    arrival_s: f64,
    seq: u64,
    /// Precedes the overdue. As of the last expectation, so that a key changes only with its
    /// request.
    express: bool,
    /// Output tokens until it is known whether a request that is long by the prompt is short; 0
    /// where that is known, or was never open.
    trial_tokens: u32,
}

/// Tokens of a request after which its expected work is taken into the sum again. In between it
/// counts down, which takes no access to its entry.
const EXPECT_TOKENS: u32 = 8;

/// Seconds by which D falls per second. A maximum is forgotten after ten times its own length: long
/// enough for the arrivals that met it to leave.
const FORGET: f64 = 0.1;

impl TailBound {
    /// A bound as `ranking` says, for `max_requests` indices.
    pub(super) fn new(ranking: &Ranking, max_requests: u32) -> TailBound {
        TailBound {
            share: f64::from(ranking.tail_bound),
            prefill_weight: f64::from(ranking.prefill_weight),
            express: Express::new(ranking.express),
            arrivals: IndexList::new(max_requests),
            entries: vec![Entry::default(); max_requests as usize],
            backlog: Work::default(),
            unbegun: (0.0, 0.0),
            live: 0,
            candidates: 0,
            planned: Planned::default(),
            drain: Drain::default(),
            longest_s: 0.0,
            now_s: 0.0,
            overdue_end: 0,
        }
    }

    /// True if the request is in the system for longer than the bound, or was when it was last
    /// looked at.
    pub(super) fn is_overdue(&self, request: &RequestState) -> bool {
        request.seq < self.overdue_end
    }

    /// True if the request precedes the overdue, though it is not overdue.
    pub(super) fn is_express(&self, request: &RequestState) -> bool {
        self.entries[request.idx.index()].express
    }

    pub(super) fn on_step(&mut self, now_s: f64) {
        let elapsed_s = (now_s - self.now_s).max(0.0);
        let Planned { rows, prefill } = std::mem::take(&mut self.planned);
        // The time of a batch that took in all requests says nothing about a backlog.
        if 0 < rows && rows < self.candidates {
            self.drain.on_full_step(rows, prefill, elapsed_s);
        }
        let (requests, predicted) = self.unbegun;
        let begun = self.drain.begun(self.live as f64 - requests, self.backlog.output - predicted);
        let output = begun + self.drain.unbegun(requests, predicted);
        let wait_s = self.drain.wait_s(Work { output, ..self.backlog });
        self.longest_s = (self.longest_s - FORGET * elapsed_s).max(wait_s);
        self.now_s = now_s;
        self.candidates = self.live;
    }

    /// Seconds in the system after which a request is overdue; `None` before a batch was full.
    pub(super) fn after_s(&self) -> Option<f64> {
        (self.longest_s > 0.0).then_some(self.share * self.longest_s)
    }

    /// The next request that has become overdue.
    pub(super) fn next_overdue(&mut self) -> Option<RequestIdx> {
        let idx = self.arrivals.front()?;
        let Entry { arrival_s, seq, .. } = self.entries[idx.index()];
        if self.after_s().is_none_or(|after_s| self.now_s - arrival_s <= after_s) {
            return None;
        }
        self.arrivals.remove(idx);
        self.overdue_end = seq + 1;
        Some(idx)
    }

    /// Takes in a request that needs `work`; after `trial_tokens` another may take its place.
    pub(super) fn on_submitted(&mut self, request: &RequestState, work: Work, trial_tokens: u32) {
        let (arrival_s, seq) = (request.arrival_s, request.seq);
        let age = request.generated;
        self.express.on_arrival(work.in_output_tokens(self.prefill_weight));
        let idx = request.idx;
        let (predicted, is_unbegun) = (work.output + f64::from(age), age == 0);
        self.entries[idx.index()] =
            Entry { age, arrival_s, seq, predicted, is_unbegun, ..Entry::default() };
        if is_unbegun {
            self.unbegun.0 += 1.0;
            self.unbegun.1 += predicted;
        }
        self.arrivals.push_back(idx);
        self.live += 1;
        self.expect(request, work);
        let trial = Work { output: f64::from(trial_tokens), ..work };
        let is_worth = self.express.is_worth(trial.in_output_tokens(self.prefill_weight));
        let entry = &mut self.entries[idx.index()];
        // A request that was moved here is beyond its burn-in.
        if !entry.express && age < trial_tokens {
            entry.express = is_worth;
            entry.trial_tokens = trial_tokens;
        }
    }

    /// Counts a request that was long by the prompt: short once an estimate of its burn-in says so
    /// or it ends within, else long.
    fn judge(&mut self, request: &RequestState, is_short: bool) {
        self.entries[request.idx.index()].trial_tokens = 0;
        self.express.on_judged(is_short);
    }

    /// Records a row of the plan.
    pub(super) fn on_scheduled(&mut self, request: &RequestState, row: PlanRow) {
        let prefill = f64::from(row.len - u32::from(row.sample));
        self.planned.rows += 1;
        if prefill > 0.0 {
            self.planned.prefill += prefill;
            let left = &mut self.entries[request.idx.index()].work.prefill;
            let done = prefill.min(*left);
            *left -= done;
            self.backlog.prefill -= done;
        }
    }

    /// Updates the request's expected work.
    pub(super) fn expect(&mut self, request: &RequestState, work: Work) {
        let service = work.in_output_tokens(self.prefill_weight);
        let express = self.express.is_short(service);
        let entry = &mut self.entries[request.idx.index()];
        let since = request.generated - entry.age;
        self.backlog.output += work.output - (entry.work.output - f64::from(since));
        self.backlog.prefill += work.prefill - entry.work.prefill;
        (entry.work, entry.age, entry.express) = (work, request.generated, express);
        if !entry.is_unbegun {
            entry.since.add(request.generated, work.output);
        }
        let (trial, generated) = (entry.trial_tokens, request.generated);
        // By half of the bound: one that the prompt put just above it was no surprise.
        let is_short = self.express.is_short(2.0 * service);
        if trial > 0 && (generated >= trial || generated > 0 && is_short) {
            self.judge(request, is_short);
        }
    }

    /// True if a new estimate of the request's work is due.
    pub(super) fn is_due(&self, request: &RequestState) -> bool {
        request.generated >= self.entries[request.idx.index()].age + EXPECT_TOKENS
    }

    /// Records the tokens that a request generated.
    pub(super) fn on_tokens(&mut self, request: &RequestState, generated: u32) {
        self.backlog.output -= f64::from(generated);
        // A chunk of a prompt generates none.
        if generated > 0 && request.generated == generated {
            self.begin(request);
        }
    }

    fn begin(&mut self, request: &RequestState) {
        let entry = &mut self.entries[request.idx.index()];
        if std::mem::take(&mut entry.is_unbegun) {
            self.unbegun.0 -= 1.0;
            self.unbegun.1 -= entry.predicted;
        }
    }

    pub(super) fn on_finished(&mut self, request: &RequestState) {
        self.begin(request);
        let trial = self.entries[request.idx.index()].trial_tokens;
        if trial > 0 && request.generated > 0 {
            self.judge(request, request.generated < trial);
        }
        if request.generated > 0 {
            let Entry { predicted, since, .. } = self.entries[request.idx.index()];
            if self.drain.on_finished(request.generated, predicted, since) {
                // The maximum of waits by predictions as they are.
                self.longest_s = 0.0;
            }
        }
        self.expect(request, Work::default());
        self.arrivals.remove(request.idx);
        self.live -= 1;
        if self.live == 0 {
            // Without the rounding errors of the sums.
            (self.backlog, self.unbegun) = (Work::default(), (0.0, 0.0));
        }
    }
}

#[cfg(test)]
mod tests;

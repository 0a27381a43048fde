//! The workers' loads as this router knows them: reports, and its own bookings since.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trail_dynamo_proto::{LoadReport, Pace, REPORT_PERIOD};

use crate::backlog::Backlog;

/// Age after which a report says nothing: ten periods.
pub const STALE: Duration = Duration::from_millis(500);

/// Silence after which a worker is forgotten, once another one comes.
const FORGET: Duration = Duration::from_secs(60);

/// A job to place.
#[derive(Clone, Copy, Debug, Default)]
pub struct Job {
    /// Expected output tokens; `None` is the mean of what is there.
    pub size: Option<f32>,
    /// KV blocks of its prompt.
    pub blocks: u32,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
}

/// A worker that can take the job.
#[derive(Clone, Copy, Debug, Default)]
pub struct Candidate {
    /// Dynamo's instance id.
    pub worker: u64,
    /// Requests that Dynamo counts there.
    pub active: usize,
    /// Tokens at the beginning of the job's prompt whose KV is there.
    pub cached_tokens: usize,
}

/// The cost of one worker, in the order of comparison: lower is better.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Cost {
    /// Without a fresh report: a worker that does not report may hang. Among such workers only the
    /// number of active requests counts.
    is_silent: bool,
    /// Seconds until the job's first token, and of the delay of another that it preempts; under
    /// least-work the tokens of all.
    delay: f32,
    /// Requests there.
    active: usize,
    /// Sum of remaining tokens.
    total: f32,
}

/// Quantity that is minimized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// Time until the job can run, and of the prefill that the worker does not save.
    PredictedWait,
    /// Sum of the predicted remaining tokens (ELIS, section 4.1, by tokens in place of jobs).
    LeastWork,
}

/// One worker.
struct Load {
    report: LoadReport,
    received: Instant,
    /// The report's requests, and the bookings that it cannot have counted.
    backlog: Backlog,
    bookings: Vec<(Instant, f32)>,
}

impl Load {
    fn rebuild(&mut self) {
        let LoadReport { running, waiting, slots, .. } = &self.report;
        let booked = self.bookings.iter().map(|&(_, size)| size);
        let reported = running.iter().chain(waiting).copied();
        self.backlog = Backlog::new(*slots, reported.chain(booked));
    }
}

/// All workers.
#[derive(Default)]
pub struct Loads(Mutex<HashMap<u64, Load>>);

impl Loads {
    /// Takes a report; ignored if a later one was taken.
    pub fn report(&self, report: LoadReport, now: Instant) {
        let mut loads = self.lock();
        if !loads.contains_key(&report.worker_id) {
            loads.retain(|_, load| now.duration_since(load.received) < FORGET);
        }
        let load = loads.entry(report.worker_id).or_insert_with(|| Load {
            report: LoadReport::default(),
            received: now,
            backlog: Backlog::default(),
            bookings: Vec::new(),
        });
        if !report.supersedes(&load.report) {
            return;
        }
        // A younger booking may not have reached the worker when it counted.
        load.bookings.retain(|&(booked, _)| now.duration_since(booked) < REPORT_PERIOD);
        (load.report, load.received) = (report, now);
        load.rebuild();
    }

    /// Books a job of `size` tokens until the worker's reports count it.
    pub fn book(&self, worker: u64, size: f32, now: Instant) {
        if let Some(load) = self.lock().get_mut(&worker) {
            load.bookings.push((now, size));
            load.backlog.add(size);
        }
    }

    /// The best of `workers`. Returns its place and the job's size; `None` without workers.
    pub fn choose(
        &self,
        workers: impl Iterator<Item = Candidate> + Clone,
        job: Job,
        objective: Objective,
        now: Instant,
    ) -> Option<(usize, f32)> {
        let loads = self.lock();
        let known = workers.clone().filter_map(|of| loads.get(&of.worker));
        let size = job.size.unwrap_or_else(|| mean(known.clone()));
        let usual = &|| usual_pace(known.clone());
        let place = Place { job, size, objective, now, usual };
        let costs = workers.map(|of| place.cost(loads.get(&of.worker), of));
        let better = |a: &(usize, Cost), b: &(usize, Cost)| a.1.partial_cmp(&b.1);
        let best =
            costs.enumerate().min_by(|a, b| better(a, b).unwrap_or(std::cmp::Ordering::Equal));
        best.map(|(at, _)| (at, size))
    }

    /// Number of workers with a fresh report.
    pub fn alive(&self, now: Instant) -> usize {
        self.lock().values().filter(|load| now.duration_since(load.received) < STALE).count()
    }

    /// The fresh reports, by worker.
    pub fn reports(&self, now: Instant) -> Vec<LoadReport> {
        let loads = self.lock();
        let fresh = loads.values().filter(|load| now.duration_since(load.received) < STALE);
        let mut reports: Vec<LoadReport> = fresh.map(|load| load.report.clone()).collect();
        reports.sort_unstable_by_key(|report| report.worker_id);
        reports
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Load>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A job of known size, and the measure.
struct Place<'a> {
    job: Job,
    size: f32,
    objective: Objective,
    now: Instant,
    /// The pace of a worker without measurements.
    usual: &'a dyn Fn() -> Pace,
}

impl Place<'_> {
    /// The cost of a candidate with `load`.
    fn cost(&self, load: Option<&Load>, candidate: Candidate) -> Cost {
        let fresh = load.filter(|load| self.now.duration_since(load.received) < STALE);
        let Some(load) = fresh else {
            let active = candidate.active;
            return Cost { is_silent: true, delay: 0.0, active, total: 0.0 };
        };
        let (active, total) = (load.backlog.active(), load.backlog.total());
        let delay = match self.objective {
            Objective::PredictedWait => self.delay(load, candidate.cached_tokens),
            Objective::LeastWork => total,
        };
        Cost { is_silent: false, delay, active, total }
    }

    /// Seconds until the job's first token. Where no slot is free it takes the place of another,
    /// or of those behind it, for as long as it runs: that counts too, so that a worker that is
    /// full comes after a free slot.
    fn delay(&self, Load { backlog, report, .. }: &Load, cached_tokens: usize) -> f32 {
        let Pace { decode_step_s, prefill_token_s } = self.pace(report.pace);
        let has_room = !backlog.is_full() && report.kv_free_blocks >= self.job.blocks;
        let displaced = if has_room { 0.0 } else { self.size.max(1.0) };
        let steps = backlog.wait(self.size, report.order) + displaced;
        let prefill = self.job.prompt_tokens.saturating_sub(cached_tokens) as f32;
        steps * decode_step_s + prefill * prefill_token_s
    }

    /// `measured`, where it is, and the usual pace.
    fn pace(&self, measured: Pace) -> Pace {
        if measured.decode_step_s > 0.0 && measured.prefill_token_s > 0.0 {
            return measured;
        }
        let usual = (self.usual)();
        let or = |measured, usual| if measured > 0.0 { measured } else { usual };
        Pace {
            decode_step_s: or(measured.decode_step_s, usual.decode_step_s),
            prefill_token_s: or(measured.prefill_token_s, usual.prefill_token_s),
        }
    }
}

/// The mean pace of `workers`. Where none is measured, a step counts 1 and prefill nothing.
fn usual_pace<'a>(workers: impl Iterator<Item = &'a Load> + Clone) -> Pace {
    let mean = |of: fn(&Pace) -> f32, unknown: f32| {
        let measured = workers.clone().map(|load| of(&load.report.pace)).filter(|&s| s > 0.0);
        let (sum, count) = measured.fold((0.0, 0), |(sum, count), s| (sum + s, count + 1));
        if count == 0 { unknown } else { sum / count as f32 }
    };
    let decode_step_s = mean(|pace| pace.decode_step_s, 1.0);
    Pace { decode_step_s, prefill_token_s: mean(|pace| pace.prefill_token_s, 0.0) }
}

/// Mean remaining tokens of the requests at `workers`; 0 where there are none.
fn mean<'a>(workers: impl Iterator<Item = &'a Load>) -> f32 {
    let (total, active) = workers.fold((0.0, 0), |(total, active), Load { backlog, .. }| {
        (total + backlog.total(), active + backlog.active())
    });
    if active == 0 { 0.0 } else { total / active as f32 }
}

#[cfg(test)]
mod tests {
    use trail_dynamo_proto::Order;

    use super::*;

    const WAIT: Objective = Objective::PredictedWait;

    fn report(worker_id: u64, seq: u64, running: &[f32], waiting: &[f32]) -> LoadReport {
        let (running, waiting) = (running.to_vec(), waiting.to_vec());
        LoadReport { worker_id, seq, slots: 2, running, waiting, ..LoadReport::default() }
    }

    fn of(size: f32) -> Job {
        Job { size: Some(size), ..Job::default() }
    }

    fn at(worker: u64, active: usize) -> Candidate {
        Candidate { worker, active, cached_tokens: 0 }
    }

    fn pick(
        loads: &Loads,
        active: [usize; 2],
        size: f32,
        objective: Objective,
        now: Instant,
    ) -> u64 {
        let workers = [at(1, active[0]), at(2, active[1])];
        let chosen = loads.choose(workers.into_iter(), of(size), objective, now);
        workers[chosen.expect("there are workers").0].worker
    }

    #[test]
    fn a_free_slot_beats_a_small_sum_and_least_work_prefers_the_sum() {
        let (loads, now) = (Loads::default(), Instant::now());
        loads.report(report(1, 1, &[2.0, 2.0], &[]), now);
        loads.report(report(2, 1, &[900.0], &[]), now);
        assert_eq!(pick(&loads, [0, 0], 50.0, WAIT, now), 2);
        assert_eq!(pick(&loads, [0, 0], 50.0, Objective::LeastWork, now), 1);
    }

    #[test]
    fn all_work_of_a_worker_that_serves_by_arrival_delays_a_job() {
        let (loads, now) = (Loads::default(), Instant::now());
        let order = Order::Fcfs;
        loads.report(LoadReport { order, ..report(1, 1, &[90.0, 90.0], &[]) }, now);
        loads.report(report(2, 1, &[9.0, 9.0], &[]), now);
        assert_eq!(pick(&loads, [0, 0], 20.0, WAIT, now), 2);
        loads.report(report(1, 2, &[90.0, 90.0], &[]), now);
        assert_eq!(pick(&loads, [0, 0], 20.0, WAIT, now), 1, "the job would preempt");
    }

    #[test]
    fn ties_go_by_active_count_then_by_total() {
        let (loads, now) = (Loads::default(), Instant::now());
        loads.report(report(1, 1, &[9.0], &[]), now);
        loads.report(report(2, 1, &[], &[]), now);
        assert_eq!(pick(&loads, [0, 0], 50.0, WAIT, now), 2);
        loads.report(report(2, 2, &[8.0], &[]), now);
        assert_eq!(pick(&loads, [0, 0], 50.0, WAIT, now), 2);
    }

    #[test]
    fn a_full_worker_whose_requests_rank_behind_comes_after_a_free_slot() {
        let (loads, now) = (Loads::default(), Instant::now());
        loads.report(report(1, 1, &[500.0, 500.0], &[]), now);
        loads.report(report(2, 1, &[3.0], &[]), now);
        assert_eq!(pick(&loads, [0, 0], 50.0, WAIT, now), 2);
    }

    #[test]
    fn a_slot_without_kv_for_the_prompt_is_not_free() {
        let (loads, now) = (Loads::default(), Instant::now());
        loads.report(report(1, 1, &[], &[]), now);
        loads.report(LoadReport { kv_free_blocks: 9, ..report(2, 1, &[40.0], &[]) }, now);
        let large = Job { blocks: 8, ..of(50.0) };
        let chosen = loads.choose([at(1, 0), at(2, 0)].into_iter(), large, WAIT, now);
        assert_eq!(chosen, Some((1, 50.0)));
    }

    #[test]
    fn stale_and_missing_reports_fall_back_to_the_active_count() {
        let (loads, now) = (Loads::default(), Instant::now());
        assert_eq!(pick(&loads, [3, 1], 50.0, WAIT, now), 2, "no report at all");
        loads.report(report(1, 1, &[900.0; 2], &[900.0; 9]), now);
        assert_eq!(pick(&loads, [11, 0], 50.0, WAIT, now), 1, "a worker that reports lives");
        assert_eq!(pick(&loads, [11, 0], 50.0, WAIT, now + STALE), 2, "none reports any more");
        assert_eq!((loads.alive(now), loads.alive(now + STALE)), (1, 0));
    }

    #[test]
    fn a_booking_counts_until_a_report_that_can_have_seen_it() {
        let (loads, now) = (Loads::default(), Instant::now());
        loads.report(report(1, 1, &[], &[]), now);
        loads.report(report(2, 1, &[10.0], &[]), now);
        assert_eq!(pick(&loads, [0, 0], 50.0, WAIT, now), 1);
        loads.book(1, 50.0, now);
        assert_eq!(pick(&loads, [0, 0], 50.0, WAIT, now), 2);
        loads.report(report(1, 2, &[], &[]), now + Duration::from_millis(3));
        let soon = now + Duration::from_millis(4);
        assert_eq!(pick(&loads, [0, 0], 50.0, WAIT, soon), 2, "it may be on its way");
        loads.report(report(1, 3, &[], &[]), now + REPORT_PERIOD);
        assert_eq!(pick(&loads, [0, 0], 50.0, WAIT, now + REPORT_PERIOD), 1);
    }

    #[test]
    fn an_earlier_report_that_arrives_late_is_ignored() {
        let (loads, now) = (Loads::default(), Instant::now());
        loads.report(report(1, 5, &[], &[]), now);
        loads.report(report(1, 4, &[9.0; 2], &[9.0; 4]), now);
        loads.report(report(2, 1, &[9.0], &[]), now);
        assert_eq!(pick(&loads, [0, 0], 50.0, WAIT, now), 1);
    }

    #[test]
    fn a_job_of_unknown_size_is_of_the_mean_size() {
        let (loads, now) = (Loads::default(), Instant::now());
        loads.report(report(1, 1, &[10.0, 30.0], &[]), now);
        let chosen = loads.choose([at(1, 0), at(7, 0)].into_iter(), Job::default(), WAIT, now);
        assert_eq!(chosen, Some((0, 20.0)));
        assert_eq!(loads.choose([].into_iter(), Job::default(), WAIT, now), None);
    }

    /// Two workers of 10 ms a decode step and 1 ms a prompt token, and a job of 50 tokens with a
    /// prompt of 100. The place that it gets where worker 1 has `cached` tokens of the prompt.
    fn place(running: [&[f32]; 2], cached: usize) -> u64 {
        let (loads, now) = (Loads::default(), Instant::now());
        let pace = Pace { decode_step_s: 0.01, prefill_token_s: 0.001 };
        for (worker, running) in (1..).zip(running) {
            loads.report(LoadReport { pace, ..report(worker, 1, running, &[]) }, now);
        }
        let workers = [Candidate { cached_tokens: cached, ..at(1, 0) }, at(2, 0)];
        let job = Job { prompt_tokens: 100, ..of(50.0) };
        let chosen = loads.choose(workers.into_iter(), job, WAIT, now);
        workers[chosen.expect("there are workers").0].worker
    }

    #[test]
    fn cached_tokens_make_up_for_the_wait_that_they_save() {
        assert_eq!(place([&[9.0], &[]], 0), 2, "fewer requests");
        assert_eq!(place([&[9.0], &[]], 16), 1, "a slot is free at both");
        // Both are full; the job waits 30 or 36 tokens, which take 60 ms more.
        assert_eq!(place([&[36.0; 2], &[30.0; 2]], 48), 2);
        assert_eq!(place([&[36.0; 2], &[30.0; 2]], 80), 1);
        // Taking the place of another for 50 tokens costs more than all prefill.
        assert_eq!(place([&[90.0; 2], &[]], 96), 2);
    }

    #[test]
    fn a_worker_without_measurements_has_the_pace_of_the_others() {
        let (loads, now) = (Loads::default(), Instant::now());
        let pace = Pace { decode_step_s: 0.01, prefill_token_s: 0.001 };
        loads.report(LoadReport { pace, ..report(1, 1, &[9.0], &[]) }, now);
        loads.report(report(2, 1, &[], &[]), now);
        let job = Job { prompt_tokens: 100, ..of(50.0) };
        let cached = [Candidate { cached_tokens: 32, ..at(1, 0) }, at(2, 0)];
        assert_eq!(loads.choose(cached.into_iter(), job, WAIT, now), Some((0, 50.0)));
    }
}

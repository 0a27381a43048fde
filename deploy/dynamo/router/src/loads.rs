//! The workers' loads as this router knows them: reports, and its own bookings since.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trail_dynamo_proto::{LoadReport, REPORT_PERIOD};

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
}

/// The cost of one worker, in the order of comparison: lower is better.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Cost {
    /// Without a fresh report: a worker that does not report may hang. Among such workers only the
    /// number of active requests counts.
    is_silent: bool,
    /// Tokens until the job can run, or under least-work the sum of all.
    wait: f32,
    /// No slot is free: the job would preempt another.
    is_full: bool,
    /// Requests there.
    active: usize,
    /// Sum of remaining tokens.
    total: f32,
}

/// Quantity that is minimized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// Time until the job can run.
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

    /// The best of `workers`, given as (id, requests that Dynamo counts there). Returns its place
    /// and the job's size; `None` without workers.
    pub fn choose(
        &self,
        workers: impl Iterator<Item = (u64, usize)> + Clone,
        job: Job,
        objective: Objective,
        now: Instant,
    ) -> Option<(usize, f32)> {
        let loads = self.lock();
        let size = job.size.unwrap_or_else(|| mean(&loads, workers.clone()));
        let place = Place { size, blocks: job.blocks, objective, now };
        let costs = workers.map(|(id, active)| place.cost(loads.get(&id), active));
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
struct Place {
    size: f32,
    blocks: u32,
    objective: Objective,
    now: Instant,
}

impl Place {
    /// The cost of the worker with `load`, where Dynamo counts `active` requests.
    fn cost(&self, load: Option<&Load>, active: usize) -> Cost {
        let fresh = load.filter(|load| self.now.duration_since(load.received) < STALE);
        let Some(Load { backlog, report, .. }) = fresh else {
            return Cost { is_silent: true, wait: 0.0, is_full: false, active, total: 0.0 };
        };
        let total = backlog.total();
        let (wait, is_full) = match self.objective {
            Objective::PredictedWait => {
                let has_room = !backlog.is_full() && report.kv_free_blocks >= self.blocks;
                (backlog.wait(self.size, report.order), !has_room)
            }
            Objective::LeastWork => (total, false),
        };
        Cost { is_silent: false, wait, is_full, active: backlog.active(), total }
    }
}

/// Mean remaining tokens of the requests at `workers`; 0 where there are none.
fn mean(loads: &HashMap<u64, Load>, workers: impl Iterator<Item = (u64, usize)>) -> f32 {
    let known = workers.filter_map(|(id, _)| loads.get(&id).map(|load| &load.backlog));
    let (total, active) = known.fold((0.0, 0), |(total, active), backlog| {
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
        Job { size: Some(size), blocks: 0 }
    }

    fn pick(
        loads: &Loads,
        active: [usize; 2],
        size: f32,
        objective: Objective,
        now: Instant,
    ) -> u64 {
        let workers = [(1, active[0]), (2, active[1])];
        let chosen = loads.choose(workers.into_iter(), of(size), objective, now);
        workers[chosen.expect("there are workers").0].0
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
        let large = Job { size: Some(50.0), blocks: 8 };
        assert_eq!(loads.choose([(1, 0), (2, 0)].into_iter(), large, WAIT, now), Some((1, 50.0)));
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
        let chosen = loads.choose([(1, 0), (7, 0)].into_iter(), Job::default(), WAIT, now);
        assert_eq!(chosen, Some((0, 20.0)));
        assert_eq!(loads.choose([].into_iter(), Job::default(), WAIT, now), None);
    }
}

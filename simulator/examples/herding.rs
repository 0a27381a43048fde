//! Routers that decide on stale reports, and on what each has sent itself, herd: several choose the
//! same worker between two of its reports. This simulation counts what that costs.
//!
//! ```text
//! cargo run --release -p trail-scheduler --example herding -- [WORKERS [LOAD [CHANGE_MS]]]
//! ```
//!
//! Each of WORKERS (100) has 16 slots and a queue, first in, first out. Requests arrive at random
//! routers, by Poisson, at LOAD (0.95) of what the slots can serve; a request takes a slot for 10 s
//! in the mean, exponentially, and the router knows its length. Every worker reports each 50 ms, at
//! its own phase, and with CHANGE_MS also so long after a request came or went, 5 ms after its last
//! report at the soonest. All routers hear a report at once, and nothing else takes time. 10
//! minutes of simulated time for each seed; the first 2 are not counted.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use trail_scheduler::rng::Rng;

const SLOTS: u32 = 16;
const MEAN_NS: f64 = 10e9;
const REPORT_NS: u64 = 50_000_000;
const LEAST_GAP_NS: u64 = 5_000_000;
const SECONDS: u64 = 600;
const SEEDS: u64 = 3;

/// How a router chooses.
#[derive(Clone, Copy)]
struct Routing {
    name: &'static str,
    /// Workers looked at, at random; `None`: all.
    sample: Option<u64>,
    /// Counts what the router has sent since the worker's report.
    books: bool,
    /// Reads the worker as it is: the bound that no report reaches.
    live: bool,
}

const CHOICES: [Routing; 6] = [
    Routing { name: "all workers, live state", sample: None, books: false, live: true },
    Routing { name: "all workers, bookings", sample: None, books: true, live: false },
    Routing { name: "all workers, no bookings", sample: None, books: false, live: false },
    Routing { name: "two choices, bookings", sample: Some(2), books: true, live: false },
    Routing { name: "eight choices, bookings", sample: Some(8), books: true, live: false },
    Routing { name: "one at random", sample: Some(1), books: false, live: false },
];

/// The size of a run.
#[derive(Clone, Copy)]
struct Case {
    workers: usize,
    routers: usize,
    load: f64,
    /// Time from a change to its report; `None`: periodic reports alone.
    change_ns: Option<u64>,
    seconds: u64,
}

/// The load of a worker as a router knows it: requests, and their remaining slot time.
#[derive(Clone, Copy, Default)]
struct Load {
    active: u32,
    work_ns: f64,
}

impl Load {
    fn add(&mut self, length_ns: u64) {
        self.active += 1;
        self.work_ns += length_ns as f64;
    }

    /// Predicted wait, then the number of requests, then their work; the least is best.
    fn cost(&self) -> (f64, u32, f64) {
        let wait = if self.active < SLOTS { 0.0 } else { self.work_ns / f64::from(SLOTS) };
        (wait, self.active, self.work_ns)
    }
}

#[derive(Default)]
struct Worker {
    running: u32,
    /// Sum of the ends of those that run, nanoseconds.
    ends: f64,
    /// Length and arrival of those that wait.
    queue: VecDeque<(u64, u64)>,
    queued_ns: f64,
    report: Load,
    reports: u64,
    reported_ns: u64,
    next_report_ns: u64,
}

impl Worker {
    fn load(&self, now: u64) -> Load {
        let running_ns = self.ends - f64::from(self.running) * now as f64;
        let active = self.running + self.queue.len() as u32;
        Load { active, work_ns: running_ns + self.queued_ns }
    }
}

/// The requests that one router has sent to one worker since the report of that number.
#[derive(Clone, Copy, Default)]
struct Booking {
    report: u64,
    load: Load,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End { worker: usize },
    Report { worker: usize },
    Arrival,
}

struct Simulation {
    choice: Routing,
    workers: Vec<Worker>,
    /// By router, then by worker.
    bookings: Vec<Vec<Booking>>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    rng: Rng,
    now: u64,
    change_ns: Option<u64>,
    /// The end of the fifth of the run that is not counted.
    warm_up_ns: u64,
    /// Slots that are free, over all workers.
    free: u64,
    waits: Vec<f64>,
    arrived: u64,
    misplaced: u64,
}

impl Simulation {
    fn new(choice: Routing, case: &Case, seed: u64) -> Simulation {
        let Case { workers, routers, .. } = *case;
        let mut rng = Rng::new(seed);
        let mut worker = || Worker { next_report_ns: rng.below(REPORT_NS), ..Worker::default() };
        let states: Vec<Worker> = (0..workers).map(|_| worker()).collect();
        let report = |(worker, state): (usize, &Worker)| {
            Reverse((state.next_report_ns, Event::Report { worker }))
        };
        let reports = states.iter().enumerate().map(report);
        let events = reports.chain([Reverse((0, Event::Arrival))]).collect();
        Simulation {
            choice,
            workers: states,
            bookings: vec![vec![Booking::default(); workers]; routers],
            events,
            rng,
            now: 0,
            change_ns: case.change_ns,
            warm_up_ns: 0,
            free: workers as u64 * u64::from(SLOTS),
            waits: Vec::new(),
            arrived: 0,
            misplaced: 0,
        }
    }

    fn run(&mut self, case: &Case) {
        let end_ns = case.seconds * 1_000_000_000;
        self.warm_up_ns = end_ns / 5;
        let slots = self.workers.len() as f64 * f64::from(SLOTS);
        let gap_ns = MEAN_NS / (slots * case.load);
        while let Some(Reverse((now, event))) = self.events.pop()
            && now < end_ns
        {
            self.now = now;
            match event {
                Event::Arrival => {
                    self.arrive();
                    let next = now + (self.rng.exponential() * gap_ns) as u64;
                    self.events.push(Reverse((next, Event::Arrival)));
                }
                Event::End { worker } => self.end(worker),
                Event::Report { worker } => self.report(worker),
            }
        }
    }

    fn report(&mut self, worker: usize) {
        let state = &mut self.workers[worker];
        // A change has brought it forward.
        if state.next_report_ns != self.now {
            return;
        }
        state.report = state.load(self.now);
        state.reports += 1;
        state.reported_ns = self.now;
        state.next_report_ns = self.now + REPORT_NS;
        self.events.push(Reverse((state.next_report_ns, Event::Report { worker })));
    }

    /// Brings the next report forward, as a request came or went.
    fn change(&mut self, worker: usize) {
        let Some(delay_ns) = self.change_ns else { return };
        let state = &mut self.workers[worker];
        let due = (self.now + delay_ns).max(state.reported_ns + LEAST_GAP_NS);
        if due < state.next_report_ns {
            state.next_report_ns = due;
            self.events.push(Reverse((due, Event::Report { worker })));
        }
    }

    fn arrive(&mut self) {
        let router = self.rng.below(self.bookings.len() as u64) as usize;
        let length = (self.rng.exponential() * MEAN_NS) as u64;
        let chosen = self.choose(router);
        let report = self.workers[chosen].reports;
        let booking = &mut self.bookings[router][chosen];
        if booking.report != report {
            *booking = Booking { report, load: Load::default() };
        }
        booking.load.add(length);
        self.change(chosen);
        let counts = self.now >= self.warm_up_ns;
        self.arrived += u64::from(counts);
        let worker = &mut self.workers[chosen];
        if worker.running < SLOTS {
            self.start(chosen, length, self.now);
            return;
        }
        worker.queue.push_back((length, self.now));
        worker.queued_ns += length as f64;
        self.misplaced += u64::from(counts && self.free > 0);
    }

    fn choose(&mut self, router: usize) -> usize {
        let count = self.workers.len();
        // The first of equals differs from decision to decision.
        let first = self.rng.below(count as u64) as usize;
        let candidates = match self.choice.sample {
            None => (0..count).map(|i| (first + i) % count).collect::<Vec<_>>(),
            Some(n) => (0..n).map(|_| self.rng.below(count as u64) as usize).collect(),
        };
        let cost = |worker: &usize| self.known(router, *worker).cost();
        let best =
            candidates.into_iter().min_by(|a, b| cost(a).partial_cmp(&cost(b)).expect("finite"));
        best.expect("a worker")
    }

    fn known(&self, router: usize, worker: usize) -> Load {
        let state = &self.workers[worker];
        if self.choice.live {
            return state.load(self.now);
        }
        let mut load = state.report;
        let booking = &self.bookings[router][worker];
        if self.choice.books && booking.report == state.reports {
            load.active += booking.load.active;
            load.work_ns += booking.load.work_ns;
        }
        load
    }

    fn start(&mut self, worker: usize, length: u64, arrived: u64) {
        let end = self.now + length;
        let state = &mut self.workers[worker];
        state.running += 1;
        state.ends += end as f64;
        self.free -= 1;
        self.events.push(Reverse((end, Event::End { worker })));
        if arrived >= self.warm_up_ns {
            self.waits.push((self.now - arrived) as f64 / 1e6);
        }
    }

    fn end(&mut self, worker: usize) {
        let state = &mut self.workers[worker];
        state.running -= 1;
        state.ends -= self.now as f64;
        self.free += 1;
        if let Some((length, arrived)) = state.queue.pop_front() {
            state.queued_ns -= length as f64;
            self.start(worker, length, arrived);
        }
        self.change(worker);
    }
}

/// Mean and 99th percentile of the wait for a slot, ms, and the share of requests that waited while
/// a slot of another worker was free; means over the seeds.
fn measure(choice: Routing, case: Case) -> [f64; 3] {
    let mut sums = [0.0; 3];
    for seed in 0..SEEDS {
        let mut simulation = Simulation::new(choice, &case, seed);
        simulation.run(&case);
        let mut waits = simulation.waits;
        waits.sort_by(f64::total_cmp);
        let count = waits.len() as f64;
        let p99 = waits[waits.len() * 99 / 100];
        let misplaced = simulation.misplaced as f64 / simulation.arrived as f64;
        let found = [waits.iter().sum::<f64>() / count, p99, misplaced * 100.0];
        sums.iter_mut().zip(found).for_each(|(sum, x)| *sum += x / SEEDS as f64);
    }
    sums
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let workers = arguments.next().map_or(100, |text| text.parse().expect("a number of workers"));
    let load = arguments.next().map_or(0.95, |text| text.parse().expect("a load below 1"));
    let change_ms: Option<u64> = arguments.next().map(|text| text.parse().expect("milliseconds"));
    let change_ns = change_ms.map(|ms| ms * 1_000_000);
    let after = change_ms.map_or(String::new(), |ms| format!(" and {ms} ms after a change"));
    println!("{workers} workers of {SLOTS} slots, load {load}, reports each 50 ms{after}");
    println!(
        "{:26} {:>7} {:>13} {:>13} {:>11}",
        "choice", "routers", "mean wait ms", "p99 wait ms", "misplaced"
    );
    for choice in CHOICES {
        // The number makes a difference only where routers book.
        let routers: &[usize] = if choice.books { &[1, 2, 4] } else { &[1] };
        for &routers in routers {
            let [mean, p99, misplaced] =
                measure(choice, Case { workers, routers, load, change_ns, seconds: SECONDS });
            println!("{:26} {routers:7} {mean:13.2} {p99:13.1} {misplaced:10.3} %", choice.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misplaced(choice: usize, routers: usize, change_ns: Option<u64>) -> f64 {
        measure(CHOICES[choice], Case { workers: 20, routers, load: 0.9, change_ns, seconds: 100 })
            [2]
    }

    #[test]
    fn routers_herd_by_stale_reports_and_less_by_bookings() {
        let [live, booked, stale, random] = [0, 1, 2, 5].map(|choice| misplaced(choice, 1, None));
        assert_eq!(live, 0.0, "who sees a free slot takes it");
        assert!(live <= booked && booked < stale && stale < random, "{booked} {stale} {random}");
        let [four, eager] = [None, Some(2_000_000)].map(|change_ns| misplaced(1, 4, change_ns));
        assert!(four > booked, "four routers do not see each other's bookings");
        assert!(eager < four / 2.0, "{eager} {four}");
    }
}

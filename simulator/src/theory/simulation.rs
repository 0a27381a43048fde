//! Simulation of the queue, event by event: the evidence for the formulae, with which it shares
//! nothing but the parameters and the draw of sizes and predictions.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::queue::Queue;
use super::ratio::{Estimate, Ratio};
use trail_platform::rng::Rng;

/// A job at its completion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Completed {
    /// Size, in units of the mean size.
    pub size: f64,
    /// Predicted size.
    pub prediction: f64,
    /// Time from arrival to completion.
    pub response: f64,
}

/// Receives completed jobs and the ends of cycles.
pub trait Observer {
    /// A job is complete.
    fn completed(&mut self, job: &Completed);

    /// The queue is empty: a cycle ends, and the next arrival begins another. `control` is the work
    /// that the cycle's arrivals found in the system, less its expectation, which is known whatever
    /// the order of service.
    fn cycle(&mut self, _control: f64) {}
}

/// Stationary means of a simulated queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueOutcome {
    /// Mean response time.
    pub response: Estimate,
    /// Time average of the sum of ages in the system.
    pub memory: Estimate,
    /// Preemptions per job.
    pub preemptions: Estimate,
    /// Largest sum of ages in the run. It grows with the number of jobs.
    pub peak_memory: f64,
    /// Jobs simulated.
    pub jobs: u64,
    /// Size of the largest job.
    pub largest_size: f64,
}

/// Simulates at least `jobs` jobs from an empty queue, to the end of a cycle.
pub fn simulate(queue: &Queue, jobs: u64, seed: u64) -> QueueOutcome {
    struct Ignore;
    impl Observer for Ignore {
        fn completed(&mut self, _: &Completed) {}
    }
    observe(queue, jobs, seed, &mut Ignore)
}

/// [`simulate`], with every completed job reported to `observer`.
pub fn observe(queue: &Queue, jobs: u64, seed: u64, observer: &mut impl Observer) -> QueueOutcome {
    let mut run = Run::new(*queue, seed);
    let (mut response, mut memory, mut preemptions) =
        (Ratio::default(), Ratio::default(), Ratio::default());
    let mut finished = 0;
    while finished < jobs {
        let cycle = run.cycle(observer);
        observer.cycle(cycle.control);
        finished += cycle.jobs;
        let count = cycle.jobs as f64;
        response.add(cycle.response, count, cycle.control);
        memory.add(cycle.memory, cycle.length, cycle.control);
        preemptions.add(cycle.preemptions as f64, count, cycle.control);
    }
    QueueOutcome {
        response: response.estimate(),
        memory: memory.estimate(),
        preemptions: preemptions.estimate(),
        peak_memory: run.peak,
        jobs: finished,
        largest_size: run.largest,
    }
}

/// A job in the system.
#[derive(Clone, Copy, Debug)]
struct Job {
    arrival: f64,
    size: f64,
    prediction: f64,
    age: f64,
    /// Number of jobs that arrived before.
    number: u64,
}

impl Job {
    /// Predicted remaining size.
    fn rank(&self) -> f64 {
        self.prediction - self.age
    }
}

/// Waiting jobs in a max-heap: the lowest rank is the greatest, ties by arrival.
struct Waiting(Job);

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        let (this, other) = (&self.0, &other.0);
        other.rank().total_cmp(&this.rank()).then(other.number.cmp(&this.number))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}

/// Totals of a cycle: an idle period and the busy period that follows.
#[derive(Default)]
struct Cycle {
    jobs: u64,
    response: f64,
    /// Integral of the sum of ages over time.
    memory: f64,
    preemptions: u64,
    length: f64,
    /// Work that arrivals found, less its expectation.
    control: f64,
}

/// State of the simulation between cycles, and the extremes so far.
struct Run {
    queue: Queue,
    rng: Rng,
    arrived: u64,
    peak: f64,
    largest: f64,
    waiting: BinaryHeap<Waiting>,
}

impl Run {
    fn new(queue: Queue, seed: u64) -> Run {
        let (rng, waiting) = (Rng::new(seed), BinaryHeap::new());
        Run { queue, rng, arrived: 0, peak: 0.0, largest: 0.0, waiting }
    }

    /// Time to the next arrival.
    fn gap(&mut self) -> f64 {
        self.rng.exponential() / self.queue.lambda()
    }

    fn arrive(&mut self, arrival: f64) -> Job {
        let (size, prediction) = self.queue.predictor().draw(&mut self.rng);
        self.arrived += 1;
        self.largest = self.largest.max(size);
        Job { arrival, size, prediction, age: 0.0, number: self.arrived }
    }

    /// Runs one cycle. Time is 0 at its begin, so that precision does not fall with the length of
    /// the run.
    fn cycle(&mut self, observer: &mut impl Observer) -> Cycle {
        let mut cycle = Cycle::default();
        let mut now = self.gap();
        let mut job = self.arrive(now);
        let mut next_arrival = now + self.gap();
        // Pollaczek and Khinchine, with E[S^2] = 2.
        let expected_work = self.queue.lambda() / (1.0 - self.queue.lambda());
        cycle.control -= expected_work;
        let mut work = job.size;
        // Sum of the ages of waiting jobs.
        let mut held = 0.0;
        loop {
            let left = job.size - job.age;
            let arrives = next_arrival < now + left;
            let served = if arrives { next_arrival - now } else { left };
            cycle.memory += served * (held + job.age + 0.5 * served);
            now += served;
            job.age += served;
            work -= served;
            self.peak = self.peak.max(held + job.age);
            if arrives {
                let new = self.arrive(now);
                cycle.control += work - expected_work;
                work += new.size;
                next_arrival = now + self.gap();
                let preemptable = job.age < self.queue.c() * job.prediction;
                let preempted = preemptable && new.rank() < job.rank();
                cycle.preemptions += u64::from(preempted);
                let waits = if preempted { std::mem::replace(&mut job, new) } else { new };
                held += waits.age;
                self.waiting.push(Waiting(waits));
                continue;
            }
            cycle.jobs += 1;
            cycle.response += now - job.arrival;
            let Job { size, prediction, arrival, .. } = job;
            observer.completed(&Completed { size, prediction, response: now - arrival });
            let Some(Waiting(next)) = self.waiting.pop() else { break };
            job = next;
            held -= job.age;
        }
        // Memoryless: the rest of the gap is as long as a whole one, which the next cycle draws.
        cycle.length = now;
        cycle
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theory::Predictor;

    /// Without preemption the ages of waiting jobs are 0, and the mean memory is
    /// lambda E\[S^2\] / 2 = lambda.
    #[test]
    fn without_preemption_memory_is_the_age_in_service() {
        let queue = Queue::new(0.7, 0.0, Predictor::Exponential).expect("a queue");
        let outcome = simulate(&queue, 200_000, 1);
        assert_eq!((outcome.preemptions.mean, outcome.preemptions.standard_error), (0.0, 0.0));
        assert!(outcome.memory.z(0.7).abs() < 4.0, "{outcome:?}");
        assert!(outcome.peak_memory <= outcome.largest_size, "{outcome:?}");
    }

    #[test]
    fn a_seed_repeats_to_the_bit() {
        let queue = Queue::new(0.7, 0.5, Predictor::Exponential).expect("a queue");
        assert_eq!(simulate(&queue, 1000, 3), simulate(&queue, 1000, 3));
        assert_ne!(simulate(&queue, 1000, 3), simulate(&queue, 1000, 4));
    }
}

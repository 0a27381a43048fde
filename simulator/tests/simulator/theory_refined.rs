//! An M/G/1 simulation with drawn predictions against the evaluation of Appendix E.
//!
//! `TRAIL_THEORY_JOBS` sets the jobs simulated at each load, in hundreds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use trail_scheduler::rng::Rng;
use trail_simulator::confusion::{Confusion, bin_of};
use trail_simulator::theory::{Estimate, Ratio, refined_response};

/// A normal variable exceeds this with probability 6e-5; three loads are compared.
const MAX_Z: f64 = 4.0;

struct Job {
    arrival: f64,
    /// Predicted bin before each token.
    bins: Vec<usize>,
    /// Served tokens and part of the next one.
    age: f64,
}

impl Job {
    fn rank(&self) -> usize {
        self.bins[self.age.floor() as usize]
    }
}

struct Server {
    confusion: Confusion,
    rng: Rng,
    /// Arrivals per token time.
    lambda: f64,
    expected_work: f64,
    jobs: Vec<Job>,
}

impl Server {
    fn new(load: f64, seed: u64) -> Server {
        let confusion = Confusion::demo();
        let lengths = confusion.lengths();
        let mean = |power: i32| {
            let sum: f64 = lengths.iter().map(|&length| f64::from(length).powi(power)).sum();
            sum / lengths.len() as f64
        };
        let lambda = load / mean(1);
        let expected_work = lambda * mean(2) / (2.0 * (1.0 - load));
        Server { confusion, rng: Rng::new(seed), lambda, expected_work, jobs: Vec::new() }
    }

    fn gap(&mut self) -> f64 {
        self.rng.exponential() / self.lambda
    }

    /// Draws a job and returns its index, which is its order of arrival.
    fn arrive(&mut self, arrival: f64) -> usize {
        let lengths = self.confusion.lengths();
        let length = lengths[self.rng.below(lengths.len() as u64) as usize];
        let predictions = self.confusion.refined(length, &mut self.rng);
        let bins = predictions.into_iter().map(|tokens| bin_of(tokens as u32)).collect();
        self.jobs.push(Job { arrival, bins, age: 0.0 });
        self.jobs.len() - 1
    }

    /// Runs a cycle and returns its jobs, their response times and the control.
    fn cycle(&mut self) -> (usize, f64, f64) {
        self.jobs.clear();
        let (mut now, mut response) = (0.0, 0.0);
        let mut current = self.arrive(now);
        let mut next_arrival = now + self.gap();
        let mut work = self.jobs[current].bins.len() as f64;
        let mut control = -self.expected_work;
        // Lowest rank first, ties by arrival.
        let mut waiting = BinaryHeap::new();
        loop {
            let age = self.jobs[current].age;
            let boundary = now + (age.floor() + 1.0 - age);
            if next_arrival < boundary {
                work -= next_arrival - now;
                self.jobs[current].age += next_arrival - now;
                now = next_arrival;
                control += work - self.expected_work;
                let new = self.arrive(now);
                work += self.jobs[new].bins.len() as f64;
                next_arrival = now + self.gap();
                waiting.push(Reverse((self.jobs[new].rank(), new)));
            } else {
                work -= boundary - now;
                now = boundary;
                let job = &mut self.jobs[current];
                job.age = age.floor() + 1.0;
                if job.age as usize == job.bins.len() {
                    response += now - job.arrival;
                    let Some(Reverse((_, next))) = waiting.pop() else { break };
                    current = next;
                    continue;
                }
            }
            let own = (self.jobs[current].rank(), current);
            if let Some(&Reverse(best)) = waiting.peek()
                && best < own
            {
                waiting.pop();
                waiting.push(Reverse(own));
                current = best.1;
            }
        }
        (self.jobs.len(), response, control)
    }

    fn estimate(&mut self, jobs: usize) -> Estimate {
        let mut ratio = Ratio::default();
        let mut finished = 0;
        while finished < jobs {
            let (count, response, control) = self.cycle();
            ratio.add(response, count as f64, control);
            finished += count;
        }
        ratio.estimate()
    }
}

#[test]
fn the_simulation_agrees_with_appendix_e_once_ties_count() {
    let set = std::env::var("TRAIL_THEORY_JOBS");
    let jobs = set.map_or(40_000, |count| count.parse::<usize>().expect("a number") / 100);
    println!("\n| load | simulated | SOAP, ties by arrival | z | as printed | z |");
    println!("|---|---|---|---|---|---|");
    for (load, seed) in [(0.5, 1), (0.7, 2), (0.9, 3)] {
        let evaluated = refined_response(load).expect("a load");
        let simulated = Server::new(load, seed).estimate(jobs);
        let z = |value: f64| simulated.z(value * evaluated.mean_tokens);
        let (response, printed) = (z(evaluated.mean_response), z(evaluated.as_printed));
        println!(
            "| {load} | {:.4} ± {:.4} | {:.5} | {response:.1} | {:.5} | {printed:.0} |",
            simulated.mean / evaluated.mean_tokens,
            1.96 * simulated.standard_error / evaluated.mean_tokens,
            evaluated.mean_response,
            evaluated.as_printed,
        );
        assert!(response.abs() < MAX_Z, "{load}: {simulated:?}, {evaluated:?}");
        assert!(printed < -MAX_Z, "{load}: {simulated:?}, {evaluated:?}");
    }
}

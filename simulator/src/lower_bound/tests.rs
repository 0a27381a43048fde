//! The bounds by hand, and below every policy's mean.

use std::ops::ControlFlow;

use super::*;
use crate::arrivals::Arrivals;
use crate::{Dataset, Noise, StepModel, Workload};
use trail_platform::rng::Rng;
use trail_scheduler::policies::PolicyKind;
use trail_scheduler::{SchedulerConfig, StepCost};

fn task(arrival_s: f64, work_s: f64) -> Task {
    Task { arrival_s, work_s, tail_s: 0.0 }
}

/// 4 seconds from 0, 1 from 1: by remaining work they end at 5 and 2. Busy from 0 to 1 and 2 to 5,
/// whose mean is (0.5 + 3 x 3.5) / 4, and at 1.5.
#[test]
fn one_machine_by_hand() {
    let tasks = [task(0.0, 4.0), task(1.0, 1.0)];
    assert_eq!(completions(&tasks), 7.0);
    assert_eq!(busy_times(&tasks), 11.0 / 4.0 + 1.5);
    let tasks = [task(3.0, 2.0), task(10.0, 1.0)];
    assert_eq!((completions(&tasks), busy_times(&tasks)), (16.0, 14.5), "idle in between");
    // By remaining work the second does not take the place of the first, by work it does.
    let tasks = [task(0.0, 4.0), task(2.0, 3.0)];
    assert_eq!(completions(&tasks), 4.0 + 7.0);
    assert_eq!(busy_times(&tasks), (2.0 * 1.0 + 2.0 * 6.0) / 4.0 + 3.5);
}

/// A request alone takes its steps and nothing more.
#[test]
fn a_request_alone_is_at_its_bound() {
    let cost = StepCost {
        fixed: 1e6,
        decode_row: 2e5,
        prefill_token: 1e5,
        context_token: 1000.0,
        experts: None,
    };
    let model = StepModel::measured("test", cost, 4096.0);
    let simulation = Simulation::new(SchedulerConfig::default(), model);
    let dataset = Dataset::ALPACA;
    let (arrivals, noise) = (Arrivals::Burst, Noise::Oracle);
    let jobs = Workload { requests: 1, arrivals, dataset, noise, seed: 3 }.jobs();
    let run = simulate(&simulation, PolicyKind::Fcfs, &jobs);
    let bound = lower_bound(&simulation, &jobs);
    assert!(bound <= run && run < 1.001 * bound, "{bound} {run}");
}

fn simulate(simulation: &Simulation, policy: PolicyKind, jobs: &[Job]) -> f64 {
    let watch = &mut |_| ControlFlow::Continue(());
    let run = simulation.run(&|| policy.build(), jobs, watch).expect("the jobs fit");
    run.outcomes.iter().map(|outcome| outcome.latency_s).sum::<f64>() / jobs.len() as f64
}

#[test]
fn no_policy_is_below_the_bound() {
    let mut rng = Rng::new(5);
    let mut nearest = f64::INFINITY;
    for world in 0..if cfg!(miri) { 2 } else { 120 } {
        let model = match rng.below(2) {
            0 => ["a100-80g:8b", "l4:1b", "h200:13b"][rng.below(3) as usize].parse().unwrap(),
            _ => {
                let mut up_to = |max: f64| max * rng.uniform();
                let (fixed, decode_row) = (1.0 + up_to(2e7), up_to(2e6));
                let (prefill_token, context_token) = (up_to(1e6), up_to(2e3));
                let cost =
                    StepCost { fixed, decode_row, prefill_token, context_token, experts: None };
                StepModel::measured("test", cost, 65536.0)
            }
        };
        let max_running = [1, 8, 64][rng.below(3) as usize];
        let num_blocks = [700, 4000][rng.below(2) as usize];
        let config = SchedulerConfig { max_running, num_blocks, ..SchedulerConfig::default() };
        let simulation = Simulation::new(config, model);
        let arrivals = match rng.below(4) {
            0 => Arrivals::Burst,
            _ => Arrivals::Poisson { rate: 10f64.powf(2.0 * rng.uniform() - 0.5) },
        };
        let (dataset, noise) = (Dataset::ALPACA, Noise::Oracle);
        let jobs = Workload { requests: 60, arrivals, dataset, noise, seed: world }.jobs();
        let bound = lower_bound(&simulation, &jobs);
        assert!(bound > 0.0);
        for policy in ["fcfs", "sjf", "trail", "trail:1", "oracle", "po"] {
            let kind: PolicyKind = policy.parse().unwrap();
            let mean = simulate(&simulation, kind, &jobs);
            assert!(bound <= mean, "world {world}: {policy} has {mean} s, the bound is {bound}");
            nearest = nearest.min(mean / bound);
        }
    }
    assert!(nearest < 1.02, "the best of all is {nearest} times its bound");
}

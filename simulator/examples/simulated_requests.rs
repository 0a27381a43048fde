//! Simulated requests a minute on one core: 256 running, Alpaca's lengths at 1.2 times the capacity
//! of Llama-3-8B on an A100-80GB.
//!
//! `cargo run --release -p trail-scheduler --example simulated_requests`

use std::error::Error;
use std::ops::ControlFlow;
use std::time::Instant;

use trail_scheduler::SchedulerConfig;
use trail_scheduler::policies::PolicyKind;
use trail_simulator::arrivals::Arrivals;
use trail_simulator::{Dataset, Noise, Simulation, StepModel, Workload};

fn main() -> Result<(), Box<dyn Error>> {
    let requests = std::env::args().nth(1).map_or(Ok(100_000), |count| count.parse())?;
    let model: StepModel = "a100-80g:8b".parse()?;
    let config = SchedulerConfig {
        max_running: 256,
        max_requests: requests as u32,
        max_context: 1024,
        ..model.scheduler()
    };
    let simulation = Simulation::new(config, model);
    let arrivals = Arrivals::Poisson { rate: 40.0 };
    let (dataset, noise) = (Dataset::ALPACA, Noise::Demo);
    let jobs = Workload { requests, arrivals, dataset, noise, seed: 1 }.jobs();
    for name in ["fcfs", "trail", "oracle"] {
        let policy: PolicyKind = name.parse()?;
        let begin = Instant::now();
        let run = simulation.run(&|| policy.build(), &jobs, &mut |_| ControlFlow::Continue(()))?;
        let minutes = begin.elapsed().as_secs_f64() / 60.0;
        println!(
            "{name}: {:.0} requests/min, {:.1} us a step of {:.0} rows",
            requests as f64 / minutes,
            60e6 * minutes / run.steps as f64,
            run.tokens as f64 / run.steps as f64,
        );
    }
    Ok(())
}

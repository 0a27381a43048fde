//! Example 4: A policy of one's own beside three built-in ones, on a simulated A100 that is loaded
//! above its capacity.
//!
//! `cargo run --release --example 04_policy`

use std::error::Error;
use std::io::Write;
use std::ops::ControlFlow;

use trail_scheduler::policies::PolicyKind;
use trail_scheduler::{Key, Policy, RequestState, SchedulerConfig};
use trail_simulator::arrivals::Arrivals;
use trail_simulator::{Dataset, Noise, Simulation, StepModel, Workload};

/// Shortest prompt first: needs no prediction. What runs is not preempted.
struct ShortestPrompt;

impl Policy for ShortestPrompt {
    fn name(&self) -> &'static str {
        "shortest-prompt"
    }

    fn key(&self, request: &RequestState) -> Key {
        if request.started {
            return Key::pinned(request);
        }
        Key::new(Key::OPEN, f64::from(request.prompt_tokens), request.seq)
    }

    fn preemptable(&self, _request: &RequestState) -> bool {
        false
    }
}

/// Prints the comparison.
pub fn main() -> Result<(), Box<dyn Error>> {
    run(&mut std::io::stdout())
}

/// Mean and p99 latency under each policy.
pub fn run(out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let model: StepModel = "a100-80g:8b".parse()?;
    let config = SchedulerConfig { max_running: 48, ..model.scheduler() };
    let simulation = Simulation::new(config, model);
    let workload = Workload {
        requests: 2000,
        arrivals: Arrivals::Poisson { rate: 22.0 },
        dataset: Dataset::ALPACA,
        noise: Noise::Demo,
        seed: 1,
    };
    let jobs = workload.jobs();
    writeln!(out, "{:<16} {:>10} {:>10} {:>12}", "policy", "mean, s", "p99, s", "preemptions")?;
    let mut compare = |policy: &dyn Fn() -> Box<dyn Policy>| -> Result<(), Box<dyn Error>> {
        let run = simulation.run(policy, &jobs, &mut |_| ControlFlow::Continue(()))?;
        let mut latencies: Vec<f64> = run.outcomes.iter().map(|o| o.latency_s).collect();
        latencies.sort_by(f64::total_cmp);
        let mean = latencies.iter().sum::<f64>() / latencies.len() as f64;
        let p99 = latencies[latencies.len() * 99 / 100];
        let (name, preemptions) = (policy().name(), run.preemptions);
        writeln!(out, "{name:<16} {mean:>10.2} {p99:>10.2} {preemptions:>12}")?;
        Ok(())
    };
    for name in ["fcfs", "trail", "oracle"] {
        let kind: PolicyKind = name.parse()?;
        compare(&|| kind.build())?;
    }
    compare(&|| Box::new(ShortestPrompt))
}

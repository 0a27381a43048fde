//! Three policies and one of this file, on a simulated A100 that is loaded above its capacity.
//!
//! `cargo run --release --example simulate_policies`

use std::ops::ControlFlow;

use trail_scheduler::policies::PolicyKind;
use trail_scheduler::{Key, Policy, RequestState, SchedulerConfig};
use trail_simulator::arrivals::Arrivals;
use trail_simulator::{Dataset, Noise, Simulation, SimulationError, StepModel, Workload};

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

/// Prints mean and p99 latency under each policy.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
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
    println!("{:<16} {:>10} {:>10} {:>12}", "policy", "mean, s", "p99, s", "preemptions");
    let run = |policy: &dyn Fn() -> Box<dyn Policy>| -> Result<(), SimulationError> {
        let run = simulation.run(policy, &jobs, &mut |_| ControlFlow::Continue(()))?;
        let mut latencies: Vec<f64> = run.outcomes.iter().map(|o| o.latency_s).collect();
        latencies.sort_by(f64::total_cmp);
        let mean = latencies.iter().sum::<f64>() / latencies.len() as f64;
        let p99 = latencies[latencies.len() * 99 / 100];
        println!("{:<16} {mean:>10.2} {p99:>10.2} {:>12}", policy().name(), run.preemptions);
        Ok(())
    };
    for name in ["fcfs", "trail", "oracle"] {
        let kind: PolicyKind = name.parse()?;
        run(&|| kind.build())?;
    }
    run(&|| Box::new(ShortestPrompt))?;
    Ok(())
}

//! `bench scheduler`: predictions, plan, advance and replacement of finished requests, in steady
//! state and without a model.

mod load;

use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};
use trail_platform::stats::Sorted;
use trail_cli::{EngineArgs, Error};

use load::SteadyLoad;

/// Steps before the measurement, until the load is steady.
const WARM_UP: usize = 1000;

/// Options of `bench scheduler`.
#[derive(Args, Clone, Debug)]
pub struct SchedulerArgs {
    /// Sequences in each step
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    running: u32,
    /// Requests that wait
    #[arg(long, default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    waiting: u32,
    /// Steps measured
    #[arg(long, default_value_t = 20_000,
        value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    steps: u32,
}

/// Measures the time and the allocations of a step.
pub fn run(args: &SchedulerArgs, engine: &EngineArgs) -> Result<Value, Error> {
    let kind = engine.policy_or_trail();
    let mut load = SteadyLoad::new(kind.build(), args.running, args.waiting, 1)
        .map_err(|error| error.to_string())?;
    for _ in 0..WARM_UP {
        load.step();
    }
    let mut step_us: Vec<f64> = Vec::with_capacity(args.steps as usize);
    let before = trail_counting_allocator::of_thread();
    for _ in 0..args.steps {
        let start = Instant::now();
        let rows = load.step();
        step_us.push(start.elapsed().as_secs_f64() * 1e6);
        if rows == 0 {
            return Err(Error::failed("a step planned no rows"));
        }
    }
    let allocations = trail_counting_allocator::of_thread() - before;
    let step_us = Sorted::of(step_us);
    let at = |p: f64| step_us.quantile(p);
    Ok(json!({
        "policy": kind.label(),
        "running": args.running,
        "waiting": args.waiting,
        "step_us": { "p50": at(0.5), "p90": at(0.9), "p99": at(0.99) },
        "allocations_per_step": allocations as f64 / f64::from(args.steps),
    }))
}

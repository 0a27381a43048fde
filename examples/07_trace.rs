//! Example 7: The simulator on a trace: what each policy would have made of recorded requests.
//! Reads CSV of Azure's LLM traces and of BurstGPT, Mooncake's JSON lines, and the lines of this
//! project.
//!
//! `cargo run --release --example 07_trace -- TRACE.csv`

use std::error::Error;
use std::io::Write;
use std::ops::ControlFlow;

use trail_scheduler::SchedulerConfig;
use trail_scheduler::policies::PolicyKind;
use trail_simulator::{Job, Simulation, StepModel, Trace, lower_bound};

/// Simulates the trace given as an argument.
pub fn main() -> Result<(), Box<dyn Error>> {
    let text = match std::env::args().nth(1) {
        Some(path) => std::fs::read_to_string(path)?,
        None => burst(),
    };
    run(&text, &mut std::io::stdout())
}

/// A trace in Azure's format: in each second 30 requests, one of six with a long answer.
pub fn burst() -> String {
    let mut text = "TIMESTAMP,ContextTokens,GeneratedTokens\n".to_owned();
    for at in 0..900_u32 {
        let output = if at % 6 == 0 { 400 + at % 90 } else { 10 + at % 35 };
        let (second, fraction) = (at / 30, at % 30 * 33_333);
        text += &format!("2023-11-16 18:00:{second:02}.{fraction:06},{},{output}\n", 40 + at % 200);
    }
    text
}

/// Mean latency of the requests in `text` under four policies.
pub fn run(text: &str, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let traces = Trace::parse(text)?;
    let mut jobs: Vec<Job> = traces.iter().map(|trace| trace.job(1024)).collect();
    // The trace has no predictions: each length is known to a quarter of itself.
    for job in &mut jobs {
        let error = if job.id % 2 == 0 { 0.75 } else { 1.25 };
        job.r = Some(job.output_tokens as f32 * error);
    }
    let model: StepModel = "a100-80g:8b".parse()?;
    let config = SchedulerConfig { max_running: 24, ..model.scheduler() };
    let simulation = Simulation::new(config, model);
    writeln!(out, "{} requests", jobs.len())?;
    for name in ["fcfs", "sjf", "trail-bert", "oracle"] {
        let kind: PolicyKind = name.parse()?;
        let run = simulation.run(&|| kind.build(), &jobs, &mut |_| ControlFlow::Continue(()))?;
        let total: f64 = run.outcomes.iter().map(|outcome| outcome.latency_s).sum();
        writeln!(out, "{name:<12} mean latency {:>6.2} s", total / jobs.len() as f64)?;
    }
    writeln!(out, "no policy is below {:.2} s", lower_bound(&simulation, &jobs))?;
    Ok(())
}

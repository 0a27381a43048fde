//! Any bytes as a trace file: refused in one line that has its number, or requests that are
//! simulated to their end, and read back from their own lines.
#![no_main]

use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use trail_scheduler::SchedulerConfig;
use trail_scheduler::policies::PolicyKind;
use trail_simulator::{Job, Simulation, StepModel, Trace, TraceSet};

fuzz_target!(|bytes: &[u8]| {
    let _ = TraceSet::from_bytes(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let traces = match Trace::parse(text) {
        Ok(traces) => traces,
        Err(error) => {
            assert_eq!(error.to_string().lines().count(), 1);
            assert!(error.line <= text.lines().count());
            return;
        }
    };
    let lines: Vec<String> = traces.iter().map(Trace::line).collect();
    assert_eq!(Trace::parse(&lines.join("\n")).as_ref(), Ok(&traces));
    // Small ones: a run takes a step for each output token.
    let short = |trace: &Trace| trace.prompt_tokens <= 500 && trace.output_tokens <= 100;
    let jobs: Vec<Job> = traces.iter().filter(|trace| short(trace)).map(|t| t.job(100)).collect();
    let jobs = &jobs[..jobs.len().min(64)];
    let model: StepModel = "l4:1b".parse().expect("a preset");
    let config = SchedulerConfig {
        max_running: 4,
        max_requests: 64,
        token_budget: 32,
        num_blocks: 40,
        max_context: 600,
        ..model.scheduler()
    };
    let simulation = Simulation::new(config, model);
    let policy = || PolicyKind::trail(0.8).build();
    let run = simulation.run(&policy, jobs, &mut |_| ControlFlow::Continue(()));
    assert_eq!(run.expect("every request fits").outcomes.len(), jobs.len());
});

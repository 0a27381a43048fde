//! The simulator: every request is answered under every policy, runs repeat to the bit, workers
//! share the load, and jobs that cannot run are refused.

use std::ops::ControlFlow;

use trail_scheduler::policies::PolicyKind;
use trail_scheduler::{BlockHash, Preemption, SchedulerConfig};
use trail_simulator::arrivals::Arrivals;
use trail_simulator::{
    Dataset, Job, JobOutcome, Noise, Simulation, SimulationError, SimulationRun, StepModel,
    Workload,
};

fn jobs(requests: usize, rate: f64, noise: Noise) -> Vec<Job> {
    let arrivals = Arrivals::Poisson { rate };
    Workload { requests, arrivals, dataset: Dataset::ALPACA, noise, seed: 3 }.jobs()
}

/// 16 sequences and so few blocks that requests lose theirs.
fn simulation(preemption: Preemption) -> Simulation {
    let model: StepModel = "a100-80g:8b".parse().expect("a preset");
    let scheduler = SchedulerConfig {
        max_running: 16,
        num_blocks: 300,
        host_blocks: 300,
        preemption,
        max_context: 1024,
        ..model.scheduler()
    };
    Simulation::new(scheduler, model)
}

fn run(simulation: &Simulation, policy: &str, jobs: &[Job]) -> SimulationRun {
    let policy: PolicyKind = policy.parse().expect("a policy");
    let watch = &mut |_| ControlFlow::Continue(());
    simulation.run(&|| policy.build(), jobs, watch).expect("a run")
}

fn mean(run: &SimulationRun, of: fn(&JobOutcome) -> f64) -> f64 {
    run.outcomes.iter().map(of).sum::<f64>() / run.outcomes.len() as f64
}

#[test]
fn every_policy_answers_every_request_and_repeats_to_the_bit() {
    let requests = if cfg!(miri) { 20 } else { 300 };
    let jobs = jobs(requests, 8.0, Noise::Demo);
    for (policy, _) in PolicyKind::HELP {
        for preemption in [Preemption::Recompute, Preemption::Swap] {
            let simulation = simulation(preemption);
            let first = run(&simulation, policy, &jobs);
            assert_eq!(first.outcomes.len(), requests, "{policy}");
            let tokens: u64 = jobs.iter().map(|job| u64::from(job.output_tokens)).sum();
            assert_eq!(first.tokens, tokens, "{policy}");
            for outcome in &first.outcomes {
                assert!(outcome.ttft_s > 0.0 && outcome.latency_s >= outcome.max_wait_s());
            }
            assert_eq!(run(&simulation, policy, &jobs), first, "{policy}: two runs differ");
        }
    }
}

/// Jobs whose prompts have the same first 12 blocks, as a trace says: all but the first compute the
/// rest alone.
#[test]
fn blocks_of_one_hash_are_computed_once() {
    let mut jobs = jobs(40, 2.0, Noise::Demo);
    for job in &mut jobs {
        job.prompt_tokens = 200;
        job.block_hashes = (0..12).map(BlockHash).collect();
    }
    let mut shared = simulation(Preemption::Recompute);
    shared.scheduler.cached_blocks = shared.scheduler.num_blocks;
    let plain = run(&simulation(Preemption::Recompute), "fcfs", &jobs);
    let run = run(&shared, "fcfs", &jobs);
    assert_eq!((run.cached_tokens, plain.cached_tokens), (39 * 12 * 16, 0));
    assert!(mean(&run, |of| of.ttft_s) < mean(&plain, |of| of.ttft_s));
}

#[test]
#[cfg_attr(miri, ignore = "a run under load")]
fn shorter_first_is_faster_in_the_mean_and_swaps_replace_recomputation() {
    let jobs = jobs(600, 8.0, Noise::Demo);
    let [fcfs, trail, oracle] = ["fcfs", "trail", "oracle"]
        .map(|policy| run(&simulation(Preemption::Recompute), policy, &jobs));
    let [slow, trail_s, best] = [&fcfs, &trail, &oracle].map(|run| mean(run, |o| o.latency_s));
    assert!(best < trail_s && trail_s < slow, "{best} {trail_s} {slow}");
    assert!(trail.evictions > 0 && trail.recomputed_tokens > 0);
    let swapped = run(&simulation(Preemption::Swap), "trail", &jobs);
    assert!(swapped.swaps_out > 0 && swapped.swaps_in > 0);
    assert!(swapped.recomputed_tokens < trail.recomputed_tokens);
    assert!(trail.mean_kv_blocks <= f64::from(trail.peak_kv_blocks));
    assert!(trail.peak_kv_blocks <= 300);
}

#[test]
fn the_balancer_shares_the_load() {
    let jobs = jobs(if cfg!(miri) { 20 } else { 600 }, 30.0, Noise::None);
    let one = simulation(Preemption::Recompute);
    let four = Simulation { workers: 4, ..one.clone() };
    let (one, four) = (run(&one, "fcfs", &jobs), run(&four, "fcfs", &jobs));
    for worker in 0..4 {
        let share = four.outcomes.iter().filter(|outcome| outcome.worker == worker).count();
        assert!(5 * share > jobs.len() / 2, "worker {worker} has {share}");
    }
    assert!(mean(&four, |o| o.ttft_s) < mean(&one, |o| o.ttft_s));
}

#[test]
fn jobs_that_cannot_run_are_refused_by_number() {
    let refused = |jobs: &[Job], simulation: &Simulation| {
        let policy = || PolicyKind::Fcfs.build();
        simulation.run(&policy, jobs, &mut |_| ControlFlow::Continue(())).expect_err("refused")
    };
    let mut jobs = jobs(3, 1.0, Noise::None);
    let simulation = simulation(Preemption::Recompute);
    jobs[1].prompt_tokens = 5000;
    assert!(matches!(refused(&jobs, &simulation), SimulationError::Refused { id: 1, .. }));
    jobs[1].arrival_ns = u64::MAX;
    assert_eq!(refused(&jobs, &simulation), SimulationError::Unsorted { id: 2 });
    let none = Simulation { workers: 0, ..simulation };
    assert!(refused(&jobs[..1], &none).to_string().contains("from 1 to 4096"));
}

#[test]
fn an_interrupted_run_has_what_was_answered() {
    let jobs = jobs(if cfg!(miri) { 40 } else { 400 }, 1.0, Noise::Oracle);
    let simulation = simulation(Preemption::Recompute);
    let run = simulation.run(&|| PolicyKind::Fcfs.build(), &jobs, &mut |_| ControlFlow::Break(()));
    let run = run.expect("a run");
    assert!(run.interrupted && run.outcomes.len() < jobs.len());
}

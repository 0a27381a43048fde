//! Fidelity of the simulator: given an engine's recorded predictions and step costs, it gives that
//! run's times and counts. Both sides count whole nanoseconds and make the same calls of the
//! scheduler, so they are equal, not merely close.

use std::ops::ControlFlow;
use std::sync::Arc;

use clap::Parser;
use trail_cli::drive::{self, TimedRequest};
use trail_cli::{EngineArgs, ModelArgs, Setup, Spread};
use trail_probe::Prompt;
use trail_runtime::engine::{PolicyKind, Request, SamplingParams, Stats, StepClock};
use trail_scheduler::limits::blocks_for;
use trail_scheduler::rng::Rng;
use trail_scheduler::{BlockHash, NewRequest, SchedulerConfig};
use trail_simulator::arrivals::Arrivals;
use trail_simulator::{
    BlockInterner, Job, JobOutcome, Refined, Simulation, SimulationRun, StepModel,
};

/// Prompts of the run, and most output tokens.
const PROMPTS: usize = 40;
const MAX_TOKENS: u32 = 96;

/// Arrivals per second of the simulated clock: more than the capacity.
const RATE: f64 = 300.0;

/// Sizes of the scheduler. So few blocks that requests lose theirs.
const RUNNING: u32 = 8;
const KV_BLOCKS: u32 = 24;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// With which all prompts begin: some blocks that they share.
const BEGINNING: &str =
    "Please answer in short words, with one example, and do not repeat the task.";

/// The bundled prompts, with [`BEGINNING`], as requests with arrival times.
fn engine_jobs(setup: &Setup) -> Vec<TimedRequest> {
    let file = setup.folder.join("prompts.jsonl");
    let text = std::fs::read_to_string(file).expect("the bundled prompts");
    let seconds = Arrivals::Poisson { rate: RATE }.seconds(PROMPTS, &mut Rng::new(5));
    let lines = text.lines().zip(seconds);
    lines
        .map(|(line, arrival_s)| {
            let prompt: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let text = prompt["prompt"].as_str().expect("a text");
            let tokens = setup.user_prompt(&format!("{BEGINNING} {text}"));
            let seed = prompt["seed"].as_u64().expect("a seed");
            let sampling = SamplingParams { seed, ..SamplingParams::default() };
            let request = Request::new(tokens.expect("tokens"), MAX_TOKENS);
            TimedRequest::first(Request { sampling, ..request }, arrival_s)
        })
        .collect()
}

/// One run of the engine by simulated time.
fn run_engine(
    setup: &Setup,
    args: &EngineArgs,
    policy: PolicyKind,
    jobs: &[TimedRequest],
) -> (drive::DriveRun, Stats) {
    let cost = setup.step_cost(None).expect("the bundled step costs");
    let clock = Arc::new(StepClock::new(cost));
    let mut engine = setup
        .stepped_engine_with(args, policy, jobs.len(), None, clock.clone())
        .expect("an engine");
    let run = drive::run_on_step_clock(&mut engine, &clock, jobs, |_, _| {}).expect("a run");
    (run, engine.stats())
}

/// The same run, simulated.
fn simulate(
    setup: &Setup,
    args: &EngineArgs,
    policy: PolicyKind,
    jobs: &[TimedRequest],
    recorded: &drive::DriveRun,
) -> SimulationRun {
    let predictor = setup.predictor().expect("readable").expect("the bundled predictor");
    let mut blocks = BlockInterner::default();
    let mut hashes = |prompt: &[u32]| {
        blocks.hashes(prompt).into_iter().map(|hash| BlockHash(hash.into())).collect()
    };
    let jobs: Vec<Job> = (0..)
        .zip(jobs.iter().zip(&recorded.outcomes))
        .map(|(id, (job, outcome))| Job {
            id,
            arrival_ns: (job.arrival_s * 1e9).round() as u64,
            prompt_tokens: job.request.prompt.len() as u32,
            output_tokens: outcome.tokens.len() as u32,
            max_tokens: job.request.max_tokens,
            priority: job.request.priority,
            r: predictor.predict(&Prompt::new(&job.request.prompt)).map(|of| of.mean()),
            refined: Refined::Recorded(outcome.predictions.iter().map(|p| p.1).collect()),
            block_hashes: hashes(&job.request.prompt),
        })
        .collect();
    let cost = setup.step_cost(None).expect("the bundled step costs");
    let sizes = SchedulerConfig { max_running: RUNNING, ..SchedulerConfig::default() };
    let scheduler = SchedulerConfig {
        num_blocks: KV_BLOCKS,
        cached_blocks: KV_BLOCKS,
        max_context: setup.model.config.max_context as u32,
        ..args.simulated(sizes, jobs.len())
    };
    let fits = NewRequest { prompt_tokens: 200, max_tokens: MAX_TOKENS, ..NewRequest::default() };
    assert!(scheduler.admit(&fits).is_ok() && blocks_for(296) <= KV_BLOCKS);
    let model = StepModel::measured("demo", cost, 0.0);
    let max_gap = args.max_gap(args.device().default_max_gap());
    let simulation = Simulation { max_gap, ..Simulation::new(scheduler, model) };
    let run = simulation.run(&|| policy.build(), &jobs, &mut |_| ControlFlow::Continue(()));
    run.expect("a simulation")
}

#[test]
fn a_simulation_gives_the_engines_times_and_counts() {
    let (running, blocks) = (RUNNING.to_string(), KV_BLOCKS.to_string());
    let options = Options::parse_from([
        "fidelity",
        "--device",
        "cpu",
        "--threads",
        "1",
        "--max-running",
        &running,
        "--kv-blocks",
        &blocks,
        "--preemption",
        "recompute",
    ]);
    let setup = Setup::load(&options.model).expect("the bundled model");
    let mut jobs = engine_jobs(&setup);
    let (recorded, _) = run_engine(&setup, &options.engine, PolicyKind::Fcfs, &jobs);
    for (job, outcome) in jobs.iter_mut().zip(&recorded.outcomes) {
        job.request.true_length = Some(outcome.tokens.len() as u32);
    }
    let (mut evictions, mut cached) = (0, 0);
    for name in ["fcfs", "sjf", "trail", "oracle"] {
        let policy: PolicyKind = name.parse().expect("a policy");
        let (engine, stats) = run_engine(&setup, &options.engine, policy, &jobs);
        let simulated = simulate(&setup, &options.engine, policy, &jobs, &recorded);
        let engine_spread =
            |of: fn(&drive::RequestOutcome) -> f64| Spread::of(engine.outcomes.iter().map(of));
        let spread = |of: fn(&JobOutcome) -> f64| Spread::of(simulated.outcomes.iter().map(of));
        assert_eq!(spread(|o| o.latency_s), engine_spread(|o| o.latency_s), "{name}: latency");
        assert_eq!(spread(|o| o.ttft_s), engine_spread(|o| o.ttft_s), "{name}: TTFT");
        let gaps = engine_spread(|o| o.longest_gap_s);
        assert_eq!(spread(|o| o.longest_gap_s), gaps, "{name}: longest gap");
        let counts = [stats.preemptions, stats.evictions, stats.recomputed_tokens, stats.steps];
        let SimulationRun { preemptions, evictions: evicted, recomputed_tokens, .. } = simulated;
        let SimulationRun { steps, cached_tokens, .. } = simulated;
        assert_eq!(cached_tokens, stats.cached_tokens, "{name}: cached");
        cached += cached_tokens;
        assert_eq!([preemptions, evicted, recomputed_tokens, steps], counts, "{name}");
        evictions += evicted;
    }
    assert!(evictions > 0 && cached > 0, "no request lost or found KV: the test has no point");
}

//! The step loop over an asynchronous backend, and over one that breaks down.

mod adapters;
mod ahead;
mod asynchronous;
mod block_sink;
mod breakdown;
mod churn;
mod constraint;
mod delivery;
mod hybrids;
mod late;
mod prefix;
mod prompt_logprobs;
mod random_turns;
mod shared;
mod speculation;
mod stepped;
mod trust;
mod two_layers;

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trail_probe::{Inputs, Probe};
use trail_scheduler::{Preemption, SchedulerConfig};

use super::{
    BuildError, BuiltBackend, CpuSettings, Engine, EngineConfig, Event, FinishReason, PolicyKind,
    ProbeParts, QueueConfig, Request, RequestHandle, StepOutcome, SteppedEngine,
};
use crate::model::{Adapter, Dtype, Model, Projection};
use ahead::{Ahead, Breaks};

fn model() -> Arc<Model> {
    Arc::new(Model::random("tiny", Dtype::Bf16, 7).expect("a known shape"))
}

fn config(model: &Model, policy: PolicyKind) -> EngineConfig {
    EngineConfig {
        probe: Some(
            Probe::random(model.config.hidden_size, 0, 3).with_random_inputs(Inputs::ALL[3], 4),
        ),
        policy,
        cpu: CpuSettings { threads: Some(1), ..CpuSettings::default() },
        max_running: Some(4),
        // So few blocks that requests are evicted.
        kv_blocks: Some(14),
        queue: QueueConfig { max_requests: 64, ..QueueConfig::default() },
        ..EngineConfig::default()
    }
}

fn preempting_by(preemption: Preemption) -> SchedulerConfig {
    SchedulerConfig { preemption, ..SchedulerConfig::default() }
}

fn engine(model: &Arc<Model>, config: EngineConfig) -> Engine {
    Engine::new(model.clone(), config).unwrap()
}

fn stepped_engine(model: &Arc<Model>, config: EngineConfig) -> SteppedEngine {
    SteppedEngine::new(model.clone(), config).unwrap()
}

fn wrapped(
    config: &EngineConfig,
    model: &Arc<Model>,
    probe: Option<ProbeParts>,
    breaks: Option<Breaks>,
) -> Result<BuiltBackend, BuildError> {
    let forward = config.cpu_forward(model)?;
    let kv_blocks = forward.options().num_blocks;
    let backend = Box::new(Ahead::new(forward, probe, breaks));
    Ok(BuiltBackend { backend, kv_blocks, device: "a test device".into() })
}

fn ahead(model: &Arc<Model>, config: EngineConfig, breaks: Option<Breaks>) -> Engine {
    let make = |config: &mut EngineConfig, model: &_, probe| wrapped(config, model, probe, breaks);
    Engine::with_backend(model.clone(), config, make).unwrap()
}

fn stepped_ahead(
    model: &Arc<Model>,
    config: EngineConfig,
    breaks: Option<Breaks>,
) -> SteppedEngine {
    let make = |config: &mut EngineConfig, model: &_, probe| wrapped(config, model, probe, breaks);
    SteppedEngine::with_backend(model.clone(), config, make).unwrap()
}

/// Requests of mixed sizes; some end by a stop token, which is known a step too late.
fn requests() -> impl Iterator<Item = Request> {
    (0..24u32).map(|i| {
        let prompt = (0..3 + (i * 13) % 40).map(|at| (at * 7 + i) % 50).collect();
        let mut request = Request::new(prompt, 5 + (i * 17) % 60);
        request.sampling.seed = u64::from(i);
        request.ignore_eos = true;
        request.true_length = Some(request.max_tokens);
        request.stop_tokens = if i % 3 == 0 { (0..40).collect() } else { Vec::new() };
        request
    })
}

/// Longest wait for an event, or for an engine to empty: what comes later hangs.
const LIMIT: Duration = Duration::from_secs(60);

fn answer(handle: impl Borrow<RequestHandle>) -> (Vec<u32>, FinishReason) {
    let handle = handle.borrow();
    let mut tokens = Vec::new();
    while let Some(event) = handle.recv_timeout(LIMIT) {
        match event {
            Event::Token { id, .. } => tokens.push(id),
            Event::Finished { reason } => return (tokens, reason),
            _ => {}
        }
    }
    panic!("no event for {LIMIT:?}, and no Finished");
}

/// Waits until no request is left.
fn empty(engine: &Engine) {
    let begin = Instant::now();
    while engine.live() > 0 {
        assert!(begin.elapsed() < LIMIT, "{} requests are left", engine.live());
        std::thread::yield_now();
    }
}

/// More steps than any test needs.
const MAX_STEPS: usize = 100_000;

/// Steps until nothing is left to do.
fn run_until_idle(engine: &mut SteppedEngine) {
    let idle = (0..MAX_STEPS).any(|_| engine.step() == Ok(StepOutcome::Idle));
    assert!(idle, "{} requests are left", engine.live());
}

fn answers(engine: &Engine) -> Vec<(Vec<u32>, FinishReason)> {
    let handles: Vec<_> = requests().map(|r| engine.submit(r).expect("fits")).collect();
    handles.into_iter().map(answer).collect()
}

/// Answers of an engine to which all requests are submitted before its first step. An engine with
/// its own thread may begin before the last is there, and evicts as the arrivals fall.
fn answers_at_once(engine: &mut SteppedEngine) -> Vec<(Vec<u32>, FinishReason)> {
    let handles: Vec<_> = requests().map(|r| engine.submit(r).expect("fits")).collect();
    run_until_idle(engine);
    handles.into_iter().map(answer).collect()
}

#[test]
fn answers_are_the_same_with_a_step_under_way() {
    let model = model();
    for policy in [PolicyKind::Fcfs, PolicyKind::trail(0.8), PolicyKind::SRPT] {
        let expected = answers(&engine(&model, config(&model, policy)));
        let stopped = expected.iter().filter(|(_, reason)| *reason == FinishReason::Stop).count();
        assert!(stopped > 3, "{stopped} answers end by a stop token");
        let engine = ahead(&model, config(&model, policy), None);
        assert_eq!(answers(&engine), expected, "{policy}");
        let stats = engine.stats();
        assert_eq!((stats.finished, stats.blocks_used, engine.live()), (24, 0, 0));
        let tokens: usize = expected.iter().map(|(tokens, _)| tokens.len()).sum();
        assert_eq!(stats.generated_tokens, tokens as u64, "a token too many was counted");
        assert!(stats.predictions_fresh > 0);
        let mut engine = stepped_ahead(&model, config(&model, policy), None);
        assert_eq!(answers_at_once(&mut engine), expected, "{policy}");
        // The oracle begins with the shortest: it never has to take a block back.
        let evicts = policy != PolicyKind::SRPT;
        assert_eq!(engine.stats().evictions > 0, evicts, "{policy}: evictions");
    }
}

#[test]
fn answers_are_the_same_with_kv_at_the_host() {
    let model = model();
    for policy in [PolicyKind::Fcfs, PolicyKind::trail(1.0)] {
        let expected = answers(&engine(&model, config(&model, policy)));
        for preemption in [Preemption::Swap, Preemption::Auto] {
            let scheduler = preempting_by(preemption);
            let config = || EngineConfig { scheduler, ..config(&model, policy) };
            let engine = ahead(&model, config(), None);
            assert_eq!(answers(&engine), expected, "{policy} {preemption:?}");
            let stats = engine.stats();
            assert_eq!((stats.blocks_used, stats.host_blocks_used, engine.live()), (0, 0, 0));
            let mut engine = stepped_ahead(&model, config(), None);
            assert_eq!(answers_at_once(&mut engine), expected, "{policy} {preemption:?}");
            let stats = engine.stats();
            assert!(stats.swaps_out > 0 && stats.swaps_in > 0, "{policy}: nothing was swapped");
            assert_eq!((stats.blocks_used, stats.host_blocks_used, engine.live()), (0, 0, 0));
        }
    }
}

#[test]
fn the_cancelled_leave_from_wherever_they_are() {
    let model = model();
    let policy = PolicyKind::trail(1.0);
    let expected = answers(&engine(&model, config(&model, policy)));
    for round in 0..20 {
        let scheduler = preempting_by(Preemption::Swap);
        let engine = ahead(&model, EngineConfig { scheduler, ..config(&model, policy) }, None);
        let handles: Vec<_> = requests().map(|r| engine.submit(r).expect("fits")).collect();
        // Cancelled at another time in each round: running, paused, in transfer, swapped.
        for (i, handle) in handles.into_iter().enumerate() {
            if i % 3 == round % 3 {
                assert_eq!(answer(handle), expected[i], "request {i}");
            } else {
                (0..round).for_each(|_| {
                    handle.try_recv();
                });
                drop(handle);
            }
        }
        empty(&engine);
        let stats = engine.stats();
        assert_eq!((stats.blocks_used, stats.host_blocks_used), (0, 0), "round {round}");
    }
}

#[test]
fn the_cancelled_leave_while_a_step_is_under_way() {
    let model = model();
    let expected = answers(&engine(&model, config(&model, PolicyKind::Fcfs)));
    let engine = ahead(&model, config(&model, PolicyKind::Fcfs), None);
    let handles: Vec<_> = requests().map(|r| engine.submit(r).expect("fits")).collect();
    let (mut kept, mut dropped) = (Vec::new(), Vec::new());
    for (i, handle) in handles.into_iter().enumerate() {
        if i % 2 == 0 { kept.push((i, handle)) } else { dropped.push(handle) }
    }
    dropped.iter().for_each(RequestHandle::cancel);
    for (i, handle) in kept {
        assert_eq!(answer(handle), expected[i], "request {i}");
    }
    for handle in dropped {
        answer(handle);
    }
    assert_eq!((engine.live(), engine.stats().blocks_used), (0, 0));
}

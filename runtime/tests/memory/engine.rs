//! The step loop does not allocate: scheduling, forward pass, tap, probe, sampling, sending. A
//! request's buffers are allocated when it is first scheduled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use trail_counting_allocator::of_thread;
use trail_probe::{Inputs, Probe};
use trail_runtime::engine::{
    CpuSettings, Engine, EngineConfig, Event, LiveSnapshot, Notify, PolicyKind, Request,
    RequestHandle, SamplingParams, Speculate,
};
use trail_runtime::model::{Adapter, Dtype, Model, Projection};

const REQUESTS: u64 = 12;
/// Longest wait for an event: what comes later hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Allocations when a request is first scheduled: its tokens, its predictions, and a chunk of its
/// events in two.
const PER_REQUEST: u64 = 4;

/// Answers [`REQUESTS`] requests of `max_tokens` after prompts of `prompt` tokens, scored if
/// `prompt_logprobs`, without and with each of `adapters` in turn. Returns the number of events,
/// and of allocations that the engine's thread has made until the last event: `notify` runs on that
/// thread.
fn run_scored(
    engine: &Engine,
    max_tokens: u32,
    prompt: u32,
    prompt_logprobs: Option<u8>,
    adapters: &[Arc<Adapter>],
) -> (usize, u64) {
    let last = Arc::new(AtomicU64::new(0));
    let count = last.clone();
    let notify: Notify = Arc::new(move || count.store(of_thread(), Ordering::Relaxed));
    let handles: Vec<_> = (0..REQUESTS)
        .map(|seed| {
            let sampling = SamplingParams {
                seed,
                top_k: 20,
                top_p: 0.9,
                repetition_penalty: 1.1,
                top_logprobs: 2,
                prompt_logprobs,
                ..SamplingParams::default()
            };
            let request = Request::new((1..=prompt).collect(), max_tokens);
            let notify = Some(notify.clone());
            let adapter = (seed as usize % (adapters.len() + 1)).checked_sub(1);
            let adapter = adapter.map(|at| adapters[at].clone());
            let request = Request { sampling, ignore_eos: true, adapter, notify, ..request };
            engine.submit(request).expect("fits")
        })
        .collect();
    let events = handles.iter().map(count_events).sum();
    (events, last.load(Ordering::Relaxed))
}

/// Answers [`REQUESTS`] requests of `max_tokens` after three tokens.
fn run(engine: &Engine, max_tokens: u32, adapters: &[Arc<Adapter>]) -> (usize, u64) {
    run_scored(engine, max_tokens, 3, None, adapters)
}

/// Receives all events of one request, and returns their number.
fn count_events(handle: &RequestHandle) -> usize {
    let next = || handle.recv_timeout(LIMIT).expect("an event in time");
    1 + std::iter::from_fn(|| Some(next()).filter(|e| !matches!(e, Event::Finished { .. }))).count()
}

#[test]
fn steps_allocate_nothing_even_under_preemption() {
    let _alone = super::alone();
    check(Speculate::Auto, &[]);
}

#[test]
fn steps_with_draft_tokens_allocate_nothing() {
    let _alone = super::alone();
    check(Speculate::Ngram, &[]);
    check(Speculate::Draft { model: model(9), always: true }, &[]);
}

#[test]
fn steps_with_adapters_allocate_nothing() {
    let _alone = super::alone();
    let model = model(7);
    let adapter = |seed| {
        let rank = 40 * seed as usize;
        Arc::new(Adapter::random(&model.config, &Projection::ALL, rank, Dtype::Bf16, seed))
    };
    check(Speculate::Auto, &[adapter(1), adapter(2), adapter(3)]);
}

#[test]
fn steps_of_a_hybrid_allocate_nothing() {
    let _alone = super::alone();
    let hybrid = Arc::new(Model::random("tiny-hybrid", Dtype::Bf16, 7).expect("a known shape"));
    check_model(&hybrid, Speculate::Auto, &[]);
    check_model(&hybrid, Speculate::Ngram, &[]);
}

/// Prompts that take several steps, some computed twice. Their events are in the chunk that those
/// of the answer are in.
#[test]
fn steps_that_score_prompts_allocate_nothing() {
    let _alone = super::alone();
    let config = EngineConfig { token_budget: Some(40), ..config(Speculate::Auto) };
    let engine = Engine::new(model(7), config).expect("builds");
    let (_, mut before) = run_scored(&engine, 30, 90, Some(4), &[]);
    for top in [4, 20] {
        let evictions = engine.stats().evictions;
        let (events, now) = run_scored(&engine, 30, 90, Some(top), &[]);
        let least = REQUESTS * (89 * (1 + u64::from(top)) + 30 * 3);
        assert!(events as u64 > least, "{events} events");
        assert_eq!(now - before, REQUESTS * PER_REQUEST, "allocations");
        assert!(engine.stats().evictions > evictions, "too many blocks for that");
        before = now;
    }
}

/// A reader asks for snapshots all the time; it makes room for them on its own thread.
#[test]
fn snapshots_of_live_requests_allocate_nothing() {
    let _alone = super::alone();
    let engine = Engine::new(model(7), config(Speculate::Auto)).expect("builds");
    let (_, before) = run(&engine, 30, &[]);
    let is_done = AtomicBool::new(false);
    let (allocations, [snapshots, live]) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut snapshot, mut counts) = (LiveSnapshot::default(), [0; 2]);
            while !is_done.load(Ordering::Relaxed) {
                engine.live_board().ask();
                std::thread::sleep(Duration::from_micros(50));
                if engine.live_board().take(&mut snapshot) {
                    counts[0] += 1;
                    counts[1] += snapshot.requests.len();
                }
            }
            counts
        });
        let (_, now) = run(&engine, 60, &[]);
        is_done.store(true, Ordering::Relaxed);
        (now - before, reader.join().expect("no panic"))
    });
    assert_eq!(allocations, REQUESTS * PER_REQUEST);
    assert!(snapshots > 5 && live > snapshots, "{snapshots} snapshots of {live} requests");
}

fn model(seed: u64) -> Arc<Model> {
    Arc::new(Model::random("tiny", Dtype::Bf16, seed).expect("a known shape"))
}

fn config(speculate: Speculate) -> EngineConfig {
    EngineConfig {
        probe: Some(
            Probe::random(model(7).config.hidden_size, 0, 3).with_random_inputs(Inputs::ALL[3], 4),
        ),
        policy: PolicyKind::trail(0.8),
        cpu: CpuSettings { threads: Some(1), ..CpuSettings::default() },
        max_running: Some(4),
        kv_blocks: Some(20),
        speculate,
        ..EngineConfig::default()
    }
}

fn check(speculate: Speculate, adapters: &[Arc<Adapter>]) {
    check_model(&model(7), speculate, adapters);
}

fn check_model(model: &Arc<Model>, speculate: Speculate, adapters: &[Arc<Adapter>]) {
    let engine = Engine::new(model.clone(), config(speculate)).expect("builds");
    // Thread-locals and lazy parts are initialised.
    let (_, mut before) = run(&engine, 90, adapters);
    for max_tokens in [90, 30, 90] {
        let (evictions, steps) = (engine.stats().evictions, engine.stats().steps);
        let (events, now) = run(&engine, max_tokens, adapters);
        assert!(events as u64 > REQUESTS * u64::from(max_tokens) * 3, "{events} events");
        let steps = engine.stats().steps - steps;
        assert_eq!(now - before, REQUESTS * PER_REQUEST, "allocations in {steps} steps");
        assert!(
            engine.stats().evictions > evictions || max_tokens < 90,
            "too many blocks for that"
        );
        before = now;
    }
}

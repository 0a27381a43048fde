//! The step loop does not allocate: scheduling, forward pass, tap, probe, sampling, sending. A
//! request's buffers are allocated when it is first scheduled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use trail_counting_allocator::of_thread;
use trail_probe::Probe;
use trail_runtime::engine::{
    CpuSettings, Engine, EngineConfig, Event, Notify, PolicyKind, Request, RequestHandle,
    SamplingParams, Speculate,
};
use trail_runtime::model::{Dtype, Model};

const REQUESTS: u64 = 12;
/// Longest wait for an event: what comes later hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Allocations when a request is first scheduled: its tokens, its predictions, and a chunk of its
/// events in two.
const PER_REQUEST: u64 = 4;

/// Answers [`REQUESTS`] requests of `max_tokens`. Returns the number of events, and of allocations
/// that the engine's thread has made until the last event: `notify` runs on that thread.
fn run(engine: &Engine, max_tokens: u32) -> (usize, u64) {
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
                ..SamplingParams::default()
            };
            let request = Request::new(vec![1, 2, 3], max_tokens);
            let notify = Some(notify.clone());
            let request = Request { sampling, ignore_eos: true, notify, ..request };
            engine.submit(request).expect("fits")
        })
        .collect();
    let events = handles.iter().map(count_events).sum();
    (events, last.load(Ordering::Relaxed))
}

/// Receives all events of one request, and returns their number.
fn count_events(handle: &RequestHandle) -> usize {
    let next = || handle.recv_timeout(LIMIT).expect("an event in time");
    1 + std::iter::from_fn(|| Some(next()).filter(|e| !matches!(e, Event::Finished { .. }))).count()
}

#[test]
fn steps_allocate_nothing_even_under_preemption() {
    let _alone = super::alone();
    check(Speculate::Auto);
}

#[test]
fn steps_with_draft_tokens_allocate_nothing() {
    let _alone = super::alone();
    check(Speculate::Ngram);
    check(Speculate::Draft { model: model(9), always: true });
}

fn model(seed: u64) -> Arc<Model> {
    Arc::new(Model::random("tiny", Dtype::Bf16, seed).expect("a known shape"))
}

fn check(speculate: Speculate) {
    let model = model(7);
    let config = EngineConfig {
        probe: Some(Probe::random(model.config.hidden_size, 0, 3)),
        policy: PolicyKind::trail(0.8),
        cpu: CpuSettings { threads: Some(1), ..CpuSettings::default() },
        max_running: Some(4),
        kv_blocks: Some(20),
        speculate,
        ..EngineConfig::default()
    };
    let engine = Engine::new(model, config).expect("builds");
    // Thread-locals and lazy parts are initialised.
    let (_, mut before) = run(&engine, 90);
    for max_tokens in [90, 30, 90] {
        let (evictions, steps) = (engine.stats().evictions, engine.stats().steps);
        let (events, now) = run(&engine, max_tokens);
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

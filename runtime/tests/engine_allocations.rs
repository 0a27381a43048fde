//! The step loop does not allocate: scheduling, forward pass, tap, probe, sampling, sending.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trail_counting_allocator::of_thread;
use trail_probe::Probe;
use trail_runtime::engine::{Engine, PolicyKind, Request, SamplingParams};
use trail_runtime::model::{Dtype, Model};

/// Allocations of the engine's thread when it sends events: the callback runs on that thread.
#[derive(Default)]
struct Watch {
    events: AtomicU64,
    /// Allocations at the end of the warm-up.
    before: AtomicU64,
    last: AtomicU64,
}

/// Events before the count begins: by then thread-locals and lazy parts are initialised.
const WARM_UP: u64 = 50;

#[test]
fn steps_allocate_nothing_even_under_preemption() {
    let model = Arc::new(Model::random("tiny", Dtype::Bf16, 7).expect("a known shape"));
    let watch = Arc::new(Watch::default());
    let engine = Engine::builder()
        .probe(Some(Probe::random(model.config.hidden_size, 0, 3)))
        .model(model)
        .policy(PolicyKind::Trail { c: 0.8 })
        .max_running(4)
        .kv_blocks(Some(20))
        .threads(Some(1))
        .build()
        .expect("builds");
    let notify: Arc<dyn Fn() + Send + Sync> = {
        let watch = watch.clone();
        Arc::new(move || {
            let events = watch.events.fetch_add(1, Ordering::Relaxed);
            let count = of_thread();
            if events < WARM_UP {
                watch.before.store(count, Ordering::Relaxed);
            }
            watch.last.store(count, Ordering::Relaxed);
        })
    };
    let handles: Vec<_> = (0..12)
        .map(|seed| {
            let sampling = SamplingParams {
                seed,
                top_k: 20,
                top_p: 0.9,
                repetition_penalty: 1.1,
                top_logprobs: 2,
                ..SamplingParams::default()
            };
            let request = Request { sampling, ignore_eos: true, ..Request::new(vec![1, 2, 3], 90) };
            engine.submit(Request { notify: Some(notify.clone()), ..request }).expect("fits")
        })
        .collect();
    let events: usize = handles.into_iter().map(|handle| handle.count()).sum();
    let stats = engine.stats();
    assert!(events > 12 * 90 * 3, "{events} events");
    assert!(stats.evictions > 0, "20 blocks are too few for all");
    let (before, last) = (watch.before.load(Ordering::Relaxed), watch.last.load(Ordering::Relaxed));
    assert_eq!(last - before, 0, "allocations in {} steps", stats.steps);
}

//! Engines of several models on the threads of one pool.

use std::sync::Mutex;

use super::*;
use crate::cpu::Pool;
use crate::engine::{CpuShare, Turns};

fn shares() -> [CpuShare; 2] {
    let (pool, turns) = (Pool::new(2).expect("threads"), Arc::new(Turns::default()));
    let pool = Arc::new(Mutex::new(pool));
    [1, 3].map(|weight| CpuShare { pool: pool.clone(), turns: turns.clone(), weight })
}

/// Each answers as alone, while both have work, and leaves nothing behind.
#[test]
fn answers_are_those_of_an_engine_alone() {
    let models = [7, 8]
        .map(|seed| Arc::new(Model::random("tiny", Dtype::Bf16, seed).expect("a known shape")));
    let policy = PolicyKind::trail(0.8);
    let alone = |model: &Arc<Model>| answers(&engine(model, config(model, policy)));
    let expected = models.each_ref().map(alone);
    assert_ne!(expected[0], expected[1]);
    let shares = shares();
    std::thread::scope(|scope| {
        for ((model, share), expected) in models.iter().zip(&shares).zip(&expected) {
            scope.spawn(move || {
                // An engine begins and ends while the other one has work.
                for _ in 0..3 {
                    let cpu_share = Some(share.clone());
                    let config = EngineConfig { cpu_share, ..config(model, policy) };
                    let engine = engine(model, config);
                    assert!(engine.device().contains("2 threads"), "{}", engine.device());
                    assert_eq!(answers(&engine), *expected);
                }
            });
        }
    });
    let workers = shares[0].pool.lock().expect("no panic").num_workers();
    assert_eq!(workers, 2, "the threads are there for the next engine");
    let left = models.map(|model| Arc::downgrade(&model));
    assert!(left.iter().all(|model| model.upgrade().is_none()), "an engine has left its model");
}

#[test]
fn counters_go_on_in_a_later_engine() {
    let model = model();
    let first = engine(&model, config(&model, PolicyKind::Fcfs));
    let counters = first.counters().clone();
    answers(&first);
    drop(first);
    let config = EngineConfig { counters, ..config(&model, PolicyKind::Fcfs) };
    let second = engine(&model, config);
    assert_eq!(second.stats().finished, 24);
    answers(&second);
    let counters = second.counters().clone();
    drop(second);
    let stats = counters.snapshot(14);
    assert_eq!((stats.finished, stats.running, stats.blocks_used), (48, 0, 0));
}

#[test]
fn an_engine_keeps_to_its_memory() {
    let model = model();
    let with = |memory_bytes| EngineConfig {
        memory_bytes: Some(memory_bytes),
        kv_blocks: None,
        ..config(&model, PolicyKind::Fcfs)
    };
    let refusal = Engine::new(model.clone(), with(1 << 10)).err().expect("1 KiB is too little");
    assert!(refusal.to_string().contains("raise its --model-share"), "{refusal}");
    let roomy = engine(&model, with(1 << 40));
    assert_eq!(roomy.kv_blocks(), engine(&model, with(1 << 41)).kv_blocks());
}

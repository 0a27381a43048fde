//! Answers are the CPU backend's.

use std::time::Instant;

use trail_cuda_emulator::Order;
use trail_runtime::engine::{
    CudaSettings, Engine, EngineConfig, PolicyKind, ProbeDevice, RequestHandle,
};
use trail_runtime::model::Dtype;
use trail_scheduler::{Preemption, SchedulerConfig};

use super::subject::{CUDA, LIMIT, Subject, answer};

/// Settings of an engine with too few blocks for its sequences: four need up to 20.
fn evicting(subject: &Subject, preemption: Preemption) -> EngineConfig {
    let scheduler = SchedulerConfig { preemption, ..SchedulerConfig::default() };
    let config = subject.config(CUDA, PolicyKind::trail(1.0));
    EngineConfig { scheduler, kv_blocks: Some(8), ..config }
}

#[test]
fn cuda_the_demo_model_under_fcfs_and_trail() {
    let _session = trail_cuda_emulator::session();
    let subject = Subject::demo(4, 8);
    for policy in [PolicyKind::Fcfs, PolicyKind::trail(0.8)] {
        let engine = subject.engine(subject.config(CUDA, policy));
        subject.check(&engine, &policy.to_string());
        let stats = engine.stats();
        // The number of fresh predictions is a matter of time; that each was predicted is not.
        assert!(stats.predictions_fresh + stats.predictions_late > 0);
        assert_eq!(stats.blocks_used, 0);
    }
}

#[test]
fn cuda_graphs_and_kernel_by_kernel_and_every_order_of_streams() {
    let session = trail_cuda_emulator::session();
    let subject = Subject::small();
    for (round, order) in [Order::Late, Order::Early, Order::Seeded].into_iter().enumerate() {
        if let Some(emulator) = session.emulator() {
            emulator.order(order);
            emulator.seed(round as u64);
        }
        for graphs in [true, false] {
            // Both of each with both orders that are extreme.
            let probe = match graphs == (round == 0) {
                true => ProbeDevice::Cpu,
                false => ProbeDevice::Gpu,
            };
            let what = format!("order {round}, graphs {graphs}, probe {probe}");
            // All layers in one launch, where few sequences are left.
            let megakernel = round == 2;
            let cuda = CudaSettings { graphs, probe, megakernel, ..CudaSettings::default() };
            let config = EngineConfig { cuda, ..subject.config(CUDA, PolicyKind::trail(0.8)) };
            subject.check(&subject.engine(config), &what);
        }
    }
}

#[test]
fn cuda_preempted_requests_go_on_as_they_would_have() {
    let _session = trail_cuda_emulator::session();
    let subject = Subject::small();
    for preemption in [Preemption::Recompute, Preemption::Swap, Preemption::Auto] {
        let cuda =
            CudaSettings { checksums: true, host_kv_bytes: 1 << 20, ..CudaSettings::default() };
        let engine = subject.engine(EngineConfig { cuda, ..evicting(&subject, preemption) });
        // Blocks run out only if enough requests have come when the first steps run.
        let preempts = |_| {
            subject.check(&engine, &format!("{preemption:?}"));
            let stats = engine.stats();
            match preemption {
                Preemption::Recompute => stats.evictions > 0 && stats.recomputed_tokens > 0,
                Preemption::Swap => stats.swaps_out > 0 && stats.swaps_in > 0,
                Preemption::Auto => stats.swaps_out + stats.evictions > 0,
            }
        };
        assert!((0..20).any(preempts), "{preemption:?}: {:?}", engine.stats());
        let stats = engine.stats();
        assert_eq!((stats.blocks_used, stats.host_blocks_used), (0, 0), "{preemption:?}");
    }
}

#[test]
fn cuda_cancellation_disturbs_no_other_request() {
    let _session = trail_cuda_emulator::session();
    let subject = Subject::small();
    let engine = subject.engine(evicting(&subject, Preemption::Swap));
    for round in 0..3 {
        let handles: Vec<RequestHandle> =
            subject.requests().map(|request| engine.submit(request).expect("fits")).collect();
        for (index, handle) in handles.into_iter().enumerate() {
            if index % 3 == round % 3 {
                let (tokens, _) = answer(handle);
                assert_eq!(tokens.len(), subject.expected[index].len());
                subject.agree(index, &tokens, "beside the cancelled");
            } else {
                (0..round).for_each(|_| {
                    handle.try_recv();
                });
                drop(handle);
            }
        }
        // A cancelled request keeps its blocks until its transfer has ended.
        let begin = Instant::now();
        let left = || {
            let stats = engine.stats();
            (engine.live(), stats.blocks_used, stats.host_blocks_used)
        };
        while left() != (0, 0, 0) {
            assert!(begin.elapsed() < LIMIT, "round {round}: {:?} are left", left());
            std::thread::yield_now();
        }
    }
}

#[test]
fn cuda_has_keys_and_values_in_bf16_alone() {
    let _session = trail_cuda_emulator::session();
    let subject = Subject::small();
    let build = |dtype| {
        let kv_dtype = Some(dtype);
        let config = EngineConfig { kv_dtype, ..subject.config(CUDA, PolicyKind::Fcfs) };
        Engine::new(subject.model.clone(), config)
    };
    let error = build(Dtype::F16).err().expect("a refusal").to_string();
    assert!(error.contains("--kv-dtype f16") && error.contains("bf16 on a GPU"), "{error}");
    assert!(build(Dtype::Bf16).is_ok());
}

//! Prefix cache and speculation: the same answers with and without them, and the same predictions
//! but for the device's rounding.

use std::collections::BTreeMap;

use trail_runtime::engine::{
    CudaSettings, Engine, EngineConfig, Event, PolicyKind, ProbeDevice, RequestHandle, Speculate,
};
use trail_scheduler::{Preemption, SchedulerConfig};

use super::subject::{CUDA, LIMIT, Subject};

/// Difference of two predictions from the same prompt, in tokens, that the rounding of a device may
/// make. Those from two prompts differ by 0.01 to 0.14.
const TOLERANCE: f32 = 0.003;

/// Predictions by tokens generated.
type Predictions = BTreeMap<u32, f32>;

/// Asks everything at once, and then the next turn of each conversation. Answers must be the CPU's.
fn converse(turns: &[Subject], config: EngineConfig, what: &str) -> (Engine, Vec<Predictions>) {
    let engine = turns[0].engine(config);
    let mut predictions = Vec::new();
    for (turn, subject) in turns.iter().enumerate() {
        let handles: Vec<RequestHandle> =
            subject.requests().map(|request| engine.submit(request).expect("fits")).collect();
        for (index, handle) in handles.iter().enumerate() {
            let (tokens, predicted) = collect(handle);
            let what = format!("{what}, turn {turn}");
            assert_eq!(tokens.len(), subject.expected[index].len(), "{what}: request {index}");
            subject.agree(index, &tokens, &what);
            predictions.push(predicted);
        }
    }
    (engine, predictions)
}

fn collect(handle: &RequestHandle) -> (Vec<u32>, Predictions) {
    let (mut tokens, mut predictions) = (Vec::new(), Predictions::new());
    while let Some(event) = handle.recv_timeout(LIMIT) {
        match event {
            Event::Token { id, .. } => tokens.push(id),
            Event::Prediction { generated, remaining } => {
                predictions.insert(generated, remaining);
            }
            _ => {}
        }
    }
    (tokens, predictions)
}

/// Predictions from the prompts are equal, which are those that the sums of shared blocks make.
/// Later ones also depend on which rows the slow emulator lets arrive.
fn assert_close(found: &[Predictions], expected: &[Predictions], what: &str) {
    let mut compared: Vec<f32> = Vec::new();
    for (request, (found, expected)) in found.iter().zip(expected).enumerate() {
        let (Some(found), Some(expected)) = (found.get(&0), expected.get(&0)) else { continue };
        let off = (found - expected).abs();
        assert!(off <= TOLERANCE, "{what}: request {request}: {found}, not {expected}");
        compared.push(*expected);
    }
    assert!(2 * compared.len() > expected.len(), "{what}: {compared:?}");
    compared.sort_by(f32::total_cmp);
    let spread = compared[compared.len() - 1] - compared[0];
    assert!(spread > 10.0 * TOLERANCE, "{what}: predictions tell nothing: {compared:?}");
}

#[test]
fn cuda_answers_are_those_without_prefix_cache_and_drafts() {
    let _session = trail_cuda_emulator::session();
    let turns = Subject::turns(2);
    let config = |policy, preemption, kv_blocks, speculate| {
        let scheduler = SchedulerConfig { preemption, ..SchedulerConfig::default() };
        let cuda = CudaSettings { host_kv_bytes: 1 << 20, ..CudaSettings::default() };
        let config = turns[0].config(CUDA, policy);
        EngineConfig { scheduler, cuda, kv_blocks: Some(kv_blocks), speculate, ..config }
    };
    let whole = config(PolicyKind::Fcfs, Preemption::Recompute, 80, Speculate::Off);
    let plain = EngineConfig { no_prefix_cache: true, ..whole };
    let (engine, expected) = converse(&turns, plain, "without");
    let stats = engine.stats();
    assert_eq!((stats.cached_tokens, stats.draft_tokens), (0, 0));
    for (policy, preemption, kv_blocks, speculate, probe) in [
        (PolicyKind::Fcfs, Preemption::Recompute, 80, Speculate::Off, ProbeDevice::Cpu),
        (PolicyKind::trail(0.8), Preemption::Recompute, 7, Speculate::Ngram, ProbeDevice::Gpu),
        (PolicyKind::trail(1.0), Preemption::Swap, 7, Speculate::Ngram, ProbeDevice::Cpu),
    ] {
        let always = matches!(speculate, Speculate::Ngram);
        let what = format!("{policy}, {preemption:?}, {kv_blocks} blocks, {always}");
        let mut config = config(policy, preemption, kv_blocks, speculate);
        (config.cuda.probe, config.cuda.checksums) = (probe, true);
        let (engine, found) = converse(&turns, config, &what);
        let stats = engine.stats();
        println!("{what}: {stats:?}");
        assert!(stats.cached_tokens > 60 && stats.hash_collisions == 0, "{what}: {stats:?}");
        assert_eq!(stats.accepted_tokens > 0, always, "{what}: {stats:?}");
        let preempted = stats.evictions + stats.swaps_out;
        assert_eq!(preempted > 0, kv_blocks < 80, "{what}: {stats:?}");
        assert_close(&found, &expected, &what);
        assert_eq!((engine.live(), engine.stats().blocks_used), (0, 0), "{what}");
    }
}

//! Requests that keep arriving at the limit of `max_requests`: request indices change hands while
//! steps and transfers are in flight.

use std::collections::VecDeque;

use trail_scheduler::Preemption;

use super::{
    MAX_STEPS, ahead, answer, answers, config, empty, engine, model, preempting_by, requests,
    stepped_ahead,
};
use crate::engine::{
    Engine, EngineConfig, FinishReason, PolicyKind, QueueConfig, RequestHandle, SteppedEngine,
    SubmitError,
};

const ARRIVALS: usize = 400;
const MAX_REQUESTS: usize = 20;
/// Refusals of a full engine. An engine that is quicker than its submitter is seldom full.
const REFUSALS: usize = 20;

/// Submits requests, each as soon as there is room, until [`ARRIVALS`] were submitted and
/// [`REFUSALS`] refused, and compares the answers. With `cancels`, two of three are cancelled after
/// a few events.
fn churn(engine: &Engine, expected: &[(Vec<u32>, FinishReason)], cancels: bool) {
    let kinds: Vec<_> = requests().collect();
    let mut running: VecDeque<(usize, RequestHandle)> = VecDeque::new();
    let (mut submitted, mut refused) = (0, 0);
    while submitted < ARRIVALS || refused < REFUSALS || !running.is_empty() {
        assert!(submitted < MAX_STEPS, "the engine is never full");
        let kind = submitted % kinds.len();
        if submitted < ARRIVALS || refused < REFUSALS {
            match engine.submit(kinds[kind].clone()) {
                Ok(handle) => {
                    submitted += 1;
                    running.push_back((kind, handle));
                    continue;
                }
                Err(error) => assert!(matches!(error, SubmitError::Full { .. }), "{error}"),
            }
            refused += 1;
        }
        if cancels && submitted % 3 != 0 {
            // At a different time each: before its first event, between two, after its last.
            let at = submitted * 7 % running.len().max(1);
            let Some((_, handle)) = running.remove(at) else { continue };
            (0..submitted % 17).for_each(|_| {
                handle.try_recv();
            });
            continue;
        }
        let Some((kind, handle)) = running.pop_front() else { continue };
        assert_eq!(answer(handle), expected[kind], "a request of kind {kind}");
    }
    empty(engine);
    let stats = engine.stats();
    assert_eq!((stats.blocks_used, stats.host_blocks_used), (0, 0));
}

#[test]
fn answers_are_the_same_when_indices_change_hands() {
    let model = model();
    for policy in [PolicyKind::Fcfs, PolicyKind::trail(1.0)] {
        let expected = answers(&engine(&model, config(&model, policy)));
        for cancels in [false, true] {
            for preemption in [Preemption::Recompute, Preemption::Swap] {
                let config = EngineConfig {
                    // A block more than the longest needs, so that requests are swapped all along.
                    kv_blocks: Some(8),
                    queue: QueueConfig { max_requests: MAX_REQUESTS, ..QueueConfig::default() },
                    scheduler: preempting_by(preemption),
                    ..config(&model, policy)
                };
                let engine = ahead(&model, config, None);
                churn(&engine, &expected, cancels);
                let swaps = engine.stats().swaps_out;
                // Cancels leave blocks free.
                assert!(cancels || (swaps > 0) == (preemption == Preemption::Swap), "{policy}");
            }
        }
    }
}

/// The backend refuses a second copy of an index: indices are the same in each round.
#[test]
fn a_request_cancelled_during_its_swap_leaves_no_copy_at_the_host() {
    let model = model();
    let scheduler = preempting_by(Preemption::Swap);
    let config = EngineConfig { scheduler, ..config(&model, PolicyKind::trail(1.0)) };
    let mut engine = stepped_ahead(&model, config, None);
    for _ in 0..8 {
        let handles: Vec<_> = requests().map(|r| engine.submit(r).expect("fits")).collect();
        let mut steps = 0;
        let mut step = |engine: &mut SteppedEngine| {
            steps += 1;
            assert!(steps < MAX_STEPS, "nothing is swapped, or a request does not leave");
            engine.step().expect("no breakdown");
        };
        while engine.step_loop.scheduler.moving() == 0 {
            step(&mut engine);
        }
        handles.iter().for_each(RequestHandle::cancel);
        while engine.live() > 0 {
            step(&mut engine);
        }
        handles.into_iter().for_each(|handle| drop(answer(handle)));
    }
}

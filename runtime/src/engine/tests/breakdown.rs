//! Breakdowns: of the backend, of the engine's thread, of a thread of the probe.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use trail_scheduler::Preemption;

use super::ahead::Breaks;
use super::stepped::COST;
use super::{
    LIMIT, MAX_STEPS, ahead, answer, answers, config, engine, model, preempting_by, requests,
    stepped_ahead,
};
use crate::engine::{
    EngineConfig, FinishReason, PolicyKind, Request, StepClock, StepOutcome, SubmitError,
};

#[test]
fn a_breakdown_fails_every_request_and_sends_no_wrong_token() {
    let model = model();
    let expected = answers(&engine(&model, config(&model, PolicyKind::Fcfs)));
    let fails = [1, 2, 5, 30].map(Breaks::Fails);
    for breaks in fails.into_iter().chain([1, 7].map(Breaks::Panics)) {
        let engine = ahead(&model, config(&model, PolicyKind::Fcfs), Some(breaks.clone()));
        let mut failed = 0;
        let handles: Vec<_> = requests().map(|request| engine.submit(request)).collect();
        for (handle, (tokens, _)) in handles.into_iter().zip(&expected) {
            match handle {
                Ok(handle) => {
                    let (got, reason) = answer(handle);
                    assert!(tokens.starts_with(&got), "{breaks:?}: {got:?} of {tokens:?}");
                    failed += usize::from(reason == FinishReason::Failed);
                }
                Err(error) => assert!(matches!(error, SubmitError::Failed(_)), "{error}"),
            }
        }
        assert!(failed > 0, "{breaks:?}");
        let error = engine.submit(Request::new(vec![1], 1)).err().expect("it is broken");
        let why = match &breaks {
            Breaks::Fails(_) => "the planned breakdown",
            _ => "the engine's thread panicked: see its message",
        };
        assert_eq!(error.to_string(), format!("the engine broke down: {why}"));
        assert_eq!(engine.live(), 0);
    }
}

#[test]
fn no_permit_is_lost_by_a_breakdown_during_a_transfer() {
    let (model, flag) = (model(), Arc::new(AtomicBool::new(false)));
    let scheduler = preempting_by(Preemption::Swap);
    let config = EngineConfig { scheduler, ..config(&model, PolicyKind::trail(1.0)) };
    let breaks = Breaks::FailsWhen(flag.clone());
    let mut engine = stepped_ahead(&model, config, Some(breaks));
    let handles: Vec<_> = requests().map(|r| engine.submit(r).expect("fits")).collect();
    let mut steps = 0;
    while engine.step_loop.scheduler.moving() == 0 {
        steps += 1;
        assert!(steps < MAX_STEPS, "nothing is swapped");
        assert_eq!(engine.step(), Ok(StepOutcome::Ran));
    }
    handles.iter().for_each(|handle| handle.cancel());
    // Every request is cancelled at the next step, and some wait for their transfers, which take
    // three.
    assert_eq!(engine.step(), Ok(StepOutcome::Ran));
    assert_eq!(engine.live() as usize, engine.step_loop.scheduler.moving());
    assert!(engine.live() > 0);
    flag.store(true, Ordering::Relaxed);
    let late = engine.submit(requests().next().expect("one")).expect("fits");
    assert!(engine.step().is_err());
    assert_eq!(engine.live(), 0);
    assert_eq!(answer(late).1, FinishReason::Failed);
    handles.into_iter().for_each(|handle| drop(answer(handle)));
}

#[test]
fn a_dead_thread_of_the_probe_is_a_breakdown_by_either_clock() {
    for simulated in [false, true] {
        let model = model();
        let mut config = config(&model, PolicyKind::trail(0.8));
        if simulated {
            config.clock = Some(Arc::new(StepClock::new(COST)));
        }
        let engine = ahead(&model, config, Some(Breaks::LosesTap(9)));
        // The last may come after the breakdown, which any earlier one begins.
        let handles: Vec<_> = requests().map_while(|r| engine.submit(r).ok()).collect();
        let (sender, ends) = mpsc::channel();
        std::thread::spawn(move || {
            let reasons: Vec<_> = handles.into_iter().map(|handle| answer(handle).1).collect();
            sender.send((reasons, engine.fault().cloned(), engine.live())).unwrap();
        });
        // By simulated time the engine waits for predictions without limit.
        let (reasons, fault, live) = ends.recv_timeout(LIMIT).expect("the engine hangs");
        assert!(reasons.contains(&FinishReason::Failed), "{reasons:?}");
        let fault = fault.expect("it broke down").to_string();
        assert!(fault.contains("a thread of the length probe panicked"), "{fault}");
        assert_eq!(live, 0);
    }
}

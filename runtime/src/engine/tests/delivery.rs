//! Events reach a reader however late it reads, and the queue is bounded in bytes.

use std::sync::Arc;

use trail_scheduler::Preemption;
use trail_scheduler::policies::{Sjf, Trail};

use super::{LIMIT, answer, config, model, preempting_by, run_until_idle, stepped_engine};
use crate::engine::{
    EngineConfig, Event, FinishReason, PolicyKind, QueueConfig, Request, RequestHandle,
    StepOutcome, SteppedEngine, SubmitError, WhenFull,
};

/// A request whose remaining length is predicted as `predicted` at every token.
pub(super) fn predicted(max_tokens: u32, predicted: f32) -> Request {
    Request {
        ignore_eos: true,
        initial_prediction: Some(predicted),
        predictions: Some(vec![predicted; max_tokens as usize + 1].into()),
        ..Request::new(vec![1, 2, 3], max_tokens)
    }
}

/// Settings of an engine for one sequence at a time, whose requests carry their predictions.
fn replaying(policy: PolicyKind) -> EngineConfig {
    EngineConfig {
        probe: None,
        replays: true,
        max_running: Some(1),
        kv_blocks: Some(40),
        ..config(&model(), policy)
    }
}

/// An engine of these settings.
pub(super) fn replaying_one(policy: PolicyKind) -> SteppedEngine {
    stepped_engine(&model(), replaying(policy))
}

fn run_to_end(engine: &mut SteppedEngine, handle: RequestHandle) {
    for _ in 0..1000 {
        assert_eq!(engine.step(), Ok(StepOutcome::Ran));
        while let Some(event) = handle.try_recv() {
            if matches!(event, Event::Finished { .. }) {
                return;
            }
        }
    }
    panic!("it does not end");
}

#[test]
fn a_reader_that_sleeps_through_200_preemptions_gets_every_token() {
    const TOKENS: usize = 300;
    let mut engine = replaying_one(PolicyKind::Trail(Trail::paper(1.0)));
    let sleeper = engine.submit(predicted(TOKENS as u32, 1e4)).expect("fits");
    assert_eq!(engine.step(), Ok(StepOutcome::Ran));
    for _ in 0..200 {
        let short = engine.submit(predicted(1, 1.0)).expect("fits");
        run_to_end(&mut engine, short);
        assert_eq!(engine.step(), Ok(StepOutcome::Ran));
    }
    assert_eq!(engine.stats().preemptions, 200);
    run_until_idle(&mut engine);
    let (mut tokens, mut predictions, mut preemptions) = (0, Vec::new(), 0);
    let reason = loop {
        match sleeper.try_recv().expect("the next event is there") {
            Event::Token { .. } => tokens += 1,
            Event::Prediction { generated, .. } => predictions.push(generated),
            Event::Preempted { times, .. } => preemptions += times,
            Event::Alternative { .. } | Event::PromptToken { .. } => panic!("none was asked for"),
            Event::Finished { reason } => break reason,
        }
    };
    assert_eq!((tokens, preemptions, reason), (TOKENS, 200, FinishReason::Length));
    assert!(predictions.into_iter().eq(0..TOKENS as u32));
    assert_eq!(sleeper.try_recv(), None);
}

#[test]
fn preemptions_between_two_tokens_are_counted_in_two_events() {
    // Three rows a step, so that the long prompt is preempted before it has a token.
    let config = EngineConfig {
        scheduler: preempting_by(Preemption::Recompute),
        token_budget: Some(3),
        ..replaying(PolicyKind::Trail(Trail::paper(1.0)))
    };
    let mut engine = stepped_engine(&model(), config);
    let prompt = (0..90).collect();
    let long = engine.submit(Request { prompt, ..predicted(2, 1e4) }).expect("fits");
    for _ in 0..10 {
        assert_eq!(engine.step(), Ok(StepOutcome::Ran));
        let short = engine.submit(predicted(1, 1.0)).expect("fits");
        run_to_end(&mut engine, short);
    }
    run_until_idle(&mut engine);
    let events = std::iter::from_fn(|| long.try_recv());
    let times = events.filter_map(|event| match event {
        Event::Preempted { times, .. } => Some(times),
        _ => None,
    });
    assert_eq!(times.collect::<Vec<_>>(), [1, 9]);
}

#[test]
fn a_full_engine_sheds_the_worst_ranked_request_that_never_ran() {
    let config = EngineConfig {
        queue: QueueConfig { max_requests: 4, when_full: WhenFull::Shed, ..QueueConfig::default() },
        ..replaying(PolicyKind::Sjf(Sjf::PAPER))
    };
    let mut engine = stepped_engine(&model(), config);
    let submit = |engine: &SteppedEngine, length: f32| {
        let request = Request::new(vec![1; 4], 12);
        engine.submit(Request { initial_prediction: Some(length), ..request })
    };
    let running = submit(&engine, 9.0).expect("room");
    assert_eq!(engine.step().unwrap(), StepOutcome::Ran);
    // The running one is the longest, but it has begun: of the others the one of 8 goes.
    let lengths = [3.0, 8.0, 5.0];
    let waiting = lengths.map(|length| submit(&engine, length).expect("room"));
    let short = submit(&engine, 4.0).expect("one more than max_requests");
    assert!(submit(&engine, 1.0).is_err_and(|error| error.is_full()), "within the same step");
    run_until_idle(&mut engine);
    let reasons = waiting.map(|handle| answer(handle).1);
    let (length, overloaded) = (FinishReason::Length, FinishReason::Overloaded);
    assert_eq!(reasons, [length, overloaded, length]);
    assert_eq!([running, short].map(|handle| answer(handle).1), [length; 2]);
    assert_eq!((engine.stats().shed, engine.live()), (1, 0));
}

#[test]
fn the_queue_is_bounded_in_bytes() {
    let mut config = config(&model(), PolicyKind::Fcfs);
    config.queue.max_bytes = 10_000;
    let mut engine = stepped_engine(&model(), config);
    let mut handles = Vec::new();
    let full = loop {
        match engine.submit(Request::new(vec![1; 100], 2)) {
            Ok(handle) if handles.len() < 100 => handles.push(handle),
            Ok(_) => panic!("the queue is not bounded"),
            Err(error) => break error,
        }
    };
    assert_eq!(full, SubmitError::FullBytes { max_bytes: 10_000 });
    assert!(full.is_full() && !full.is_invalid());
    // At least 400 bytes each.
    assert!((1..25).contains(&handles.len()), "{} requests", handles.len());
    assert_eq!(engine.live() as usize, handles.len(), "a refused request keeps its permit");
    let stop_tokens = vec![1; 5_000];
    let large = Request { stop_tokens, ..Request::new(vec![1], 2) };
    let error = engine.submit(large).err().expect("refused");
    assert!(matches!(error, SubmitError::TooLarge { .. }) && error.is_invalid(), "{error}");
    run_until_idle(&mut engine);
    let count = handles.len();
    assert!(handles.into_iter().all(|handle| answer(handle).1 == FinishReason::Length));
    // Every byte came back.
    let again: Vec<_> =
        (0..count).map(|_| engine.submit(Request::new(vec![1; 100], 2)).expect("fits")).collect();
    drop(again);
}

#[test]
fn a_cancel_from_another_thread_ends_a_wait() {
    let engine = stepped_engine(&model(), config(&model(), PolicyKind::Fcfs));
    let handle = Arc::new(engine.submit(Request::new(vec![1], 9)).expect("fits"));
    let waiting = handle.clone();
    let waits = std::thread::spawn(move || waiting.recv_timeout(LIMIT));
    handle.cancel();
    drop(engine);
    let ended = waits.join().unwrap();
    assert!(matches!(ended, Some(Event::Finished { .. })), "{ended:?}");
}

//! An engine stepped by its caller, by the wall and by simulated time.

use std::sync::Arc;
use std::time::Duration;

use trail_scheduler::Preemption;
use trail_scheduler::policies::Trail;

use super::ahead::Breaks;
use super::delivery::predicted;
use super::{
    MAX_STEPS, answer, answers, config, engine, model, preempting_by, requests, run_until_idle,
    stepped_ahead, stepped_engine,
};
use crate::engine::{
    Clock, EngineConfig, Event, FinishReason, PolicyKind, Request, RequestHandle, StepClock,
    StepCost, StepOutcome, SteppedEngine, SubmitError,
};

pub(super) const COST: StepCost = StepCost {
    fixed: 1e5,
    decode_row: 2e4,
    prefill_token: 1e4,
    context_token: 10.0,
    experts: None,
};

/// Interval between arrivals, nanoseconds: shorter than requests take.
const GAP_NS: u64 = 150_000;

/// By request: its tokens with their times, and the time and reason of its end.
type Log = Vec<(Vec<(u32, u64)>, Option<(FinishReason, u64)>)>;

/// Submits a request every [`GAP_NS`] of `clock` and steps until all are answered.
fn run(engine: &mut SteppedEngine, clock: &StepClock) -> Log {
    let mut waiting: Vec<_> = requests().enumerate().collect();
    waiting.reverse();
    let mut handles: Vec<RequestHandle> = Vec::new();
    let (mut log, mut steps) = (Log::new(), 0);
    loop {
        steps += 1;
        assert!(steps < MAX_STEPS, "{} requests are left", engine.live());
        while let Some((index, _)) =
            waiting.last().filter(|(i, _)| *i as u64 * GAP_NS <= clock.now_ns())
        {
            assert_eq!(*index, handles.len());
            let (_, request) = waiting.pop().expect("looked at");
            handles.push(engine.submit(request).expect("fits"));
            log.push((Vec::new(), None));
        }
        let outcome = engine.step().expect("no breakdown");
        for (handle, (tokens, end)) in handles.iter().zip(&mut log) {
            while let Some(event) = handle.try_recv() {
                match event {
                    Event::Token { id, .. } => tokens.push((id, clock.now_ns())),
                    Event::Finished { reason } => *end = Some((reason, clock.now_ns())),
                    _ => {}
                }
            }
        }
        match (outcome, waiting.last()) {
            (StepOutcome::Idle, Some((index, _))) => clock.advance_to(*index as u64 * GAP_NS),
            (StepOutcome::Idle, None) => return log,
            (StepOutcome::Transferring, next) => {
                // Nothing has changed: planning again would count skipped requests in vain.
                let plans = engine.stats().empty_plans;
                assert_eq!(engine.step(), Ok(StepOutcome::Transferring));
                assert_eq!(engine.stats().empty_plans, plans);
                let arrival = next.map(|(index, _)| *index as u64 * GAP_NS);
                let transfer = engine.next_transfer_ns().expect("a transfer is in flight");
                clock.advance_to(arrival.map_or(transfer, |ns| ns.min(transfer)));
            }
            (StepOutcome::Ran, _) => {}
        }
    }
}

#[test]
fn simulated_time_is_reproducible_and_changes_no_answer() {
    let model = model();
    for (policy, preemption) in [
        (PolicyKind::Fcfs, Preemption::Recompute),
        (PolicyKind::trail(0.8), Preemption::Recompute),
        (PolicyKind::Trail(Trail::paper(1.0)), Preemption::Swap),
    ] {
        let expected = answers(&engine(&model, config(&model, policy)));
        let logs = [(); 2].map(|()| {
            let clock = Arc::new(StepClock::new(COST));
            let config = EngineConfig {
                scheduler: preempting_by(preemption),
                clock: Some(clock.clone()),
                ..config(&model, policy)
            };
            let mut engine = match preemption {
                Preemption::Recompute => stepped_engine(&model, config),
                _ => stepped_ahead(&model, config, None),
            };
            let log = run(&mut engine, &clock);
            assert_eq!(engine.stats().swaps_out > 0, preemption == Preemption::Swap, "{policy}");
            assert_eq!((engine.live(), engine.stats().blocks_used), (0, 0));
            log
        });
        assert_eq!(logs[0], logs[1], "{policy} {preemption:?}: two runs differ");
        for ((tokens, end), (wanted, reason)) in logs[0].iter().zip(&expected) {
            let ids: Vec<u32> = tokens.iter().map(|&(id, _)| id).collect();
            assert_eq!((&ids, end.map(|(reason, _)| reason)), (wanted, Some(*reason)), "{policy}");
        }
    }
}

#[test]
fn nothing_is_planned_while_all_wait_for_a_transfer() {
    // Steps are shorter than transfers, which take 18 us.
    let cost = StepCost {
        fixed: 100.0,
        decode_row: 0.0,
        prefill_token: 0.0,
        context_token: 0.0,
        experts: None,
    };
    let clock = Arc::new(StepClock::new(cost));
    let model = model();
    let config = EngineConfig {
        probe: None,
        replays: true,
        scheduler: preempting_by(Preemption::Swap),
        // The short one would share the long one's blocks.
        no_prefix_cache: true,
        kv_blocks: Some(8),
        clock: Some(clock.clone()),
        ..config(&model, PolicyKind::Trail(Trail::paper(1.0)))
    };
    let mut engine = stepped_ahead(&model, config, None);
    let prompt = |tokens: u32| (0..tokens).map(|at| at % 50).collect();
    let long = Request { prompt: prompt(100), ..predicted(20, 1e4) };
    let long = engine.submit(long).expect("fits");
    (0..4).for_each(|_| assert_eq!(engine.step(), Ok(StepOutcome::Ran)));
    // It ranks first, and needs the blocks of the long one.
    let short = engine.submit(Request { prompt: prompt(90), ..predicted(2, 1.0) }).expect("fits");
    let waits = (0..5).any(|_| engine.step() == Ok(StepOutcome::Transferring));
    assert!(waits, "nothing was swapped");
    let plans = engine.stats().empty_plans;
    (0..9).for_each(|_| assert_eq!(engine.step(), Ok(StepOutcome::Transferring)));
    assert_eq!(engine.stats().empty_plans, plans);
    for _ in 0..200 {
        if engine.step() == Ok(StepOutcome::Transferring) {
            clock.advance_to(engine.next_transfer_ns().expect("a transfer is in flight"));
        }
    }
    assert_eq!([answer(long).1, answer(short).1], [FinishReason::Length; 2]);
}

#[test]
fn a_stepped_engine_reports_a_breakdown_at_every_later_step() {
    let model = model();
    let config = config(&model, PolicyKind::Fcfs);
    let mut engine = stepped_ahead(&model, config, Some(Breaks::Fails(3)));
    assert_eq!(engine.step(), Ok(StepOutcome::Idle));
    let handles: Vec<_> = requests().map(|r| engine.submit(r).expect("fits")).collect();
    let fault = (0..3).find_map(|_| engine.step().err()).expect("the third step fails");
    assert_eq!((fault.to_string(), engine.step()), ("the planned breakdown".into(), Err(fault)));
    for handle in handles {
        assert_eq!(answer(handle).1, FinishReason::Failed);
    }
    let refused = engine.submit(requests().next().expect("one")).err();
    assert!(matches!(refused, Some(SubmitError::Failed(_))));
    assert_eq!(engine.live(), 0);
}

#[test]
fn dropping_a_stepped_engine_ends_its_requests() {
    let engine = stepped_engine(&model(), config(&model(), PolicyKind::Fcfs));
    let handle = engine.submit(requests().next().expect("one")).unwrap();
    drop(engine);
    assert_eq!(answer(handle).1, FinishReason::Shutdown);
}

/// Costs of a slow machine: a prompt of 400 tokens takes 0.88 s in one step.
const SLOW: StepCost =
    StepCost { fixed: 1e6, decode_row: 1e6, prefill_token: 2e6, context_token: 1e3, experts: None };

/// A short request decodes while a long prompt arrives. Returns the tokens of both, and the longest
/// gap between two tokens of the first, nanoseconds.
fn beside_a_long_prompt(policy: PolicyKind, max_gap: Duration) -> ([Vec<u32>; 2], u64) {
    let clock = Arc::new(StepClock::new(SLOW));
    let config = EngineConfig {
        max_gap: Some(max_gap),
        kv_blocks: Some(64),
        clock: Some(clock.clone()),
        ..config(&model(), policy)
    };
    let mut engine = stepped_engine(&model(), config);
    let request = |prompt: u32, max_tokens| {
        let mut request = Request::new((0..prompt).map(|at| at * 7 % 50).collect(), max_tokens);
        request.ignore_eos = true;
        request.true_length = Some(max_tokens);
        request
    };
    let mut handles = vec![engine.submit(request(4, 80)).expect("fits")];
    let mut answers = [Vec::new(), Vec::new()];
    let (mut last_ns, mut longest_ns, mut steps) = (None, 0, 0);
    while engine.step().expect("no breakdown") != StepOutcome::Idle {
        steps += 1;
        assert!(steps < MAX_STEPS, "{} requests are left", engine.live());
        for (index, handle) in handles.iter().enumerate() {
            while let Some(event) = handle.try_recv() {
                let Event::Token { id, .. } = event else { continue };
                answers[index].push(id);
                let now_ns = clock.now_ns();
                if index == 0 {
                    longest_ns = longest_ns.max(now_ns - last_ns.unwrap_or(now_ns));
                    last_ns = Some(now_ns);
                }
            }
        }
        if answers[0].len() == 3 && handles.len() == 1 {
            handles.push(engine.submit(request(400, 4)).expect("fits"));
        }
    }
    (answers, longest_ns)
}

#[test]
fn a_long_prompt_is_cut_so_that_decodes_keep_their_pace() {
    for policy in [PolicyKind::Fcfs, PolicyKind::SRPT] {
        let (whole, gap_ns) = beside_a_long_prompt(policy, Duration::ZERO);
        assert_eq!((whole[0].len(), whole[1].len()), (80, 4));
        assert!(gap_ns > 800_000_000, "{policy}: without a bound the prompt takes one step");
        let (chunked, gap_ns) = beside_a_long_prompt(policy, Duration::from_millis(300));
        assert_eq!(chunked, whole, "{policy}: chunks changed a token");
        assert!((100_000_000..300_000_000).contains(&gap_ns), "{policy}: {gap_ns}");
    }
}

#[test]
fn outstanding_tokens_count_down_and_the_unpredicted_count_as_the_mean() {
    let config = EngineConfig {
        probe: None,
        max_running: Some(1),
        kv_blocks: Some(40),
        ..config(&model(), PolicyKind::Fcfs)
    };
    let mut engine = stepped_engine(&model(), config);
    assert_eq!(engine.stats().predicted_tokens_outstanding(), 0.0);
    let first = Request { predictions: None, ..predicted(10, 8.0) };
    let second = Request { initial_prediction: None, ..first.clone() };
    let _handles = [first, second].map(|request| engine.submit(request).expect("fits"));
    // A plan counts what it found; past its prediction a request has one token to come at least.
    for outstanding in [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 1.0] {
        assert_eq!(engine.step(), Ok(StepOutcome::Ran));
        let stats = engine.stats();
        assert_eq!((stats.running, stats.waiting, stats.predicted_requests), (1, 1, 1));
        assert_eq!(stats.predicted_tokens_outstanding(), outstanding);
    }
    assert_eq!(engine.step(), Ok(StepOutcome::Ran));
    let stats = engine.stats();
    assert_eq!((stats.finished, stats.predicted_requests), (1, 0));
    assert_eq!(stats.predicted_tokens_outstanding(), 10.0);
    run_until_idle(&mut engine);
    assert_eq!(engine.stats().predicted_tokens_outstanding(), 0.0);
}

#[test]
fn the_mean_answer_counts_neither_running_nor_cancelled_requests() {
    let config = EngineConfig { probe: None, ..config(&model(), PolicyKind::Fcfs) };
    let mut engine = stepped_engine(&model(), config);
    let of =
        |length| Request { initial_prediction: None, predictions: None, ..predicted(length, 1.0) };
    let mut handles: Vec<_> =
        [30, 30, 6, 30].map(|length| engine.submit(of(length)).expect("fits")).into();
    while engine.stats().generated_tokens < 8 {
        assert_eq!(engine.step(), Ok(StepOutcome::Ran));
    }
    drop(handles.pop());
    while engine.stats().finished < 2 {
        assert_eq!(engine.stats().predicted_tokens_outstanding(), 0.0, "no answer is whole");
        assert_eq!(engine.step(), Ok(StepOutcome::Ran));
    }
    let stats = engine.stats();
    assert_eq!((stats.answers, stats.answer_tokens), (1, 6));
    assert!(stats.generated_tokens > 12, "others have tokens, too");
    assert_eq!(stats.predicted_tokens_outstanding(), 2.0 * 6.0);
}

use super::*;
use crate::policies::{PolicyKind, Ranking, Trail};
use crate::rng::Rng;
use crate::{Scheduler, SchedulerConfig};

fn ranks(policy: &str) -> Ranks {
    Ranks::new(8, policy.parse().expect("a policy"))
}

fn request(expected: f32) -> NewRequest {
    NewRequest {
        prompt_tokens: 8,
        max_tokens: 400,
        initial_prediction: Some(expected),
        ..NewRequest::default()
    }
}

fn progress(request: RequestNumber, generated: u32) -> Progress {
    Progress { request, computed: 7 + generated, generated }
}

/// The first of the order are the batch that a scheduler plans, step by step, if the engine follows
/// it: with memory for all, and a policy for which a preempted request's KV makes no difference.
#[test]
fn the_order_begins_with_the_batch_that_a_scheduler_plans() {
    let ranking = Ranking { prefill_weight: 0.0, min_run_tokens: 5, ..Ranking::DEFAULT };
    for (name, policy) in [
        ("paper", PolicyKind::Trail(Trail::PAPER)),
        ("bounded", PolicyKind::Trail(Trail { ranking, ..Trail::PAPER })),
        ("sjf", PolicyKind::Sjf(Default::default())),
    ] {
        let [steps, preemptions] = follow(policy);
        assert!(steps > 500, "{name}: {steps} steps");
        assert!(preemptions > 10 || name == "sjf", "{name}: {preemptions} preemptions");
    }
}

/// Runs a scheduler, and compares its batches with the order by its policy. Returns the numbers
/// of steps and of preemptions.
fn follow(policy: PolicyKind) -> [u64; 2] {
    let config = SchedulerConfig {
        max_running: 4,
        num_blocks: 1 << 14,
        token_budget: 1 << 16,
        watermark: 0.0,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::new(config, policy.build()).expect("sound sizes");
    let mut ranks = Ranks::new(config.max_requests, policy);
    let (mut rng, mut numbers) = (Rng::new(3), vec![0; config.max_requests as usize]);
    let (mut step, mut preemptions) = (0u64, 0);
    let mut batch: Vec<Progress> = Vec::new();
    let mut arrived = 0;
    while arrived < 200 || scheduler.live() > 0 {
        let now_s = step as f64;
        if arrived < 200 && step.is_multiple_of(8) {
            let length = [rng.below(20), rng.below(120)][usize::from(arrived % 4 == 0)] + 1;
            let request = NewRequest {
                prompt_tokens: 1 + rng.below(40) as u32,
                max_tokens: length as u32,
                arrival_s: now_s,
                initial_prediction: Some((length + rng.below(20)) as f32),
                ..NewRequest::default()
            };
            let idx = scheduler.submit(request).expect("room");
            numbers[idx.index()] = ranks.submit(&request).expect("room");
            arrived += 1;
        }
        let order = ranks.order(now_s, &batch).expect("live");
        let plan = scheduler.plan(step, now_s);
        let rows: Vec<RequestIdx> = plan.rows.iter().map(|row| row.idx).collect();
        let first: Vec<RequestNumber> = rows.iter().map(|idx| numbers[idx.index()]).collect();
        assert_eq!(first, order[..rows.len()], "step {step}");
        assert_eq!(rows.len(), order.len().min(4));
        preemptions += plan.preempted.len() as u64;
        scheduler.advance();
        batch.clear();
        for &idx in &rows {
            let (request, state) = (numbers[idx.index()], scheduler.state(idx));
            let (computed, generated) = (state.computed, state.generated);
            if generated == state.max_tokens {
                ranks.finish(request, generated).expect("live");
                scheduler.finish(idx);
            } else {
                batch.push(Progress { request, computed, generated });
            }
        }
        step += 1;
    }
    assert_eq!(ranks.live(), 0);
    [step, preemptions]
}

#[test]
fn a_request_past_its_window_keeps_its_place_and_a_younger_one_does_not() {
    let mut ranks = ranks("trail-bert:0.5");
    let long = ranks.submit(&request(100.0)).expect("room");
    assert_eq!(ranks.order(0.0, &[]).expect("live"), [long]);
    let short = ranks.submit(&request(10.0)).expect("room");
    assert_eq!(ranks.order(1.0, &[progress(long, 20)]).expect("live"), [short, long]);
    assert_eq!(ranks.order(2.0, &[progress(long, 60)]).expect("live"), [long, short]);
    // The engine took its memory: it leads those that are not past theirs.
    assert_eq!(ranks.order(3.0, &[progress(short, 1)]).expect("live"), [long, short]);
    assert_eq!(ranks.requests[RequestIdx(0)].computed, 0);
    assert_eq!(ranks.requests[RequestIdx(0)].generated, 60);
}

#[test]
fn an_engine_may_run_ahead_accept_drafts_and_finish_at_any_time() {
    let mut ranks = ranks("trail");
    let one = ranks.submit(&request(50.0)).expect("room");
    // The next step is in flight: its token's KV is counted, the token is not known.
    let ahead = Progress { request: one, computed: 9, generated: 0 };
    ranks.order(0.0, &[ahead]).expect("live");
    assert_eq!(ranks.requests[RequestIdx(0)].uncomputed(), 1);
    ranks.order(1.0, &[Progress { request: one, computed: 13, generated: 5 }]).expect("live");
    let state = &ranks.requests[RequestIdx(0)];
    assert_eq!((state.generated, state.computed, state.remaining()), (5, 12, Some(45.0)));
    ranks.finish(one, 9).expect("live");
    let two = ranks.submit(&request(50.0)).expect("room");
    assert_ne!(one, two);
    assert_eq!(ranks.finish(one, 0), Err(Misuse::NoRequest(one)));
    assert_eq!(ranks.order(2.0, &[progress(one, 3)]), Err(Misuse::NoRequest(one)));
    ranks.finish(two, 0).expect("live");
    assert_eq!(ranks.order(3.0, &[]), Ok(vec![]));
}

#[test]
fn priorities_precede_and_what_cannot_be_ranked_is_refused() {
    let mut ranks = ranks("sjf");
    let last = ranks.submit(&NewRequest { priority: 1, ..request(1.0) }).expect("room");
    let first = ranks.submit(&request(90.0)).expect("room");
    assert_eq!(ranks.order(0.0, &[]), Ok(vec![first, last]));
    let empty = NewRequest { prompt_tokens: 0, ..request(1.0) };
    assert_eq!(ranks.submit(&empty), Err(Refusal::EmptyPrompt.into()));
    let none = NewRequest { max_tokens: 0, ..request(1.0) };
    assert_eq!(ranks.submit(&none), Err(Refusal::ZeroMaxTokens.into()));
    assert_eq!(ranks.submit(&request(f32::NAN)), Err(Misuse::NotFinite("predicted_length")));
    assert_eq!(ranks.order(f64::NAN, &[]), Err(Misuse::NotFinite("now")));
    for _ in 2..8 {
        ranks.submit(&request(2.0)).expect("room");
    }
    assert_eq!(ranks.submit(&request(2.0)), Err(Refusal::Full { max_requests: 8 }.into()));
    assert_eq!(self::ranks("oracle").submit(&request(2.0)), Err(Misuse::NoTrueLength));
}

/// A length beyond all contexts is refused, and output beyond `max_tokens` not counted.
#[test]
fn more_tokens_than_a_request_may_have_are_not_counted() {
    let mut ranks = ranks("sjf");
    for (prompt_tokens, max_tokens) in [(MAX_CONTEXT, 1), (1, u32::MAX), (u32::MAX, u32::MAX)] {
        let long = NewRequest { prompt_tokens, max_tokens, ..request(9.0) };
        let refused = ranks.submit(&long).expect_err("too long");
        assert!(refused.to_string().contains("tokens, the context holds"), "{refused}");
    }
    let whole = NewRequest { prompt_tokens: MAX_CONTEXT - 400, ..request(9.0) };
    let number = ranks.submit(&whole).expect("as long as a context");
    ranks.order(0.0, &[Progress { request: number, computed: 9, generated: 401 }]).expect("live");
    assert_eq!(ranks.requests[RequestIdx(number as u32)].generated, 400);
    ranks.finish(number, u32::MAX).expect("live");
    assert_eq!(ranks.live(), 0);
}

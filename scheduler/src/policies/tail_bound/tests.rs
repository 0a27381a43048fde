//! Which requests are overdue or express, and the sums behind it.

use super::*;
use crate::policies::request;

/// A bound with `count` requests of 10 tokens each that arrived at 0 s, 1 s, ...
fn backlog(count: u64) -> TailBound {
    let mut bound = TailBound::new(0.5, 0.0, 64);
    for seq in 0..count {
        bound.on_submitted(&request(seq, None), [10.0, 0.0], 0);
    }
    bound
}

/// Serves `tokens` in `seconds`, with one row in the plan.
fn serve(bound: &mut TailBound, tokens: f64, seconds: f64) {
    bound.on_scheduled();
    bound.on_prefill(tokens);
    bound.on_step(bound.now_s + seconds);
}

#[test]
fn requests_that_wait_past_the_bound_are_overdue_in_order_of_arrival() {
    let mut bound = backlog(8);
    bound.on_step(8.0);
    assert_eq!(bound.next_overdue(), None, "no rate was measured yet");
    (0..8).for_each(|_| serve(&mut bound, 2.5, 0.25)); // 80 tokens at 10 a second: 8 s
    assert!((bound.longest_s - 8.0).abs() < 1e-9);
    let overdue: Vec<u32> = std::iter::from_fn(|| bound.next_overdue()).map(|idx| idx.0).collect();
    // At 10 s. Its 10 tokens take 10 steps of 0.25 s: arrived before 10 + 2.5 - 4 s.
    assert_eq!(overdue, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(bound.is_overdue(&request(7, None)) && !bound.is_overdue(&request(8, None)));

    let mut bound = TailBound::new(0.75, 0.0, 64);
    (0..8).for_each(|seq| bound.on_submitted(&request(seq, None), [10.0, 0.0], 0));
    bound.on_step(8.0);
    (0..8).for_each(|_| serve(&mut bound, 2.5, 0.25));
    let overdue = std::iter::from_fn(|| bound.next_overdue()).count();
    assert_eq!(overdue, 7, "arrived before 10 + 2.5 - 6 s");
}

/// A request that needs `service` tokens in all and 9 in its burn-in, and true if it precedes
/// the overdue.
fn submit(bound: &mut TailBound, seq: u64, service: f64) -> (RequestState, bool) {
    let request = request(seq, None);
    bound.on_submitted(&request, [service, 0.0], 9);
    let is_express = bound.is_express(&request);
    (request, is_express)
}

#[test]
fn who_is_short_by_the_prompt_or_later_is_express() {
    let mut bound = TailBound::new(0.9, 0.5, 64);
    let (request, is_express) = submit(&mut bound, 0, 20.0);
    assert!(!is_express && submit(&mut bound, 1, 6.6).1, "the mean is 20, then 13");
    for (service, is_express) in [(6.6, true), (6.7, false)] {
        bound.expect(&request, [service, 0.0]);
        assert_eq!(bound.is_express(&request), is_express);
    }
}

/// Trials of 9 tokens in a mean of 40 are worth it if more than 9 in 20 find a short request.
#[test]
fn a_request_that_was_long_by_the_prompt_is_judged_once() {
    let mut bound = TailBound::new(0.9, 0.5, 64);
    let mut requests: Vec<RequestState> =
        (0..3).map(|seq| submit(&mut bound, seq, 40.0).0).collect();
    for (request, (generated, service)) in requests.iter_mut().zip([(8, 30.0), (9, 2.0), (9, 30.0)])
    {
        request.generated = generated;
        bound.expect(request, [service, 0.0]);
        bound.expect(request, [service, 0.0]);
    }
    assert!(submit(&mut bound, 3, 40.0).1, "one of two: the first is in its burn-in");
    bound.on_finished(&requests[0]); // short, as it has ended
    let (never_ran, is_express) = submit(&mut bound, 4, 40.0);
    bound.on_finished(&never_ran);
    assert!(is_express);
    let (mut long, _) = submit(&mut bound, 5, 40.0);
    long.generated = 9;
    bound.expect(&long, [40.0, 0.0]);
    assert!(submit(&mut bound, 6, 40.0).1, "two of four");
    let (mut long, _) = submit(&mut bound, 7, 40.0);
    long.generated = 9;
    bound.expect(&long, [40.0, 0.0]);
    assert!(!submit(&mut bound, 8, 40.0).1, "two of five");
}

/// Predictions may come with any of the tokens: `--refresh-tokens`.
#[test]
fn an_estimate_is_due_eight_tokens_after_the_last() {
    let mut bound = TailBound::new(0.9, 0.5, 64);
    let (mut request, _) = submit(&mut bound, 0, 40.0);
    for generated in [9, 17, 26] {
        request.generated = generated - 2;
        assert!(!bound.is_due(&request), "{generated}");
        request.generated = generated;
        assert!(bound.is_due(&request), "{generated}");
        bound.expect(&request, [40.0, 0.0]);
    }
}

#[test]
fn an_answer_that_ends_unjudged_is_judged_by_its_length() {
    let mut bound = TailBound::new(0.9, 0.5, 64);
    for (seq, generated, is_next_express) in [(0, 8, true), (2, 30, true), (4, 30, false)] {
        let (mut ended, _) = submit(&mut bound, seq, 40.0);
        ended.generated = generated;
        bound.on_finished(&ended);
        assert_eq!(submit(&mut bound, seq + 1, 40.0).1, is_next_express, "{seq}");
    }
}

#[test]
fn a_request_that_was_moved_here_has_no_trial_after_its_burn_in() {
    let mut bound = TailBound::new(0.9, 0.5, 64);
    let (mut short, _) = submit(&mut bound, 0, 40.0);
    short.generated = 1;
    bound.on_finished(&short);
    for (seq, generated) in [(1, 8), (2, 9)] {
        let mut moved = request(seq, None);
        moved.generated = generated;
        bound.on_submitted(&moved, [40.0, 0.0], 9);
        assert_eq!(bound.is_express(&moved), generated < 9);
    }
}

/// 10 of service are done in a second, and a token of output takes a step of 0.25 s.
#[test]
fn a_prompt_takes_the_time_of_its_service_and_output_that_of_its_steps() {
    for (prefill, is_overdue) in [(19.0, false), (21.0, true)] {
        let mut bound = TailBound::new(1.0, 0.0, 64);
        bound.on_submitted(&request(0, None), [10.0, prefill], 0);
        bound.on_submitted(&request(1, None), [70.0 - prefill, 0.0], 0);
        bound.on_step(0.0);
        (0..14).for_each(|_| serve(&mut bound, 2.5, 0.25)); // 80 tokens: 8 s
        assert_eq!(bound.next_overdue().is_some(), is_overdue, "3.5 + 2.5 + {prefill} / 10 s");
    }
}

#[test]
fn the_longest_drain_time_is_forgotten_slowly() {
    let mut bound = backlog(2);
    bound.on_step(0.0);
    serve(&mut bound, 10.0, 1.0);
    assert_eq!(bound.longest_s, 2.0);
    (0..2).for_each(|seq| bound.on_finished(&request(seq, None)));
    bound.on_step(6.0);
    assert_eq!((bound.backlog, bound.longest_s), (0.0, 1.5));
}

#[test]
fn the_backlog_counts_each_generated_token_once() {
    let mut bound = backlog(2);
    let mut first = request(0, None);
    (0..4).for_each(|_| bound.on_tokens(1));
    first.generated = 4;
    assert_eq!(bound.backlog, 16.0);
    bound.expect(&first, [9.0, 0.0]);
    assert_eq!(bound.backlog, 19.0, "9 of the first and 10 of the second");
    (0..2).for_each(|_| bound.on_tokens(1));
    first.generated = 6;
    bound.on_finished(&first);
    assert_eq!(bound.backlog, 10.0);
}

#[test]
fn a_batch_with_free_places_tells_nothing_about_the_rate() {
    let mut bound = backlog(1);
    bound.on_step(0.0);
    serve(&mut bound, 10.0, 1.0);
    assert_eq!(bound.longest_s, 0.0);
}
